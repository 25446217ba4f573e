"""When a stream runs a batch, and with what it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import dcp
from dcp.embedded import Cluster
from dcp.spark import driver_view as lookout
from dcp.spark.offsets import from_offset
from dcp.spark.options import Options
from dcp.spark.stream_reader import StreamReader
from tests.spark.test_stream import AtMost, Query, ends_of
from tests.spark.test_task import truth


class AtLeast(NamedTuple):
    """The limit that Spark gives where there is no other one, from 4.2 on."""

    min_rows: int


class All(NamedTuple):
    """What it gives where all is to be read."""


@pytest.fixture(autouse=True)
def looks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "_FRESH", -1.0)


@pytest.mark.parametrize("limit", [AtLeast(10), AtMost(1000)])
def test_a_batch_waits_for_changes_enough_but_not_for_ever(cluster: Cluster, limit: Any) -> None:
    cluster.load(5)
    with Query(cluster.url, minOffsetsPerTrigger="10", maxTriggerDelay="1h") as query:
        # What is there at first is not waited for.
        query.ends = query.driver.latestOffset(query.offset, limit)
        query.batch()
        assert query.reader.documents == truth(cluster)
        for number in range(9):
            cluster.upsert(f"new {number}", b"1")
        assert query.driver.latestOffset(query.offset, limit) == query.offset
        assert query.behind == 9
        # Who asks for all there is gets it.
        assert query.driver.latestOffset(query.offset, All()) != query.offset
        query.driver._waits_since -= 3600
        assert query.driver.latestOffset(query.offset, limit) != query.offset
        assert query.driver.latestOffset(query.offset, limit) == query.offset
        cluster.upsert("the tenth", b"1")
        query.ends = query.driver.latestOffset(query.offset, limit)
        query.batch()
        assert query.reader.documents == truth(cluster)


def test_what_is_there_by_now_waits_for_nothing(cluster: Cluster) -> None:
    with Query(cluster.url, minOffsetsPerTrigger="10") as query:
        cluster.load(1)
        query.driver._waits_since = float("inf")
        assert query.driver.latestOffset(query.offset, AtLeast(10)) == query.offset
        query.driver.prepareForTriggerAvailableNow()
        assert query.driver.latestOffset(query.offset, AtLeast(10)) != query.offset


@pytest.mark.parametrize(
    "options", [{"collections": "shop.stock"}, {"scope": "shop"}, {"collections": "shop.stock,_default"}]
)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_goes_on_without_what_vanished_and_with_what_was_made_anew(
    cluster: Cluster, options: dict[str, str], restarts: bool
) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "stock")
    cluster.upsert("a", b"1", collection="shop.stock")
    with Query(cluster.url, **options, failOnDataLoss="false") as query:
        query.batch()
        cluster.upsert("lost", b"1", collection="shop.stock")
        query.log()
        # Whether it is there or not when the batch is planned, and when it is read.
        shares = query.driver.partitions(query.offset, query.ends or {})
        cluster.drop_collection("shop", "stock")
        query.driver.partitions(query.offset, query.ends or {})
        query.take(shares)
        assert query.driver.latestOffset(query.offset) == query.offset
        query.batch()
        if restarts:
            query.restart()
        cluster.create_collection("shop", "stock")
        cluster.upsert("b", b"2", collection="shop.stock")
        query.batch()
        assert query.reader.documents.keys() >= truth(cluster, "shop.stock").keys() == {b"b"}
        assert query.driver.latestOffset(query.offset) == query.offset


def test_a_collection_may_vanish_between_two_questions(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create_collection("_default", "stock")
    with Query(cluster.url, collections="stock", failOnDataLoss="false") as query:
        query.batch()
        cluster.load(10)
        query.driver._lookout.look()
        monkeypatch.setattr(lookout, "_FRESH", float("inf"))
        cluster.drop_collection("_default", "stock")
        assert query.driver.latestOffset(query.offset) == query.offset


def test_a_collection_that_was_never_there_is_told_all_the_same(cluster: Cluster) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=r"there is no '_default.stock' in 'default'"):
        Query(cluster.url, collections="stock", failOnDataLoss="false")


@pytest.mark.parametrize(("fails", "event"), [("true", "rollback"), ("false", "purged")])
def test_deletions_that_are_forgotten_are_told(fails: str, event: str) -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.load(20)
        with Query(cluster.url, failOnDataLoss=fails) as query:
            query.batch()
            cluster.delete("key-0000000003")
            cluster.upsert("b", b"1")
            cluster.snapshot()
            assert cluster.purge() == 1
            query.log()
            events = [
                name
                for share in query.driver.partitions(query.offset, query.ends or {})
                for batch in query.driver.read(share)
                for name in batch["event"].to_pylist()
            ]
            assert events[0] == event
            assert (len(events) > 20) == (event == "rollback")


def test_a_stream_begins_at_a_time(cluster: Cluster) -> None:
    cluster.load(20)
    driver = StreamReader(Options.of({"url": cluster.url, "startingTimestamp": "2999-01-01T00:00Z"}))
    assert sum(position.seqno for position in from_offset(driver.initialOffset())) == 20
    driver.stop()


def rows_of(query: Query, shares: Sequence[Any]) -> list[tuple[int, int]]:
    rows = (row for share in shares for batch in query.driver.read(share) for row in batch.to_pylist())
    return [(row["vbucket"], row["seqno"]) for row in rows]


def test_no_change_comes_again_in_the_next_batch(cluster: Cluster) -> None:
    cluster.load(500)
    found: list[tuple[int, int]] = []
    with Query(cluster.url) as query:
        while (end := query.driver.latestOffset(query.offset, AtMost(100))) != query.offset:
            shares = query.driver.partitions(query.offset, end)
            if len(found) < 500:
                # What is written between plan and read is for later.
                cluster.upsert(f"new {len(found)}", b"1")
            found += rows_of(query, shares)
            query.offset = end
    assert len(found) == len(set(found)) > 500
    assert {(document.vbucket, document.seqno) for document in cluster.truth().values()} == {*found}


def test_the_last_batch_of_what_is_there_by_now_has_every_key(cluster: Cluster) -> None:
    cluster.load(100)
    with Query(cluster.url) as query:
        query.driver.prepareForTriggerAvailableNow()
        while (end := query.driver.latestOffset(query.offset, AtMost(30))) != query.offset:
            query.ends = end
            shares = query.driver.partitions(query.offset, end)
            cluster.load(50, seed=1)
            query.take(shares)
        assert query.reader.documents.keys() == truth(cluster).keys()


def test_a_task_that_is_past_its_ends_still_waits_for_what_is_undone() -> None:
    with Cluster(nodes=2, vbuckets=2, replicas=1, seed=1) as cluster:
        for number in range(60):
            cluster.upsert(f"key {number}", b"1")
        with Query(cluster.url) as query:
            query.log()
            shares = query.driver.partitions(query.offset, query.ends or {})
            cluster.failover(0, lose=5)
            query.take(shares)
            # One vbucket gets a change, the other as many as it lost: it is where it was, in another history.
            here, highs = from_offset(query.offset), ends_of(cluster)
            (lost,) = (position for position in here if position.seqno > highs[position.vbucket])
            keys = {document.vbucket: key for key, document in cluster.truth().items()}
            for vbucket in (1 - lost.vbucket, *[lost.vbucket] * (lost.seqno - highs[lost.vbucket])):
                cluster.upsert(keys[vbucket], b"2")
            query.log()
            for _ in range(100):
                cluster.upsert(keys[1 - lost.vbucket], b"3")
            query.batch()
            assert query.reader.rollbacks > 0
            while query.driver.latestOffset(query.offset) != query.offset:
                query.batch()
            assert query.reader.documents == truth(cluster)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(dcp.LocalProtocolError, match="option endingOffsets: readStream has no end: use trigger"):
        StreamReader(Options.of({"url": "couchbase://host/bucket", "endingOffsets": "latest"}))


@pytest.mark.parametrize(
    ("options", "schema", "problem"),
    [({"endingOffsets": "latest"}, "key binary", "readStream has no end"), ({}, "kex binary", "no column 'kex'")],
)
def test_what_a_stream_cannot_be_says_the_query_and_nothing_else(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], schema: str, problem: str
) -> None:
    """Spark has a mistake of its own where making a reader fails."""
    changes = spark.readStream.format("dcp").options(url="couchbase://host/bucket", **options).schema(schema).load()
    query = changes.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match=problem) as found:
        query.awaitTermination()
    assert "UnboundLocalError" not in str(found.value)
