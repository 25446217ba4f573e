"""Changes that earlier versions lost without an error: failovers, purges and manifests between two queries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

import dcp
import dcp.spark
from dcp.client import queries
from dcp.client.agent import Agent
from dcp.embedded import Cluster
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status, VbucketState
from tests.spark.query import fresh_query
from tests.spark.rows import RowReader, truth


class StreamAndReads:
    """A stream of a cluster, and batch reads that resume from each other."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.query, self.reader = fresh_query(cluster.url), RowReader()
        self.end: dcp.Checkpoint | None = None

    def read(self) -> None:
        """Run the next batch and the next read."""
        self.query.batch()
        plan = dcp.spark.plan(self.cluster.url, start=self.end)
        self.reader.read(plan)
        self.end = plan.end

    def agree(self) -> bool:
        """True if both have the documents of the cluster."""
        return self.query.reader.documents == truth(self.cluster) == self.reader.documents


@pytest.mark.parametrize("failover", [False, True])
def test_after_a_purge_that_rolls_tasks_back_to_0_no_earlier_seqno_is_a_rollback_target(failover: bool) -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        for key in "xky":
            cluster.upsert(key, b"old")
        readers = StreamAndReads(cluster)
        with readers.query:
            readers.read()
            # Nothing new: the position is now known to be the end of a snapshot.
            readers.read()
            cluster.set_lag(10)
            cluster.delete("x")
            cluster.upsert("k", b"new")
            cluster.upsert("z", b"1")
            assert cluster.purge() == 1
            readers.read()
            assert readers.agree()
            assert readers.query.reader.rolled_back_to == [(0, 0)]
            if failover:
                # The replica that takes over has the old versions, and has purged nothing.
                cluster.failover(0)
            cluster.upsert("w", b"1")
            for _ in range(3):
                readers.read()
            assert readers.agree()


def test_a_purge_of_one_copy_leaves_no_rollback_target_for_another() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        for key, value in (("x", b"0"), ("k", b"old"), ("y", b"0")):
            cluster.upsert(key, value)
        readers = StreamAndReads(cluster)
        with readers.query:
            readers.read()
            readers.query.log_end()
            cluster.delete("x")
            cluster.upsert("z", b"1")
            with cluster._lock:
                # Each node compacts on its own schedule.
                assert cluster._bucket.active(0).purge() == 1
            cluster.set_lag(10)
            cluster.upsert("k", b"new")
            readers.read()
            readers.read()
            assert readers.agree()
            cluster.failover(0)
            readers.read()
            cluster.upsert("w", b"1")
            for _ in range(3):
                readers.read()
            assert readers.agree()


def test_a_query_whose_offset_spark_does_not_pass_keeps_a_wide_window() -> None:
    """Before Spark 4.2, that is a restarted query."""
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        cluster.upsert("old", b"0")
        with fresh_query(cluster.url, startingOffsets="latest") as query:
            cluster.upsert("one", b"1")
            query.end = query.driver.latestOffset()
            query.batch()
            query.restart()
            cluster.upsert("k", b"A")
            query.end = query.driver.latestOffset()
            cluster.upsert("k", b"B")
            cluster.snapshot()
            query.batch()
            cluster.failover(0, lose=1)
            for _ in range(3):
                query.end = query.driver.latestOffset()
                query.batch()
            assert query.reader.documents[b"k"][0] == b"A"


def test_the_high_seqno_is_that_of_the_owner_in_the_map() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        cluster.set_lag(1)
        for key, value in (("a", b"1"), ("k", b"kept"), ("b", b"1"), ("k", b"lost")):
            cluster.upsert(key, value)
        bucket = cluster._bucket
        with cluster._lock:
            # The replica is promoted, and the map does not show it yet.
            promoted = bucket.nodes[1].vbuckets[0]
            promoted.state = VbucketState.ACTIVE
            promoted.log = promoted.log.begin(bucket.new_vbuuid(), promoted.high_seqno)
        with dcp.connect(cluster.url) as client:
            assert client.high_seqnos() == {0: 4}


def test_latest_is_a_position_in_the_newest_history(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(vbuckets=1, seed=1) as cluster:
        for number in range(50):
            cluster.upsert(f"old {number}", b"0")

        high_seqnos = queries.high_seqnos

        def before_a_failover(agent: Agent, collection_ids: Collection[int] | None = None) -> dict[int, int]:
            found = high_seqnos(agent, collection_ids)
            monkeypatch.undo()
            cluster.crash(0)
            cluster.recover(0, lose=10)
            return found

        monkeypatch.setattr(queries, "high_seqnos", before_a_failover)
        with fresh_query(cluster.url, startingOffsets="latest") as query:
            for number in range(15):
                cluster.upsert(f"new {number}", b"1")
            query.batch()
            assert {key.decode() for key in query.reader.documents} == {f"new {number}" for number in range(15)}


def test_a_node_without_a_manifest_is_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create_collection("_default", "x")
    with fresh_query(cluster.url, collections="x", failOnDataLoss="false") as query:
        query.batch()
        cluster.upsert("k", b"1", collection="_default.x")
        query.log_end()
        tasks = query.tasks()
        answered = Agent.ask

        def warming_up(agent: Agent, name: str, **parts: Any) -> Frame:
            answer = answered(agent, name, **parts)
            is_manifest = name == "get_collections_manifest"
            return replace(answer, status=Status.NO_COLLECTIONS_MANIFEST, value=b"") if is_manifest else answer

        with monkeypatch.context() as patched:
            patched.setattr(Agent, "ask", warming_up)
            with pytest.raises(dcp.TransportError, match="collections manifest not loaded yet; retry"):
                query.run(tasks)
        query.run(tasks)
        assert query.reader.documents == truth(cluster, "_default.x")


def test_a_node_with_an_older_manifest_is_asked_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.create_collection("_default", "x")
    with dcp.connect(cluster.url) as client:
        older = client._agent.ask("get_collections_manifest").value
    cluster.create_collection("_default", "y")
    answered = Agent.ask
    times = 0

    def outdated(agent: Agent, name: str, **parts: Any) -> Frame:
        nonlocal times
        answer = answered(agent, name, **parts)
        if name != "get_collections_manifest" or times == 0:
            return answer
        times -= 1
        return replace(answer, value=older)

    with fresh_query(cluster.url, collections="x,y", failOnDataLoss="false") as query:
        cluster.upsert("k", b"1", collection="_default.y")
        query.log_end()
        monkeypatch.setattr(Agent, "ask", outdated)
        # The driver retries.
        times = 2
        query.hurry()
        tasks = query.tasks()
        assert times == 0
        times = 1
        with pytest.raises(dcp.TransportError, match="collections manifest 1 is older than 2"):
            query.run(tasks)
        # latestOffset retries at the next trigger, although there are changes in the other collection.
        cluster.upsert("new", b"1", collection="_default.x")
        times = 1
        assert query.driver.latestOffset(query.end) == query.end
        assert query.driver.latestOffset(query.end) != query.end
        query.run(tasks)
        assert query.reader.documents == truth(cluster, "_default.y")
