"""Streams in micro-batches: all changes, once the query has run, whatever it is stopped or limited by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp.spark
from dcp.embedded import Cluster
from dcp.position import UNKNOWN_END, StreamPosition
from dcp.spark import driver_view as lookout
from dcp.spark import planner, task
from dcp.spark import stream_reader as micro_batch
from dcp.spark.admission import limited
from dcp.spark.offsets import from_offset, to_offset
from dcp.spark.options import Options
from dcp.spark.stream_reader import StreamReader
from tests.spark.test_task import Reader, truth, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, url: str, at: Path, **options: Any) -> int:
    """Stream what there is to files; how many batches it took."""
    stream = spark.readStream.format("dcp").options(url=url, startingOffsets="earliest", **options).load()
    query = stream.writeStream.format("parquet").option("checkpointLocation", str(at / "log"))
    running = query.trigger(availableNow=True).start(str(at / "rows"))
    assert running.awaitTermination(120)
    return len(running.recentProgress)


def test_a_query_that_is_started_again_goes_on(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(300)
    # Spark knows limits since 4.2: before, the first batch is all there is.
    limits = tuple(map(int, spark.version.split(".")[:2])) >= (4, 2)
    assert run(spark, cluster.url, tmp_path, maxOffsetsPerTrigger=100) >= (3 if limits else 1)
    cluster.upsert("new", b"{}")
    cluster.delete("key-0000000003")
    run(spark, cluster.url, tmp_path)
    reader = Reader()
    for row in spark.read.parquet(str(tmp_path / "rows")).toArrow().to_pylist():
        reader.take(row)
    assert reader.documents == truth(cluster)
    logged = b"".join(file.read_bytes() for file in (tmp_path / "log").rglob("*") if file.is_file())
    assert b"positions" in logged
    assert cluster.credentials.password.encode() not in logged


class Query:
    """Does with a stream reader what Spark does, and keeps the rows of each batch that succeeds."""

    def __init__(self, url: str, **options: str) -> None:
        self.options = Options.of({"url": url, "startingOffsets": "earliest", **options})
        self.reader = Reader()
        self.driver = StreamReader(self.options)
        self.offset = self.driver.initialOffset()
        self.ends: dict[str, Any] | None = None

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.stop()

    def restart(self) -> None:
        self.driver.stop()
        self.driver = StreamReader(self.options)

    def look_again(self) -> None:
        """As if the time had come to ask the cluster again what it has."""
        self.driver._lookout.forget()

    @property
    def behind(self) -> int:
        return (self.driver.reportLatestOffset() or {})["behind"]  # type: ignore[no-any-return]

    def log(self) -> None:
        """Decide where the next batch ends."""
        self.ends = self.driver.latestOffset(self.offset)

    def batch(self) -> None:
        if self.ends is None:
            self.log()
        assert self.ends is not None
        self.take(self.driver.partitions(self.offset, self.ends))

    def keep(self, batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            self.reader.take(row)

    def take(self, shares: Sequence[Any]) -> None:
        for share in shares:
            for batch in self.driver.read(share):
                self.keep(batch)
        assert self.ends is not None
        self.offset, self.ends = self.ends, None


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("logged", [False, True])
def test_a_failover_between_batches_is_undone(when: str, restarts: bool, logged: bool) -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        with Query(cluster.url) as query:
            query.batch()
            assert query.reader.documents == truth(cluster)
            cluster.upsert("a", b"1")
            write(cluster, when == "before")
            query.log()
            write(cluster, when == "between")
            query.batch()
            if restarts:
                query.restart()
            write(cluster, when == "after")
            if logged:
                # The batch may end at what is no more when it is read.
                query.log()
            cluster.failover(0, lose=20)
            query.batch()
            cluster.upsert("b", b"2")
            query.batch()
            query.batch()
            assert query.reader.documents == truth(cluster)


def test_a_rollback_that_was_logged_is_delivered_whatever_is_written_since() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        with Query(cluster.url) as query:
            query.batch()
            cluster.failover(0, lose=20)
            query.log()
            write(cluster, True)
            query.batch()
            assert query.reader.rollbacks > 0
            query.batch()
            assert query.reader.documents == truth(cluster)


def ends_of(cluster: Cluster) -> dict[int, int]:
    with dcp.connect(cluster.url) as client:
        return client.high_seqnos()


def test_a_batch_whose_end_is_lost_while_it_runs_ends_at_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_SILENCE", 0.0)
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        with Query(cluster.url) as query:
            query.batch()
            write(cluster, True)
            query.log()
            assert query.ends is not None
            shares = query.driver.partitions(query.offset, query.ends)
            cluster.failover(0, lose=20)
            # Planned again, it goes no further than what is left.
            there = ends_of(cluster)
            for share in query.driver.partitions(query.offset, query.ends):
                assert all(end <= there[vbucket] for vbucket, end in share.partition.end.items())
            query.take(shares)
            query.batch()
            query.batch()
            assert query.reader.rollbacks > 0
            assert query.reader.documents == truth(cluster)


def test_a_failover_in_the_middle_of_a_batch_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Batches of a few rows, of which few are on their way at a time.
    monkeypatch.setattr(task, "_LEAST", 1)
    monkeypatch.setattr(task, "_SILENCE", 0.0)
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        with Query(f"{cluster.url}?dcp_buffer_size=1000") as query:
            query.batch()
            write(cluster, True)
            query.log()
            assert query.ends is not None
            shares = query.driver.partitions(query.offset, query.ends)
            (dies,) = (share for share in shares if share.partition.node == cluster.addresses[0])
            batches = query.driver.read(dies)
            query.keep(next(batches))
            assert query.reader.rollbacks == 0
            cluster.failover(0, lose=20)
            for batch in batches:
                query.keep(batch)
            # The task that saw it tells it.
            assert query.reader.rollbacks > 0
            query.take([share for share in shares if share is not dies])
            query.batch()
            query.batch()
            assert query.reader.documents == truth(cluster)


def test_nothing_new_is_the_same_offset(cluster: Cluster) -> None:
    cluster.load(50)
    with Query(cluster.url) as query:
        query.batch()
        assert query.driver.latestOffset(query.offset) == query.offset
        assert query.driver.latestOffset() == query.offset
        assert to_offset(from_offset(query.offset)) == query.offset


def test_a_stream_begins_at_what_is_there_then_and_says_so_twice(cluster: Cluster) -> None:
    cluster.load(10)
    driver = StreamReader(Options.of({"url": cluster.url}))
    first = driver.initialOffset()
    assert sum(position.seqno for position in from_offset(first)) == 10
    cluster.load(20)
    assert driver.initialOffset() == first
    driver.stop()


def test_a_stream_does_without_nodes_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "_PATIENCE", 0.0)
    with Cluster(vbuckets=4) as cluster:
        cluster.load(10)
        query = Query(cluster.url)
        query.batch()
    with query:
        query.look_again()
        assert query.driver.latestOffset(query.offset) == query.offset
        monkeypatch.setattr(micro_batch, "_PATIENCE", -1.0)
        with pytest.raises(dcp.TransportError):
            query.driver.latestOffset(query.offset)


class AtMost(NamedTuple):
    """The limit that Spark gives, from 4.2 on."""

    max_rows: int


LEFT = st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(-20, 500)), max_size=6)


@given(LEFT, st.integers(1, 300))
def test_a_batch_has_about_as_many_changes_as_it_may(left: dict[int, tuple[int, int]], most: int) -> None:
    starts = {vbucket: StreamPosition(vbucket, 1, seqno, 0, UNKNOWN_END) for vbucket, (seqno, _) in left.items()}
    highs = {vbucket: max(0, seqno + more) for vbucket, (seqno, more) in left.items()}
    ends = limited(starts, highs, most)
    shares = {vbucket: ends[vbucket] - starts[vbucket].seqno for vbucket in left if highs[vbucket] > left[vbucket][0]}
    total = sum(highs[vbucket] - starts[vbucket].seqno for vbucket in shares)
    # What lost changes ends where it is, and nobody waits for ever.
    assert all(ends[vbucket] == highs[vbucket] for vbucket in left if vbucket not in shares)
    assert all(0 < share <= highs[vbucket] - starts[vbucket].seqno for vbucket, share in shares.items())
    assert min(total, most) <= sum(shares.values()) < min(total, most) + max(1, len(shares))
    if total > most:
        assert all(share < most * (highs[v] - starts[v].seqno) / total + 1 for v, share in shares.items())


def test_with_a_limit_every_change_comes_in_some_batch(cluster: Cluster) -> None:
    cluster.load(1000)
    with Query(cluster.url) as query:
        query.driver.prepareForTriggerAvailableNow()
        target = truth(cluster)
        cluster.upsert("for later", b"{}")
        batches = 0
        while (end := query.driver.latestOffset(query.offset, AtMost(300))) != query.offset:
            query.ends, batches = end, batches + 1
            query.batch()
        assert batches == 4
        # What came since may be in the snapshot that the last batch ends in.
        assert query.reader.documents.items() >= target.items()
        behind = [
            position
            for position in from_offset(query.offset)
            if position.vbucket == cluster.truth()[b"for later"].vbucket
        ]
        assert [position.seqno for position in behind] == [cluster.truth()[b"for later"].seqno - 1]


def test_as_many_new_changes_as_were_lost_are_noticed() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        for number in range(50):
            cluster.upsert(f"key {number}", b"1")
        reader = Reader()
        first = dcp.spark.plan(cluster.url)
        reader.read(first)
        with Query(cluster.url) as query:
            query.batch()
            cluster.failover(cluster.owner("key 1"), lose=5)
            for number in range(5):
                cluster.upsert(f"key {number}", b"2")
            query.batch()
            assert query.reader.documents == truth(cluster)
            # A new history alone is asked about once.
            query.batch()
            assert query.driver.latestOffset(query.offset) == query.offset
        reader.read(dcp.spark.plan(cluster.url, start=first.end))
        assert reader.documents == truth(cluster)


def test_what_other_collections_get_makes_no_batch(cluster: Cluster) -> None:
    cluster.create_scope("shop")
    for name in ("stock", "orders", "other"):
        cluster.create_collection("shop", name)
    cluster.create_scope("else")
    cluster.create_collection("else", "stock")
    for options in ({"collections": "shop.stock,shop.orders"}, {"scope": "shop"}):
        with Query(cluster.url, **options) as query:
            query.batch()
            before = query.offset
            for number in range(20):
                cluster.upsert(f"k{number}", b"{}", collection="else.stock")
            query.look_again()
            assert query.driver.latestOffset(before) == before
            assert query.behind == 0
            cluster.upsert("mine", b"{}", collection="shop.orders")
            query.look_again()
            assert query.driver.latestOffset(before) != before
            query.batch()
            assert query.reader.documents == truth(cluster, "shop.orders")


@pytest.mark.parametrize("others", [0, 100])
def test_a_failover_that_loses_changes_of_a_collection_is_noticed_if_it_gets_no_others(others: int) -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        cluster.create_scope("shop")
        cluster.create_collection("shop", "stock")
        for number in range(200):
            cluster.upsert(f"key {number}", b"1", collection="shop.stock")
        with Query(cluster.url, collections="shop.stock") as query:
            query.batch()
            cluster.failover(0, lose=5)
            for number in range(others):
                cluster.upsert(f"key {number}", b"2")
            query.batch()
            assert query.reader.rollbacks > 0
            assert query.reader.documents == truth(cluster, "shop.stock")


def test_a_cluster_with_nothing_new_is_not_asked_at_each_look(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "_FRESH", float("inf"))
    cluster.create_scope("shop")
    cluster.create_collection("shop", "stock")
    with Query(cluster.url, collections="shop.stock") as query:
        query.batch()
        cluster.upsert("a", b"{}")
        query.look_again()
        before = query.offset
        assert query.driver.latestOffset(before) == before
        asked = [node.bytes_received for node in cluster.stats().values()]
        for _ in range(10):
            assert query.driver.latestOffset(before) == before
        assert [node.bytes_received for node in cluster.stats().values()] == asked


def test_a_failover_that_loses_nothing_of_a_batch_goes_back_no_further_than_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookout, "_FRESH", -1.0)
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        cluster.load(200)
        with Query(cluster.url) as query:
            query.batch()
            # That there is nothing new says that the batch ended at the end of a snapshot.
            assert query.driver.latestOffset(query.offset) == query.offset
            whole = from_offset(query.offset).by_vbucket()
            cluster.load(100, seed=1)
            query.batch()
            cluster.failover(0, lose=20)
            query.batch()
            assert query.reader.rollbacks > 0
            assert all(seqno >= whole[vbucket].seqno for vbucket, seqno in query.reader.went_back_to)
            query.batch()
            assert query.reader.documents == truth(cluster)


def test_the_progress_tells_how_far_the_query_is_behind(cluster: Cluster) -> None:
    cluster.load(100)
    with Query(cluster.url) as query:
        assert query.driver.reportLatestOffset() is None
        query.ends = query.driver.latestOffset(query.offset, AtMost(10))
        told = query.driver.reportLatestOffset() or {}
        assert sum(told["seqnos"].values()) == 100
        assert told["behind"] == 100 - sum(position.seqno for position in from_offset(query.ends))
        query.batch()
        query.batch()
        assert query.behind == 0


def test_a_collection_that_is_dropped_or_made_anew_ends_the_query(cluster: Cluster) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "stock")
    cluster.upsert("a", b"{}", collection="shop.stock")
    with Query(cluster.url, collections="shop.stock") as query:
        query.log()
        cluster.drop_collection("shop", "stock")
        query.look_again()
        with pytest.raises(
            dcp.LocalProtocolError,
            match=r"there is no 'shop.stock' in 'default'.*; failOnDataLoss=false goes on without",
        ):
            query.batch()
        cluster.create_collection("shop", "stock")
        cluster.upsert("b", b"{}", collection="shop.stock")
        query.look_again()
        with pytest.raises(dcp.CheckpointError, match="one was dropped and made anew, or the options changed"):
            query.batch()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_bucket_that_was_made_anew_ends_the_query(restarts: bool) -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.load(100)
        port, password = int(cluster.addresses[0].rpartition(":")[2]), cluster.credentials.password
        query = Query(cluster.url)
        query.batch()
    with query, Cluster(vbuckets=4, port=port, password=password) as cluster:
        cluster.load(100)
        # A cluster goes on counting the maps of its buckets.
        cluster.move(0, cluster_node := cluster.rebalance_in())
        cluster.move(0, 0)
        cluster.move(0, cluster_node)
        if restarts:
            query.restart()
        query.look_again()
        with pytest.raises(dcp.DcpError, match="bucket 'default' was deleted and made anew"):
            query.batch()


def test_vbuckets_that_a_query_did_not_begin_with_are_refused(cluster: Cluster) -> None:
    cluster.load(80)
    with Query(cluster.url, vbuckets="0-3,6") as first:
        first.batch()
    # Fewer are a choice.
    with Query(cluster.url, vbuckets="0-2") as fewer:
        assert fewer.driver.latestOffset(first.offset) == first.offset
    with Query(cluster.url) as more, pytest.raises(dcp.CheckpointError, match=r"began with, found 4, 5, 7; start"):
        more.driver.latestOffset(first.offset)


def test_an_offset_of_somebody_else_is_refused() -> None:
    for offset in ({}, {"version": 2, "positions": {}}, {"version": 1, "positions": {"0": "1"}}):
        with pytest.raises(dcp.CheckpointError, match="offset: expected what this source wrote"):
            from_offset(offset)
