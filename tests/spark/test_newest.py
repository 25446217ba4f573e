"""`newestOnly`: of each key one row, found by the task that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
import dcp.spark
from dcp.embedded import Cluster
from dcp.spark.newest import NewestVersions
from dcp.spark.task import read_partition
from tests.spark.query import Query
from tests.spark.rows import truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    {
        "event": pa.string(),
        "vbucket": pa.int32(),
        "seqno": pa.int64(),
        "collection_id": pa.int64(),
        "key": pa.binary(),
        "snapshot_start": pa.int64(),
        "snapshot_end": pa.int64(),
    }
)


def rows_of(plan: dcp.spark.Plan) -> list[dict[str, Any]]:
    return [
        row
        for partition in plan.partitions
        for batch in read_partition(partition, plan.options)
        for row in batch.to_pylist()
    ]


def write(cluster: Cluster, random: Random) -> None:
    """Write keys several times, some of them in snapshots of their own."""
    for _ in range(random.randint(1, 40)):
        key = f"key {random.randint(0, 9)}"
        if key.encode() in cluster.truth() and random.random() < 0.2:
            cluster.delete(key)
        else:
            cluster.upsert(key, str(random.random()))
        if random.random() < 0.1:
            cluster.snapshot()


@pytest.mark.parametrize("seed", range(10))
def test_a_read_has_one_row_of_each_key(seed: int) -> None:
    with Cluster(nodes=2, vbuckets=1 + seed % 3, seed=seed) as cluster:
        write(cluster, Random(seed))
        rows = rows_of(dcp.spark.plan(cluster.url, newest_only=True))
        assert len({row["key"] for row in rows}) == len(rows)
        assert {row["key"]: (row["value"], row["cas"]) for row in rows if row["event"] == "mutation"} == truth(cluster)


def test_the_same_key_in_two_collections_is_two_documents() -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.create_collection("_default", "stock")
        cluster.upsert("key", b"1")
        cluster.upsert("key", b"2", collection="_default.stock")
        rows = rows_of(dcp.spark.plan(cluster.url, newest_only=True, columns="collection,value"))
        assert {row["collection"]: row["value"] for row in rows} == {"_default": b"1", "stock": b"2"}
        assert {*rows[0]} == {"collection", "value"}


@pytest.mark.parametrize("seed", range(6))
def test_batches_of_a_stream_have_one_row_of_each_key(seed: int) -> None:
    random = Random(seed)
    with Cluster(nodes=2, vbuckets=2, seed=seed) as cluster, Query(cluster.url, newestOnly="true") as query:
        for _ in range(4):
            write(cluster, random)
            query.hurry()
            query.log_end()
            tasks = query.tasks()
            keys = [key for task in tasks for batch in query.driver.read(task) for key in batch["key"].to_pylist()]
            assert len({*keys}) == len(keys)
            query.run(tasks)
        assert query.reader.documents == truth(cluster)


@pytest.mark.parametrize("option", ["events", "where", "history", "outOfOrder"])
def test_what_could_hide_the_newest_version_is_refused(option: str) -> None:
    value = {"events": "mutation", "where": "type = 'order'"}.get(option, "true")
    with pytest.raises(dcp.UsageError, match=f"option {option}: expected it without newestOnly"):
        dcp.spark.options.Options.of({"url": "couchbase://a/b", "newestOnly": "true", option: value})


Row = tuple[str, int, int, bytes, int]


def batches(*found: list[Row]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches of rows: event, vbucket, seqno, key, and the end of their snapshot."""
    for rows in found:
        columns = [*zip(*rows, strict=True)]
        yield pa.record_batch([*columns[:3], [None] * len(rows), columns[3], [0] * len(rows), columns[4]], SCHEMA), 100


def passed(ends: dict[int, int], *found: list[Row]) -> list[list[tuple[int, bytes]]]:
    """Return seqno and key of the rows of each batch that passes."""
    filtered: Iterable[tuple[pa.RecordBatch, int]] = NewestVersions(ends)(batches(*found))
    return [[(row["seqno"], row["key"]) for row in batch.to_pylist()] for batch, _ in filtered]


def test_rows_of_a_snapshot_that_reaches_the_end_pass_at_once() -> None:
    rows = NewestVersions({0: 3})(batches([("mutation", 0, 1, b"a", 3)], [("mutation", 0, 3, b"b", 3)]))
    batch, _ = next(rows)
    assert batch["key"].to_pylist() == [b"a"]


def test_rows_of_earlier_snapshots_wait_for_the_last_one() -> None:
    first = [("mutation", 0, 1, b"a", 2), ("mutation", 1, 5, b"x", 9), ("mutation", 0, 2, b"b", 2)]
    second = [("deletion", 0, 3, b"a", 4), ("mutation", 1, 9, b"y", 9)]
    assert passed({0: 4, 1: 9}, first, second) == [[(5, b"x")], [(9, b"y")], [(2, b"b")], [(3, b"a")]]


def test_what_a_rollback_takes_back_is_no_newest_version() -> None:
    first = [("mutation", 0, 1, b"a", 1), ("mutation", 0, 2, b"a", 2)]
    back: list[Row] = [("rollback", 0, 1, b"", 0)]
    after = [("mutation", 0, 2, b"b", 4)]
    assert passed({0: 4}, first, back, after) == [[(1, b"")], [(1, b"a")], [(2, b"b")]]


def test_a_rollback_takes_back_what_its_vbucket_has_above_its_seqno() -> None:
    first: list[Row] = [("mutation", vbucket, seqno, b"%d" % seqno, 3) for vbucket in (0, 1) for seqno in (1, 2, 3)]
    back: list[Row] = [("rollback", 0, 1, b"", 0), ("mutation", 0, 2, b"new", 4), ("mutation", 1, 4, b"4", 4)]
    _, *kept = passed({0: 4, 1: 4}, first, back)
    assert kept == [[(1, b"1"), (1, b"1"), (2, b"2"), (3, b"3")], [(2, b"new"), (4, b"4")]]


def test_deletions_that_were_purged_take_nothing_back() -> None:
    first = [("mutation", 0, 1, b"a", 1), ("mutation", 0, 2, b"b", 2)]
    purged: list[Row] = [("purged", 0, 1, b"", 0)]
    assert passed({0: 4}, first, purged, [("mutation", 0, 3, b"c", 4)]) == [
        [(1, b"")],
        [(1, b"a"), (2, b"b")],
        [(3, b"c")],
    ]


# Rows of a vbucket that passed, and then rows of another snapshot.
AGAIN: dict[str, list[list[Row]]] = {
    "a later end": [[("mutation", 3, 9, b"a", 12)], [("mutation", 3, 14, b"a", 14)]],
    "a later end in the same batch": [[("mutation", 3, 9, b"a", 12), ("mutation", 3, 14, b"a", 14)]],
    "an end before that of the read": [[("mutation", 3, 9, b"a", 12)], [("mutation", 3, 5, b"b", 6)]],
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_last_snapshot_that_is_sent_again_differently_fails_the_task(name: str) -> None:
    with pytest.raises(dcp.TransportError, match="vbucket 3: its last snapshot was sent again"):
        passed({3: 10}, *AGAIN[name])


@pytest.mark.parametrize("event", ["rollback", "purged"])
def test_after_a_rollback_the_last_snapshot_may_be_another_one(event: str) -> None:
    reported: list[Row] = [(event, 3, 5, b"", 0)]
    found = passed({3: 10}, [("mutation", 3, 9, b"a", 12)], reported, [("mutation", 3, 14, b"a", 14)])
    assert found == [[(9, b"a")], [(5, b"")], [(14, b"a")]]


@given(st.data())
def test_what_passes_is_the_newest_version_of_each_key(data: st.DataObject) -> None:
    rows: list[Row] = []
    ends, newest = {}, {}
    for vbucket in range(2):
        seqno = 0
        for keys in data.draw(st.lists(st.lists(st.sampled_from([b"a", b"b", b"c"]), unique=True, min_size=1))):
            first, seqno = seqno + 1, seqno + len(keys)
            for at, key in enumerate(keys, first):
                rows.append(("mutation", vbucket, at, key, seqno))
                newest[vbucket, key] = at
        ends[vbucket] = seqno
    # A task's vbuckets arrive in any order, each in its own order.
    order = data.draw(st.permutations([row[1] for row in rows]))
    queues = {vbucket: iter([row for row in rows if row[1] == vbucket]) for vbucket in ends}
    mixed = [next(queues[vbucket]) for vbucket in order]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(mixed)))))
    parts = [mixed[begin:end] for begin, end in pairwise([0, *cuts, len(mixed)]) if begin < end]
    filtered: Iterable[tuple[pa.RecordBatch, int]] = NewestVersions(ends)(batches(*parts))
    found = [((row["vbucket"], row["key"]), row["seqno"]) for batch, _ in filtered for row in batch.to_pylist()]
    assert len(found) == len(newest)
    assert dict(found) == newest


@pytest.mark.parametrize("in_memory", [1, 1 << 30])
def test_rows_that_wait_may_be_in_a_file(in_memory: int) -> None:
    count = 10_000
    early: list[list[Row]] = [
        [("mutation", 0, seqno, b"%d" % (seqno % 1000), count) for seqno in range(begin, begin + 1000)]
        for begin in range(1, count, 1000)
    ]
    late: list[Row] = [("mutation", 0, count + 1, b"last", count + 1)]
    rows = NewestVersions({0: count + 1}, in_memory)(batches(*early, late))
    assert [seqno for batch, _ in rows for seqno in batch["seqno"].to_pylist()] == [*range(count - 999, count + 2)]


def test_spark_reads_the_newest_versions(spark: SparkSession) -> None:
    with Cluster(vbuckets=4) as cluster:
        for number in range(60):
            cluster.upsert(f"key {number % 20}", str(number))
            if number == 30:
                cluster.snapshot()
        cluster.delete("key 3")
        for frame in (
            dcp.spark.read(spark, cluster.url, newest_only=True),
            spark.read.format("dcp").options(url=cluster.url, newestOnly="true").load(),
        ):
            rows = frame.toArrow().to_pylist()
            assert len(rows) == 20
            assert {row["key"]: (row["value"], row["cas"]) for row in rows if row["event"] == "mutation"} == truth(
                cluster
            )
