"""Streams in micro-batches: all changes, once the query has run, whatever it is stopped or limited by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dcp.spark
from dcp.embedded import Cluster
from dcp.spark.micro_batch import StreamReader, limited
from dcp.spark.offsets import from_offset, to_offset
from dcp.spark.options import Options
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
    assert run(spark, cluster.url, tmp_path, maxOffsetsPerTrigger=100) >= 3
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

    def __init__(self, url: str) -> None:
        self.options = Options.of({"url": url, "startingOffsets": "earliest"})
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

    def log(self) -> None:
        """Decide where the next batch ends."""
        self.ends = self.driver.latestOffset(self.offset)

    def batch(self) -> None:
        if self.ends is None:
            self.log()
        assert self.ends is not None
        for share in self.driver.partitions(self.offset, self.ends):
            for batch in self.driver.read(share):
                for row in batch.to_pylist():
                    self.reader.take(row)
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


def test_nothing_new_is_the_same_offset(cluster: Cluster) -> None:
    cluster.load(50)
    with Query(cluster.url) as query:
        query.batch()
        assert query.driver.latestOffset(query.offset) == query.offset
        assert query.driver.latestOffset() == query.offset
        assert to_offset(from_offset(query.offset).values()) == query.offset


def test_a_batch_has_about_as_many_changes_as_it_may(cluster: Cluster) -> None:
    cluster.load(1000)
    with Query(cluster.url) as query:
        starts = from_offset(query.offset)
    highs = {position.vbucket: position.seqno for position in dcp.spark.plan(cluster.url).end}
    ends = limited(starts, highs, 100)
    assert 100 <= sum(ends.values()) <= 100 + len(highs)
    assert limited(starts, highs, 2000) == highs


def test_an_offset_of_somebody_else_is_refused() -> None:
    for offset in ({}, {"version": 2, "positions": {}}, {"version": 1, "positions": {"0": "1"}}):
        with pytest.raises(dcp.CheckpointError, match="offset: expected what this source wrote"):
            from_offset(offset)
