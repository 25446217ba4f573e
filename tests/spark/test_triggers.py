"""Triggers of a stream, and what it continues with after collections were dropped or deletions purged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import dcp
from dcp.embedded import Cluster
from dcp.spark.driver_view import ClusterState, DriverView
from dcp.spark.offsets import from_offset
from dcp.spark.options import Options
from dcp.spark.retry import Timing
from dcp.spark.stream_reader import StreamReader
from tests.spark.query import AllAvailable, MaxRows, MinRows, Query, fresh_query
from tests.spark.rows import high_seqnos, truth


@pytest.mark.parametrize("limit", [MinRows(10), MaxRows(1000)])
def test_a_batch_waits_for_a_minimum_of_changes_up_to_a_delay(cluster: Cluster, limit: Any) -> None:
    cluster.load(5)
    with fresh_query(cluster.url, minOffsetsPerTrigger="10", maxTriggerDelay="1h") as query:
        # The first batch does not wait.
        query.end = query.next_end(limit)
        query.batch()
        assert query.reader.documents == truth(cluster)
        for number in range(9):
            cluster.upsert(f"new {number}", b"1")
        assert query.next_end(limit) == query.offset
        assert query.behind == 9
        # A trigger for everything does not wait either.
        assert query.next_end(AllAvailable()) != query.offset
        query.driver._waiting_since -= 3600
        assert query.next_end(limit) != query.offset
        assert query.next_end(limit) == query.offset
        cluster.upsert("the tenth", b"1")
        query.end = query.next_end(limit)
        query.batch()
        assert query.reader.documents == truth(cluster)


def test_available_now_does_not_wait_for_a_minimum(cluster: Cluster) -> None:
    with fresh_query(cluster.url, minOffsetsPerTrigger="10") as query:
        cluster.load(1)
        query.driver._waiting_since = float("inf")
        assert query.next_end(MinRows(10)) == query.offset
        query.driver.prepareForTriggerAvailableNow()
        assert query.next_end(MinRows(10)) != query.offset


def test_available_now_does_not_take_an_outage_for_the_end() -> None:
    with (
        Cluster(vbuckets=4) as cluster,
        Query(cluster.url, Timing(interval=-1.0, retry=0.0), nodeTimeout="0.2s") as query,
    ):
        query.driver.prepareForTriggerAvailableNow()
        cluster.crash(0)
        with pytest.raises(dcp.TransportError):
            query.next_end()


def test_process_all_available_covers_what_was_written_before(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    changes = spark.readStream.format("dcp").options(url=cluster.url, startingOffsets="earliest", columns="key").load()
    stream = changes.writeStream.format("memory").queryName("everything")
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    for number in range(1, 6):
        cluster.upsert(f"key {number}", b"1")
        query.processAllAvailable()
        assert spark.table("everything").count() == number
    query.stop()


@pytest.mark.parametrize(
    "options", [{"collections": "shop.stock"}, {"scope": "shop"}, {"collections": "shop.stock,_default"}]
)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_continues_without_dropped_collections_and_with_recreated_ones(
    cluster: Cluster, options: dict[str, str], restarts: bool
) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "stock")
    cluster.upsert("a", b"1", collection="shop.stock")
    with fresh_query(cluster.url, **options, failOnDataLoss="false") as query:
        query.batch()
        cluster.upsert("lost", b"1", collection="shop.stock")
        query.log_end()
        # Dropped after the batch was planned and before it is read, and dropped before it is planned.
        tasks = query.tasks()
        cluster.drop_collection("shop", "stock")
        query.tasks()
        query.run(tasks)
        assert query.next_end() == query.offset
        query.batch()
        if restarts:
            query.restart()
        cluster.create_collection("shop", "stock")
        cluster.upsert("b", b"2", collection="shop.stock")
        query.batch()
        assert query.reader.documents.keys() >= truth(cluster, "shop.stock").keys() == {b"b"}
        assert query.next_end() == query.offset


def test_a_collection_may_be_dropped_between_two_queries_of_the_cluster(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_collection("_default", "stock")
    with fresh_query(cluster.url, collections="stock", failOnDataLoss="false") as query:
        query.batch()
        cluster.load(10)
        observed = DriverView.current

        def before_a_drop(view: DriverView) -> ClusterState:
            monkeypatch.undo()
            state = observed(view)
            cluster.drop_collection("_default", "stock")
            return state

        monkeypatch.setattr(DriverView, "current", before_a_drop)
        assert query.next_end() == query.offset


@pytest.mark.parametrize("lenient", [False, True])
def test_the_cluster_is_observed_again_after_a_refusal_only_if_data_may_be_lost(
    cluster: Cluster, lenient: bool
) -> None:
    with fresh_query(cluster.url, failOnDataLoss=str(not lenient).lower()) as query:
        query.batch()
        refused = cluster.fault("refuse", command="get_all_vb_seqnos", status="EACCESS", times=1)
        if lenient:
            assert query.next_end() == query.offset
        else:
            with pytest.raises(dcp.ServerError, match="status 0x24"):
                query.next_end()
        assert refused.hits == 1


def test_a_collection_that_never_existed_is_an_error_nevertheless(cluster: Cluster) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=r"'_default.stock' not found in bucket 'default'"):
        fresh_query(cluster.url, collections="stock", failOnDataLoss="false")


@pytest.mark.parametrize(("fails", "event"), [("true", "rollback"), ("false", "purged")])
def test_purged_deletions_are_reported(fails: str, event: str) -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.load(20)
        with fresh_query(cluster.url, failOnDataLoss=fails) as query:
            query.batch()
            cluster.delete("key-0000000003")
            cluster.upsert("b", b"1")
            cluster.snapshot()
            assert cluster.purge() == 1
            query.log_end()
            events = [
                name
                for task in query.tasks()
                for batch in query.driver.read(task)
                for name in batch["event"].to_pylist()
            ]
            assert events[0] == event
            assert (len(events) > 20) == (event == "rollback")


def test_a_stream_starts_at_a_time(cluster: Cluster) -> None:
    cluster.load(20)
    driver = StreamReader(Options.of({"url": cluster.url, "startingTimestamp": "2999-01-01T00:00Z"}))
    assert sum(position.seqno for position in from_offset(driver.initialOffset())) == 20
    driver.stop()


def rows_of(query: Query, tasks: Sequence[Any]) -> list[tuple[int, int]]:
    rows = (row for task in tasks for batch in query.driver.read(task) for row in batch.to_pylist())
    return [(row["vbucket"], row["seqno"]) for row in rows]


def test_no_change_is_delivered_again_in_the_next_batch(cluster: Cluster) -> None:
    cluster.load(500)
    found: list[tuple[int, int]] = []
    with fresh_query(cluster.url) as query:
        while (end := query.next_end(MaxRows(100))) != query.offset:
            tasks = query.driver.partitions(query.offset, end)
            if len(found) < 500:
                # A change between plan and read belongs to a later batch.
                cluster.upsert(f"new {len(found)}", b"1")
            found += rows_of(query, tasks)
            query.offset = end
    assert len(found) == len(set(found)) > 500
    assert {(document.vbucket, document.seqno) for document in cluster.truth().values()} == {*found}


def test_the_last_batch_of_available_now_has_every_key(cluster: Cluster) -> None:
    cluster.load(100)
    with fresh_query(cluster.url) as query:
        query.driver.prepareForTriggerAvailableNow()
        while (end := query.next_end(MaxRows(30))) != query.offset:
            query.end = end
            tasks = query.driver.partitions(query.offset, end)
            cluster.load(50, seed=1)
            query.run(tasks)
        assert query.reader.documents.keys() == truth(cluster).keys()


def test_a_task_past_its_ends_still_waits_for_rollbacks() -> None:
    with Cluster(nodes=2, vbuckets=2, replicas=1, seed=1) as cluster:
        for number in range(60):
            cluster.upsert(f"key {number}", b"1")
        with fresh_query(cluster.url) as query:
            query.log_end()
            tasks = query.tasks()
            cluster.failover(0, lose=5)
            query.run(tasks)
            # One vbucket gets one change, the other as many as it lost: the same seqno in another history.
            here, highs = from_offset(query.offset), high_seqnos(cluster)
            (lost,) = (position for position in here if position.seqno > highs[position.vbucket])
            keys = {document.vbucket: key for key, document in cluster.truth().items()}
            for vbucket in (1 - lost.vbucket, *[lost.vbucket] * (lost.seqno - highs[lost.vbucket])):
                cluster.upsert(keys[vbucket], b"2")
            query.log_end()
            for _ in range(100):
                cluster.upsert(keys[1 - lost.vbucket], b"3")
            query.batch()
            assert query.reader.rollbacks > 0
            while query.next_end() != query.offset:
                query.batch()
            assert query.reader.documents == truth(cluster)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(
        dcp.LocalProtocolError, match="option endingOffsets, endingTimestamp: readStream has no end: use trigger"
    ):
        StreamReader(Options.of({"url": "couchbase://host/bucket", "endingOffsets": "latest"}))


@pytest.mark.parametrize(
    ("options", "schema", "problem"),
    [({"endingOffsets": "latest"}, "key binary", "readStream has no end"), ({}, "kex binary", "no column 'kex'")],
)
def test_wrong_options_fail_the_query_with_their_own_error_only(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], schema: str, problem: str
) -> None:
    """Spark raises an UnboundLocalError of its own where streamReader() raises."""
    changes = spark.readStream.format("dcp").options(url="couchbase://host/bucket", **options).schema(schema).load()
    query = changes.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match=problem) as found:
        query.awaitTermination()
    assert "UnboundLocalError" not in str(found.value)
