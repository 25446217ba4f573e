"""Tasks without Spark: types and sizes of batches, rollbacks, connections."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp.checkpoint import Checkpoint
from dcp.columns.schema import columns_of
from dcp.embedded import Cluster, User
from dcp.position import StreamPosition
from dcp.spark import plan
from dcp.spark.options import Options
from dcp.spark.planner import Partition, partitions_of, ranges_of
from dcp.spark.ranges import Range
from dcp.spark.retry import Timing
from dcp.spark.schema import SparkSchema
from dcp.spark.task import _batches, _is_complete, _StallCheck, read_partition, resized
from dcp.wire.dcp import DCP
from tests.spark.query import Query
from tests.spark.rows import RowReader, mutation, replace_and_delete, truth
from tests.waiting import until

PLAIN = {pa.string(), pa.binary(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")}


def test_every_column_has_a_type_that_spark_has() -> None:
    names = tuple(columns_of(DCP))
    schema = SparkSchema(Options("", columns=names))
    assert set(schema.arrow.types) <= PLAIN
    batch = schema.with_text(mutation(names))
    assert batch.schema == schema.arrow
    (row,) = batch.to_pylist()
    assert row["event"] == "mutation"
    assert (row["vbucket"], row["flags"], row["key"], row["delete_time"]) == (0xFFFF, 0xFFFF_FFFF, b"k", None)
    # The same 64 bits, read as a signed number.
    assert row["seqno"] == -1


def test_text_is_checked() -> None:
    columns = ("key", "value")
    batch = mutation(columns)
    schema = SparkSchema(Options("", columns=columns, key_format="string"))
    assert schema.with_text(batch).to_pylist() == [{"key": "k", "value": b"v"}]
    broken = pa.record_batch([pa.array([b"\xff"]), pa.array([b""])], names=columns)
    with pytest.raises(dcp.LocalProtocolError, match="keyFormat: expected UTF-8"):
        schema.with_text(broken)


SIZES = st.lists(
    st.lists(st.sampled_from([0, 1, 1000, 300_000, 3 << 20, 17 << 20]), min_size=1, max_size=5), max_size=5
)


@settings(max_examples=30)
@given(SIZES)
def test_batches_are_joined_and_split(sizes: list[list[int]]) -> None:
    values = {size: bytes(size) for row in sizes for size in row}
    given = [pa.record_batch({"v": pa.array([values[size] for size in row], pa.binary())}) for row in sizes]
    resized_batches = list(resized((batch, batch.nbytes) for batch in given))
    lengths = [len(value) for batch in resized_batches for value in batch.column(0).to_pylist()]
    assert lengths == [size for row in sizes for size in row]
    assert all(batch.nbytes <= 4 << 20 or batch.num_rows == 1 for batch in resized_batches)
    if all(batch.nbytes < 1 << 20 for batch in given):
        assert all(batch.nbytes >= 1 << 20 for batch in resized_batches[:-1])


@pytest.mark.parametrize("written", ["before the plan", "between plan and read", "after the read"])
def test_changes_that_a_failover_loses_are_undone_by_the_next_read(written: str) -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        reader = RowReader()
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        first = plan(cluster.url)
        reader.read(first)
        assert reader.documents == truth(cluster)
        for number in range(200, 210):
            cluster.upsert(f"key {number}", b"1")
        if written == "before the plan":
            replace_and_delete(cluster)
        second = plan(cluster.url, start=first.end)
        if written == "between plan and read":
            replace_and_delete(cluster)
        reader.read(second)
        if written == "after the read":
            replace_and_delete(cluster)
        cluster.failover(0, lose=20)
        for number in range(30, 40):
            cluster.upsert(f"key {number}", b"3")
        third = plan(cluster.url, start=second.end)
        reader.read(third)
        assert reader.documents == truth(cluster)
        assert reader.rollbacks > 0


def test_a_task_has_one_connection_to_its_node_and_none_to_others() -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(600, value_size=10_000)
        planned = plan(f"{cluster.url}?dcp_buffer_size=100k&stats_interval=10ms", columns="collection,value")
        first = next(part for part in planned.partitions if part.node == cluster.addresses[0])
        batches = read_partition(first, planned.options)
        # More is to come, and waits for the buffer: so the stream stays open.
        next(batches)
        until(lambda: [traffic.connections for traffic in cluster.stats().values()] == [1, 0])
        assert cluster.stats()[0].streams > 0


def test_a_task_after_another_needs_no_cluster_map_unless_the_bucket_was_recreated() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.load(100)
        planned = plan(cluster.url, min_partitions=2)
        first, second = planned.partitions
        rows = sum(batch.num_rows for batch in read_partition(first, planned.options))
        with cluster.fault("refuse", command="get_cluster_config", status="eaccess"):
            rows += sum(batch.num_rows for batch in read_partition(second, planned.options))
            with pytest.raises(dcp.ServerError, match="cluster map"):
                [*read_partition(replace(second, bucket_uuid="of another one"), planned.options)]
        assert rows == 100


def test_a_task_finds_the_cluster_although_all_nodes_of_the_task_before_are_gone() -> None:
    with Cluster(nodes=1, vbuckets=4) as cluster:
        cluster.load(100)
        planned = plan(cluster.url, node_timeout=1)
        (only,) = planned.partitions
        assert sum(batch.num_rows for batch in read_partition(only, planned.options)) == 100
        # Of another process, as the driver is.
        with dcp.connect(cluster.url) as driver:
            cluster.rebalance_in()
            cluster.rebalance_out(0)
            ranges, _ = ranges_of(driver, planned.options)
            parts = partitions_of(driver, ranges, 1)
        assert [part.node for part in parts] == cluster.addresses
        assert sum(batch.num_rows for part in parts for batch in read_partition(part, planned.options)) == 100


def test_a_task_that_failed_leaves_no_client() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.load(100)
        planned = plan(cluster.url, min_partitions=2)
        first, second = planned.partitions
        with (
            cluster.fault("refuse", command="stream_request", status="einval"),
            pytest.raises(dcp.ServerError, match="vbucket"),
        ):
            [*read_partition(first, planned.options)]
        with (
            cluster.fault("refuse", command="get_cluster_config", status="eaccess"),
            pytest.raises(dcp.ServerError, match="cluster map"),
        ):
            [*read_partition(second, planned.options)]


def test_a_lost_end_fails_a_batch_read() -> None:
    with Cluster(nodes=2, vbuckets=2, replicas=1) as cluster:
        for number in range(50):
            cluster.upsert(f"key {number}", b"1")
        planned = plan(cluster.url)
        cluster.failover(0, lose=10)
        with pytest.raises(dcp.ServerError, match=r"planned up to seqno \d+, but the cluster lost changes in a"):
            RowReader().read(planned, Timing(silence=0.0))


def test_a_user_of_one_collection_reads_it() -> None:
    reader = User("reader", "s3cret", collections=frozenset({"shop.stock"}))
    with Cluster(vbuckets=4, password="s3cret", users=[reader]) as cluster:
        cluster.create_scope("shop")
        cluster.create_collection("shop", "stock")
        cluster.upsert("a", b"1", collection="shop.stock")
        cluster.load(10)
        planned = plan(f"couchbase://reader:s3cret@{cluster.addresses[0]}/default", collections=["shop.stock"])
        found = RowReader()
        # The fault keeps the end away for longer than the silence after which a task compares seqnos.
        with cluster.fault("slow", rate=2000):
            found.read(planned, Timing(silence=0.0))
        assert found.documents.keys() == {b"a"}


@pytest.mark.parametrize("fails", [True, False])
def test_a_node_that_is_busy_is_asked_again(fails: bool) -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.create_collection("_default", "stock")
        cluster.upsert("a", b"1", collection="_default.stock")
        options = {"collections": "stock", "failOnDataLoss": str(fails).lower()}
        with Query(cluster.url, Timing(interval=-1.0), **options) as query:
            with cluster.fault("refuse", command="get_all_vb_seqnos", times=3) as refused:
                query.batch()
                query.batch()
            assert refused.hits == 3
            query.batch()
            assert query.reader.documents.keys() == {b"a"}


@pytest.mark.parametrize(
    ("taken", "end", "ended"),
    [
        # By vbucket: what the reader has of 5 changes, up to an end at 9 of which the cluster has lost 4.
        ((5, 5), 9, True),
        # The first vbucket is complete.
        ((5, 5), 5, True),
        # The second vbucket has more to come.
        ((5, 3), 9, False),
        # Both are past their ends: the rest of their snapshots is still to come.
        ((9, 9), 9, False),
    ],
    ids=["nothing more to come", "one is complete", "more of one", "the rest of a snapshot"],
)
def test_a_task_ends_early_only_when_all_that_it_waits_for_is_lost(
    taken: tuple[int, int], end: int, ended: bool
) -> None:
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        for vbucket in range(2):
            keys = (key for key in (b"%d" % n for n in range(99)) if cluster._bucket.vbucket_of(key) == vbucket)
            for key in islice(keys, 5):
                cluster.upsert(key, b"1")
        positions = tuple(StreamPosition(vbucket, 1, seqno, seqno, seqno) for vbucket, seqno in enumerate(taken))
        with cluster.fault("silent"), client.stream(Checkpoint(positions), on_rollback="fail") as stream:
            stalls = _StallCheck(client, stream, {0: end, 1: 9}, Options(cluster.url), True, Timing(silence=0.0))
            assert stalls.ended() is ended


def test_a_silent_task_asks_the_cluster_once_in_a_while() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        stalls = _StallCheck(client, stream, {0: 9}, Options(cluster.url), True, Timing(silence=3600.0))
        assert not stalls.ended()
        # The hour of silence is over.
        stalls._check_at = time.monotonic()
        assert stalls.ended()
        assert stalls._check_at > time.monotonic() + 3000


def test_a_batch_ends_the_silence_of_a_task() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(10)
        with client.stream() as stream:
            stalls = _StallCheck(client, stream, {0: 10}, Options(cluster.url), True, Timing(silence=3600.0))
            stalls._check_at = time.monotonic()
            until(lambda: client.stats().changes == 10)
            next(_batches(stream, stalls, lambda: False))
            assert stalls._check_at > time.monotonic() + 3000


def test_batches_that_were_joined_do_not_count_for_the_next() -> None:
    one = pa.record_batch({"v": pa.array([1])})
    found = list(resized(((one, size) for size in (2, 3, 2, 3)), min_bytes=5))
    assert [batch.num_rows for batch in found] == [2, 2]


@pytest.mark.parametrize(
    ("first", "past", "whole", "complete"),
    [
        (5, 3, False, True),
        # The end itself has arrived, and nothing after it.
        (5, 0, False, True),
        (5, -1, False, False),
        # A range of one seqno, and one of none.
        (0, None, False, True),
        (None, 0, False, False),
        (5, 3, True, False),
    ],
)
def test_a_task_is_complete_when_rows_can_only_be_dropped(
    first: int | None, past: int | None, whole: bool, complete: bool
) -> None:
    """A range without seqnos waits for the rollback that its node may ask for, and a whole one for its snapshot.

    first: seqno that the second range starts at. past: number of seqnos that have arrived after its end.
    """
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(100)
        with client.stream(end="now") as stream:
            for _ in stream:
                pass
        high = stream.checkpoint.by_vbucket()[1].seqno
        end = 1 if past is None else high - past
        ranges = [Range(StreamPosition(0, 1, 5, 0, 9), 7, whole=False)]
        ranges.append(Range(StreamPosition(1, 1, end if first is None else first, 0, high), end, whole=whole))
        assert _is_complete(stream, Partition("", tuple(ranges))) is complete


def test_a_task_does_not_read_on_to_the_end_of_a_long_snapshot() -> None:
    """The next batch reads it: with a limit for each batch, every one of them would read the whole bucket."""
    with Cluster(vbuckets=1) as cluster:
        cluster.load(2000, value_size=1000)
        planned = plan(f"{cluster.url}?dcp_buffer_size=100k", columns="seqno,value")
        (partition,) = planned.partitions
        (whole,) = partition.ranges
        cut = replace(partition, ranges=(replace(whole, end=10, whole=False),))
        rows = [row for batch in read_partition(cut, planned.options) for row in batch["seqno"].to_pylist()]
        assert rows == [*range(1, 11)]
        assert cluster.stats()[0].items < 1000
