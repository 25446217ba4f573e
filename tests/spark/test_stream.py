"""Micro-batches of a stream: complete and correct after restarts, failovers and limits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp.spark
from dcp.embedded import Cluster
from dcp.spark.admission import limited_ends
from dcp.spark.offsets import Floor, from_offset, to_offset
from dcp.spark.options import Options
from dcp.spark.retry import Timing
from dcp.spark.stream_reader import StreamReader
from dcp.spark.task import read_partition
from tests.spark.ports import at_a_port_of_its_own
from tests.spark.query import ALWAYS_FRESH, MaxRows, Query, fresh_query
from tests.spark.rows import RowReader, high_seqnos, replace_and_delete, truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, url: str, at: Path, **options: Any) -> int:
    """Stream to files until the present end of the bucket. Return the number of batches."""
    stream = spark.readStream.format("dcp").options(url=url, startingOffsets="earliest", **options).load()
    query = stream.writeStream.format("parquet").option("checkpointLocation", str(at / "log"))
    running = query.trigger(availableNow=True).start(str(at / "rows"))
    assert running.awaitTermination(120)
    return len(running.recentProgress)


def test_a_restarted_query_resumes(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(300)
    # Spark before 4.2 passes no limits: the first batch has everything.
    limits = tuple(map(int, spark.version.split(".")[:2])) >= (4, 2)
    assert run(spark, cluster.url, tmp_path, maxOffsetsPerTrigger=100) >= (3 if limits else 1)
    cluster.upsert("new", b"{}")
    cluster.delete("key-0000000003")
    run(spark, cluster.url, tmp_path)
    reader = RowReader()
    for row in spark.read.parquet(str(tmp_path / "rows")).toArrow().to_pylist():
        reader.apply(row)
    assert reader.documents == truth(cluster)
    logged = b"".join(file.read_bytes() for file in (tmp_path / "log").rglob("*") if file.is_file())
    assert b"positions" in logged
    assert cluster.credentials.password.encode() not in logged


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
            if when == "before":
                replace_and_delete(cluster)
            query.log_end()
            if when == "between":
                replace_and_delete(cluster)
            query.batch()
            if restarts:
                query.restart()
            if when == "after":
                replace_and_delete(cluster)
            if logged:
                # The batch ends at a seqno that is lost before it is read.
                query.log_end()
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
            query.log_end()
            replace_and_delete(cluster)
            query.batch()
            assert query.reader.rollbacks > 0
            query.batch()
            assert query.reader.documents == truth(cluster)


def test_a_batch_whose_end_is_lost_while_it_runs_ends_at_the_high_seqno() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        with Query(cluster.url, Timing(silence=0.0)) as query:
            query.batch()
            replace_and_delete(cluster)
            query.log_end()
            tasks = query.tasks()
            cluster.failover(0, lose=20)
            # Planned again, the batch ends at the seqnos that are left.
            left = high_seqnos(cluster)
            for task in query.tasks():
                assert all(end <= left[vbucket] for vbucket, end in task.partition.end.items())
            query.run(tasks)
            query.batch()
            query.batch()
            assert query.reader.rollbacks > 0
            assert query.reader.documents == truth(cluster)


def test_a_failover_in_the_middle_of_a_batch_is_undone() -> None:
    timing = Timing(silence=0.0)
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        # A small buffer and a small min_bytes: the task yields a few rows while the node waits to send the others.
        with Query(f"{cluster.url}?dcp_buffer_size=1000", timing) as query:
            query.batch()
            replace_and_delete(cluster)
            query.log_end()
            tasks = query.tasks()
            (interrupted,) = (task for task in tasks if task.partition.node == cluster.addresses[0])
            batches = read_partition(interrupted.partition, query.options, followed=True, timing=timing, min_bytes=1)
            query.reader.apply_batch(next(batches))
            assert query.reader.rollbacks == 0
            cluster.failover(0, lose=20)
            for batch in batches:
                query.reader.apply_batch(batch)
            # The task that was running delivers the rollback.
            assert query.reader.rollbacks > 0
            query.run([task for task in tasks if task is not interrupted])
            query.batch()
            query.batch()
            assert query.reader.documents == truth(cluster)


def test_without_changes_the_offset_stays(cluster: Cluster) -> None:
    cluster.load(50)
    with Query(cluster.url) as query:
        query.batch()
        assert query.next_end() == query.offset
        assert query.driver.latestOffset() == query.offset
        assert to_offset(from_offset(query.offset)) == query.offset


def test_the_initial_offset_is_the_present_end_both_times_that_spark_asks(cluster: Cluster) -> None:
    cluster.load(10)
    driver = StreamReader(Options.of({"url": cluster.url}))
    first = driver.initialOffset()
    assert sum(position.seqno for position in from_offset(first)) == 10
    cluster.load(20)
    assert driver.initialOffset() == first
    driver.stop()


def test_a_stream_survives_an_outage_up_to_a_timeout() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.load(10)
        query = Query(cluster.url, Timing(), nodeTimeout="0")
        query.batch()
    with query:
        query.hurry()
        # The outage begins with the first failure: it cannot be over its timeout then.
        assert query.next_end() == query.offset
        with pytest.raises(dcp.TransportError):
            query.next_end()


def test_an_outage_ends_with_the_first_answer() -> None:
    with (
        Cluster(vbuckets=4) as cluster,
        Query(cluster.url, Timing(interval=-1.0), nodeTimeout="0") as query,
    ):
        cluster.load(10)
        query.batch()
        for _ in range(2):
            cluster.crash(0)
            assert query.next_end() == query.offset
            cluster.recover(0)
            assert query.next_end() != query.offset


def test_a_batch_starts_with_the_high_seqnos_of_now() -> None:
    """Tasks of the batch before may have read a snapshot that ends after all that the driver remembers."""
    with Cluster(vbuckets=1) as cluster, Query(cluster.url) as query:
        cluster.load(10)
        query.log_end()
        tasks = query.tasks()
        cluster.load(20, seed=1)
        query.run(tasks)
        [here] = from_offset(query.log_end())
        assert here.floors == (Floor(10, 30),)


def test_an_end_below_the_start_stays_one_whatever_is_written_until_the_tasks_are_planned() -> None:
    with (
        Cluster(nodes=2, vbuckets=1, replicas=1) as cluster,
        fresh_query(cluster.url) as query,
    ):
        for number in range(50):
            cluster.upsert(f"key {number}", b"1")
        query.batch()
        cluster.failover(cluster.owner("key 1"), lose=5)
        query.log_end()
        for number in range(10):
            cluster.upsert(f"key {number}", b"2")
        [task] = query.tasks()
        [part] = task.partition.ranges
        assert (part.end, part.undone_from) == (45, 50)


LEFT = st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 50), st.integers(-20, 500)), max_size=6)


@given(LEFT, st.integers(1, 300))
def test_a_limited_batch_has_about_that_many_changes(left: dict[int, tuple[int, int]], most: int) -> None:
    starts = {vbucket: seqno for vbucket, (seqno, _) in left.items()}
    highs = {vbucket: max(0, seqno + more) for vbucket, (seqno, more) in left.items()}
    ends = limited_ends(starts, highs, most)
    advances = {vbucket: ends[vbucket] - starts[vbucket] for vbucket in left if highs[vbucket] > left[vbucket][0]}
    total = sum(highs[vbucket] - starts[vbucket] for vbucket in advances)
    # A vbucket that lost changes ends at its high seqno, and each of the others advances.
    assert all(ends[vbucket] == highs[vbucket] for vbucket in left if vbucket not in advances)
    assert all(0 < advance <= highs[vbucket] - starts[vbucket] for vbucket, advance in advances.items())
    assert min(total, most) <= sum(advances.values()) < min(total, most) + max(1, len(advances))
    if total > most:
        assert all(advance < most * (highs[v] - starts[v]) / total + 1 for v, advance in advances.items())


def test_with_a_limit_every_change_is_in_some_batch(cluster: Cluster) -> None:
    cluster.load(1000)
    with Query(cluster.url) as query:
        query.driver.prepareForTriggerAvailableNow()
        target = truth(cluster)
        cluster.upsert("for later", b"{}")
        batches = 0
        while (end := query.next_end(MaxRows(300))) != query.offset:
            query.end = end
            batches += bool(query.tasks())
            query.batch()
        assert batches == 4
        # Later writes may be in the snapshot that the last batch ends in.
        assert query.reader.documents.items() >= target.items()
        behind = [
            position
            for position in from_offset(query.offset)
            if position.vbucket == cluster.truth()[b"for later"].vbucket
        ]
        assert [position.seqno for position in behind] == [cluster.truth()[b"for later"].seqno - 1]


def test_a_failover_is_noticed_after_as_many_new_changes_as_were_lost() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        for number in range(50):
            cluster.upsert(f"key {number}", b"1")
        reader = RowReader()
        first = dcp.spark.plan(cluster.url)
        reader.read(first)
        with Query(cluster.url) as query:
            query.batch()
            cluster.failover(cluster.owner("key 1"), lose=5)
            for number in range(5):
                cluster.upsert(f"key {number}", b"2")
            query.batch()
            assert query.reader.documents == truth(cluster)
            # One batch follows for the new history, and no second one.
            query.batch()
            assert query.next_end() == query.offset
        reader.read(dcp.spark.plan(cluster.url, start=first.end))
        assert reader.documents == truth(cluster)


def test_changes_of_other_collections_make_no_batch(cluster: Cluster) -> None:
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
            query.hurry()
            assert query.driver.latestOffset(before) == before
            assert query.behind == 0
            cluster.upsert("wanted", b"{}", collection="shop.orders")
            query.hurry()
            assert query.driver.latestOffset(before) != before
            query.batch()
            assert query.reader.documents == truth(cluster, "shop.orders")


@pytest.mark.parametrize("others", [0, 100])
def test_a_failover_that_loses_changes_of_a_collection_is_noticed_even_without_new_ones(others: int) -> None:
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


def test_a_cluster_without_changes_is_observed_at_intervals(cluster: Cluster) -> None:
    with Query(cluster.url, Timing(interval=0.1)) as query:
        query.batch()
        assert query.next_end() == query.offset
        start = time.monotonic()
        # The first one comes sooner.
        for _ in range(5):
            assert query.next_end() == query.offset
        assert time.monotonic() - start > 0.35
        # Each answer has everything that was written before the question.
        cluster.upsert("a", b"{}")
        assert query.next_end() != query.offset


def test_a_failover_that_loses_nothing_of_a_batch_rolls_back_no_further_than_its_end() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        cluster.load(200)
        with Query(cluster.url, ALWAYS_FRESH) as query:
            query.batch()
            # With this the driver knows that the batch ended at the end of a snapshot.
            assert query.next_end() == query.offset
            whole = from_offset(query.offset).by_vbucket()
            cluster.load(100, seed=1)
            query.batch()
            cluster.failover(0, lose=20)
            query.batch()
            assert query.reader.rollbacks > 0
            assert all(seqno >= whole[vbucket].seqno for vbucket, seqno in query.reader.rolled_back_to)
            query.batch()
            assert query.reader.documents == truth(cluster)


@pytest.mark.parametrize("settling", [0.0, 3600.0])
def test_what_an_idle_query_observed_is_logged_once_and_makes_a_failover_free(settling: float) -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        cluster.load(200)
        with Query(cluster.url, Timing(interval=-1.0, settling=settling)) as query:
            query.batch()
            assert all(here.is_read for here in from_offset(query.offset))
            assert (query.log_end() != query.offset) == (settling == 0)
            assert query.tasks() == []
            query.commit()
            assert query.next_end() == query.offset
            query.restart()
            cluster.failover(0, lose=0)
            query.batch()
            # Otherwise the batch comes again: a driver that was restarted has not observed its end.
            assert (query.reader.rollbacks == 0) == (settling == 0)
            assert query.reader.documents == truth(cluster)


def test_a_driver_that_runs_on_needs_no_log_of_what_it_observed() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        cluster.load(200)
        with fresh_query(cluster.url) as query:
            query.batch()
            assert query.next_end() == query.offset
            cluster.failover(0, lose=0)
            assert query.next_end() == query.offset


def test_the_progress_has_the_backlog_of_the_query(cluster: Cluster) -> None:
    cluster.load(100)
    with Query(cluster.url) as query:
        assert query.driver.reportLatestOffset() is None
        query.end = query.next_end(MaxRows(10))
        progress = query.driver.reportLatestOffset() or {}
        assert sum(progress["seqnos"].values()) == 100
        # It is asked for with persistedOnly only.
        assert "lagging" not in progress
        assert progress["behind"] == 100 - sum(position.seqno for position in from_offset(query.end))
        query.batch()
        query.batch()
        assert query.behind == 0


def test_a_dropped_or_recreated_collection_fails_the_query(cluster: Cluster) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "stock")
    cluster.upsert("a", b"{}", collection="shop.stock")
    with Query(cluster.url, collections="shop.stock") as query:
        query.log_end()
        cluster.drop_collection("shop", "stock")
        query.hurry()
        with pytest.raises(
            dcp.LocalProtocolError,
            match=r"'shop.stock' not found in bucket 'default'.*; failOnDataLoss=false continues without",
        ):
            query.batch()
        cluster.create_collection("shop", "stock")
        cluster.upsert("b", b"{}", collection="shop.stock")
        query.hurry()
        with pytest.raises(dcp.CheckpointError, match="one was dropped and recreated, or the options changed"):
            query.batch()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_recreated_bucket_fails_the_query(restarts: bool) -> None:
    cluster, port = at_a_port_of_its_own()
    with cluster:
        cluster.load(100)
        password = cluster.credentials.password
        query = Query(cluster.url)
        query.batch()
    with query, Cluster(vbuckets=4, port=port, password=password) as cluster:
        cluster.load(100)
        # The map revision must be newer than that of the old bucket, or the client ignores the map.
        cluster.move(0, cluster_node := cluster.rebalance_in())
        cluster.move(0, 0)
        cluster.move(0, cluster_node)
        if restarts:
            query.restart()
        query.hurry()
        with pytest.raises(dcp.DcpError, match="bucket 'default' was deleted and recreated"):
            query.batch()


def test_vbuckets_that_a_query_did_not_start_with_are_refused(cluster: Cluster) -> None:
    cluster.load(80)
    with Query(cluster.url, vbuckets="0-3,6") as first:
        first.batch()
    # Fewer are accepted.
    with Query(cluster.url, vbuckets="0-2") as fewer:
        assert fewer.driver.latestOffset(first.offset) == first.offset
    with Query(cluster.url) as more, pytest.raises(dcp.CheckpointError, match=r"started with, found 4, 5, 7; start"):
        more.driver.latestOffset(first.offset)


def test_an_offset_of_another_source_is_refused() -> None:
    for offset in ({}, {"version": 2, "positions": {}}, {"version": 1, "positions": {"0": "1"}}):
        with pytest.raises(dcp.CheckpointError, match="offset: expected one that this source wrote"):
            from_offset(offset)


def test_a_query_that_is_restarted_after_each_batch_knows_where_the_batches_before_ended() -> None:
    """These are the places to go back to after a failover that loses changes."""
    ends: list[list[int]] = []
    with Cluster(vbuckets=2) as cluster, Query(cluster.url, Timing(interval=-1.0)) as query:
        for number in range(3):
            cluster.load(20, prefix=str(number))
            query.restart()
            query.batch()
            positions = from_offset(query.offset).positions
            assert [[floor.seqno for floor in position.floors] for position in positions] == [
                [end[position.vbucket] for end in reversed(ends)] for position in positions
            ]
            ends.append([position.seqno for position in positions])
