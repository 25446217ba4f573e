"""Options for the promises of rows: with `persistedOnly` no failover takes one back, so that they can be appended."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dcp
import dcp.spark
from dcp.embedded import Cluster
from dcp.spark.offsets import from_offset
from dcp.spark.retry import Timing
from tests.spark.query import MaxRows, Query, fresh_query
from tests.spark.rows import Documents, RowReader, truth
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMING = Timing(interval=-1.0, silence=0.2)


def newest(rows: list[dict[str, Any]]) -> Documents:
    """Return the documents of a table of changes, without a look at anything but its rows."""
    last = {row["key"]: row for row in sorted(rows, key=lambda row: (row["vbucket"], row["seqno"]))}
    return {key: (row["value"], row["cas"]) for key, row in last.items() if row["event"] == "mutation"}


class AppendingQuery(Query):
    """A query whose batches are appended to Parquet files."""

    def __init__(self, url: str, at: Path) -> None:
        super().__init__(url, TIMING, persistedOnly="true", nodeTimeout="0")
        self._at = at
        self.files = 0

    def append(self) -> None:
        """Run the tasks of the logged batch."""
        tables = [pa.Table.from_batches([batch]) for task in self.tasks() for batch in self.driver.read(task)]
        for table in tables:
            pq.write_table(table, self._at / f"{self.files}.parquet")
            self.files += 1
        self.commit()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of all files."""
        return pq.read_table(self._at).to_pylist() if self.files else []


@pytest.mark.parametrize("seed", range(6))
def test_files_that_are_only_appended_have_what_the_cluster_has_after_failovers_that_lose_changes(
    seed: int, tmp_path: Path
) -> None:
    append_under_chaos(seed, tmp_path)


def append_under_chaos(seed: int, at: Path) -> int:
    """Append batches to files while nodes fail. Return the number of changes that failovers lost."""
    random, lost = Random(seed), 0
    with Cluster(nodes=4, vbuckets=1 + seed % 3, replicas=2, seed=seed) as cluster:
        query, alive = AppendingQuery(cluster.url, at), [*range(4)]
        with query:
            for _ in range(14):
                for _ in range(random.randint(0, 6)):
                    key = f"key {random.randint(0, 9)}"
                    if random.random() < 0.2 and key.encode() in cluster.truth():
                        cluster.delete(key)
                    else:
                        cluster.upsert(key, str(random.random()))
                step = random.choice(("lag", "persist", "fail", "snapshot", "restart", "batch", "batch", "batch"))
                if step == "lag":
                    cluster.set_lag(random.randint(0, 4))
                elif step == "persist":
                    cluster.set_persistence(random.choice(alive), random.random() < 0.5)
                elif step == "fail" and len(alive) > 2:
                    node = random.choice([node for owners in cluster._bucket.owners for node in owners[:1]])
                    alive.remove(node)
                    before = sum(truth_size(cluster))
                    # What the replicas have not received is lost.
                    cluster.failover(node)
                    lost += before - sum(truth_size(cluster))
                elif step == "snapshot":
                    cluster.snapshot()
                elif step == "restart":
                    query.restart()
                if query.end is None and query.log_end(random.choice([None, MaxRows(3)])) == query.offset:
                    query.end = None
                if query.end is not None and all_on_disk(cluster, alive):
                    query.append()
            cluster.set_lag(0)
            for node in alive:
                cluster.set_persistence(node, True)
            if query.end is not None:
                query.append()
            query.driver.prepareForTriggerAvailableNow()
            while query.log_end() != query.offset:
                query.append()
            rows = query.rows
            assert "rollback" not in {row["event"] for row in rows}
            assert newest(rows) == truth(cluster)
    return lost


def truth_size(cluster: Cluster) -> list[int]:
    return [cluster._bucket.active(vbucket).high_seqno for vbucket in range(len(cluster._bucket.owners))]


def all_on_disk(cluster: Cluster, alive: list[int]) -> bool:
    """True if no task would wait for a disk: this process both runs the tasks and lets nodes catch up."""
    return all(
        copy.persisted_seqno >= cluster._bucket.active(copy.number).high_seqno
        for node in alive
        for copy in cluster._bucket.nodes[node].vbuckets.values()
        if node in cluster._bucket.owners[copy.number]
    )


def test_spark_appends_files_that_need_no_rollback(spark: SparkSession, tmp_path: Path) -> None:
    with Cluster(nodes=3, vbuckets=8, replicas=2, seed=1) as cluster:
        stream = spark.readStream.format("dcp").options(
            url=cluster.url, startingOffsets="earliest", persistedOnly="true"
        )
        writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "log"))
        query = writer.start(str(tmp_path / "rows"))
        for node in (0, 1):
            # The last writes of each vbucket are on one node only, and are lost with it.
            cluster.set_lag(3)
            for number in range(100):
                cluster.upsert(f"key {number}", f"{node}")
            cluster.failover(node)
            cluster.set_lag(0)
            query.processAllAvailable()
        cluster.upsert("key 1", b"last")
        query.processAllAvailable()
        query.stop()
        rows = spark.read.parquet(str(tmp_path / "rows")).toArrow().to_pylist()
        assert "rollback" not in {row["event"] for row in rows}
        assert newest(rows) == truth(cluster)


def test_a_copy_that_lags_is_named_in_log_and_progress(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        cluster.load(40)
        slow = cluster.addresses[1]
        with Query(cluster.url, Timing(interval=-1.0, lag=0.0), persistedOnly="true", nodeTimeout="0") as query:
            query.batch()
            assert (query.driver.reportLatestOffset() or {})["lagging"] == {}
            cluster.set_persistence(1, False)
            # Of one vbucket: the others have nothing new.
            for number in range(10):
                cluster.upsert("key", str(number))
            with caplog.at_level(logging.WARNING, "dcp.spark"):
                for _ in range(3):
                    assert query.next_end() == query.offset
            assert (query.driver.reportLatestOffset() or {})["lagging"] == {slow: 10}
            assert query.behind == 10
            assert f"{slow}: 10 seqnos of its copies are not on disk" in caplog.text
            # Less than everything must not look like the end of the query.
            query.driver.prepareForTriggerAvailableNow()
            with pytest.raises(dcp.TransportError, match=f"not on the disk of every copy.*behind: {slow}"):
                query.next_end()
            cluster.set_persistence(1, True)
            query.batch()
            assert query.reader.documents == truth(cluster)
            assert query.next_end()


def test_a_copy_that_stops_writing_to_disk_holds_no_other_vbucket_up() -> None:
    with (
        Cluster(nodes=3, vbuckets=3, replicas=1, seed=1) as cluster,
        Query(cluster.url, TIMING, persistedOnly="true", nodeTimeout="0") as query,
    ):
        query.batch()
        cluster.set_persistence(0, False)
        for number in range(30):
            cluster.upsert(f"key {number}", b"1")
        # The first observation does not know yet which copies are slow.
        query.next_end()
        query.batch()
        free = {v for v, owners in enumerate(cluster._bucket.owners) if 0 not in owners}
        assert free
        assert {vbucket for vbucket, _ in query.reader.rows} == free
        assert query.next_end() == query.offset
        cluster.set_persistence(0, True)
        query.batch()
        assert query.reader.documents == truth(cluster)


def test_after_a_failover_a_position_of_rows_on_every_disk_stays_without_an_observation() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        cluster.load(100)
        with Query(cluster.url, TIMING, persistedOnly="true", nodeTimeout="0") as query:
            query.batch()
            cluster.set_lag(3)
            for number in range(20):
                cluster.upsert(f"key {number}", b"1")
            query.restart()
            cluster.failover(0)
            cluster.set_lag(0)
            read = sum(1 for _ in query.reader.rows)
            query.batch()
            assert query.reader.rollbacks == 0
            assert query.reader.documents == truth(cluster)
            assert len(query.reader.rows) - read <= 20
            assert from_offset(query.offset).positions[0].persisted


def test_a_batch_that_was_planned_with_persisted_only_is_repeated_with_it() -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.load(20)
        with fresh_query(cluster.url, persistedOnly="true") as query:
            start, end = query.offset, query.log_end()
        with fresh_query(cluster.url) as query:
            with pytest.raises(dcp.CheckpointError, match="option persistedOnly: expected true, as the batch to be"):
                query.driver.partitions(start, end)
            # Once that is done, the query may go on without it.
            assert query.driver.latestOffset(end)


def test_a_batch_read_waits_for_the_disks_too() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster:
        cluster.load(50)
        reader = RowReader()
        reader.read(dcp.spark.plan(cluster.url, persisted_only=True))
        assert reader.documents == truth(cluster)


def test_a_read_ends_at_a_time() -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(50)
        before = truth(cluster)
        cluster.snapshot()
        time = datetime.now(timezone.utc)
        # A CAS has the time in steps of 65.536 us, rounded down.
        until(lambda: datetime.now(timezone.utc) - time > timedelta(microseconds=66))
        for number in range(50):
            cluster.upsert(f"later {number}", b"1")
        reader = RowReader()
        plan = dcp.spark.plan(cluster.url, end=time)
        reader.read(plan)
        assert reader.documents == before
        # The next read has what follows.
        reader.read(dcp.spark.plan(cluster.url, start=plan.end))
        assert reader.documents == truth(cluster)


def test_a_read_has_every_version_that_is_kept() -> None:
    with Cluster(vbuckets=1, history=True) as cluster:
        for number in range(5):
            cluster.upsert("key", str(number))
        cluster.snapshot()
        for history, versions in ((False, 1), (True, 5)):
            reader = RowReader()
            reader.read(dcp.spark.plan(cluster.url, history=history))
            assert len(reader.rows) == versions


def test_a_collection_may_come_out_of_order() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.create_collection("_default", "stock")
        for number in range(100):
            cluster.upsert(f"key {number}", b"1", collection="_default.stock")
        cluster.snapshot()
        with fresh_query(cluster.url, collections="stock", outOfOrder="true") as query:
            query.batch()
            for number in range(10):
                cluster.upsert(f"key {number}", b"2", collection="_default.stock")
            query.batch()
            assert query.reader.documents == truth(cluster, "_default.stock")
