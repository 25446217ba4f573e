"""What once got lost without a word: histories, purges and manifests that change where nobody looked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import dcp
import dcp.spark
from dcp.client import queries as questions
from dcp.client import stream_range as bounds
from dcp.client.agent import Access
from dcp.embedded import Cluster
from dcp.spark import driver_view as lookout
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status, VbucketState
from tests.spark.test_stream import Query
from tests.spark.test_task import Reader, truth


@pytest.fixture(autouse=True)
def looks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "_FRESH", -1.0)


class Both:
    """A stream, and reads that go on from each other."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.query, self.reader = Query(cluster.url), Reader()
        self.end: dcp.Checkpoint | None = None

    def read(self) -> None:
        self.query.batch()
        plan = dcp.spark.plan(self.cluster.url, start=self.end)
        self.reader.read(plan)
        self.end = plan.end

    def are_right(self) -> bool:
        return self.query.reader.documents == truth(self.cluster) == self.reader.documents


@pytest.mark.parametrize("failover", [False, True])
def test_a_purge_that_sends_tasks_to_the_beginning_leaves_no_place_behind_it_to_go_back_to(failover: bool) -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        for key in "xky":
            cluster.upsert(key, b"old")
        both = Both(cluster)
        with both.query:
            both.read()
            # A quiet look: the state is whole here.
            both.read()
            cluster.set_lag(10)
            cluster.delete("x")
            cluster.upsert("k", b"new")
            cluster.upsert("z", b"1")
            assert cluster.purge() == 1
            both.read()
            assert both.are_right()
            assert both.query.reader.went_back_to == [(0, 0)]
            if failover:
                # The heir has the old versions, and has forgotten nothing.
                cluster.failover(0)
            cluster.upsert("w", b"1")
            for _ in range(3):
                both.read()
            assert both.are_right()


def test_a_purge_of_one_copy_leaves_no_place_behind_it_to_go_back_to_on_another() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        for key, value in (("x", b"0"), ("k", b"old"), ("y", b"0")):
            cluster.upsert(key, value)
        both = Both(cluster)
        with both.query:
            both.read()
            both.query.log()
            cluster.delete("x")
            cluster.upsert("z", b"1")
            with cluster._lock:
                # Nodes compact when each sees fit.
                assert cluster._bucket.active(0).purge() == 1
            cluster.set_lag(10)
            cluster.upsert("k", b"new")
            both.read()
            both.read()
            assert both.are_right()
            cluster.failover(0)
            both.read()
            cluster.upsert("w", b"1")
            for _ in range(3):
                both.read()
            assert both.are_right()


def test_a_query_that_spark_does_not_tell_where_it_is_keeps_a_wide_window() -> None:
    """Before 4.2, that is one that was started again."""
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        cluster.upsert("old", b"0")
        with Query(cluster.url, startingOffsets="latest") as query:
            cluster.upsert("one", b"1")
            query.ends = query.driver.latestOffset()
            query.batch()
            query.restart()
            cluster.upsert("k", b"A")
            query.ends = query.driver.latestOffset()
            cluster.upsert("k", b"B")
            cluster.snapshot()
            query.batch()
            cluster.failover(0, lose=1)
            for _ in range(3):
                query.ends = query.driver.latestOffset()
                query.batch()
            assert query.reader.documents[b"k"][0] == b"A"


def test_how_far_a_vbucket_is_says_its_owner_alone() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster:
        cluster.set_lag(1)
        for key, value in (("a", b"1"), ("k", b"kept"), ("b", b"1"), ("k", b"lost")):
            cluster.upsert(key, value)
        bucket = cluster._bucket
        with cluster._lock:
            # It takes over, and the map has yet to say so.
            heir = bucket.nodes[1].vbuckets[0]
            heir.state = VbucketState.ACTIVE
            heir.log = heir.log.begin(bucket.new_vbuuid(), heir.high_seqno)
        with dcp.connect(cluster.url) as client:
            assert client.high_seqnos() == {0: 4}


def test_now_is_a_place_of_the_newest_history(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(vbuckets=1, seed=1) as cluster:
        for number in range(50):
            cluster.upsert(f"old {number}", b"0")

        def asked_before_a_failover(access: Access, collection_id: int | None = None) -> dict[int, int]:
            found = questions.high_seqnos(access, collection_id)
            monkeypatch.undo()
            monkeypatch.setattr(lookout, "_FRESH", -1.0)
            cluster.crash(0)
            cluster.recover(0, lose=10)
            return found

        monkeypatch.setattr(bounds, "high_seqnos", asked_before_a_failover)
        with Query(cluster.url, startingOffsets="latest") as query:
            for number in range(15):
                cluster.upsert(f"new {number}", b"1")
            query.batch()
            assert {key.decode() for key in query.reader.documents} == {f"new {number}" for number in range(15)}


def test_a_node_that_knows_no_manifest_yet_is_no_reason_to_read_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_collection("_default", "x")
    with Query(cluster.url, collections="x", failOnDataLoss="false") as query:
        query.batch()
        cluster.upsert("k", b"1", collection="_default.x")
        query.log()
        shares = query.driver.partitions(query.offset, query.ends or {})
        answered = Access.ask

        def warming_up(access: Access, name: str, **parts: Any) -> Frame:
            answer = answered(access, name, **parts)
            told = name == "get_collections_manifest"
            return replace(answer, status=Status.NO_COLLECTIONS_MANIFEST, value=b"") if told else answer

        with monkeypatch.context() as patched:
            patched.setattr(Access, "ask", warming_up)
            with pytest.raises(dcp.TransportError, match="has yet to learn which collections there are: try again"):
                query.take(shares)
        query.take(shares)
        assert query.reader.documents == truth(cluster, "_default.x")


def test_a_node_that_knows_an_older_manifest_is_no_reason_to_leave_a_collection_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_collection("_default", "x")
    with dcp.connect(cluster.url) as client:
        older = client._access.ask("get_collections_manifest").value
    cluster.create_collection("_default", "y")
    answered = Access.ask
    times = 0

    def behind(access: Access, name: str, **parts: Any) -> Frame:
        nonlocal times
        answer = answered(access, name, **parts)
        if name != "get_collections_manifest" or times == 0:
            return answer
        times -= 1
        return replace(answer, value=older)

    with Query(cluster.url, collections="x,y", failOnDataLoss="false") as query:
        cluster.upsert("k", b"1", collection="_default.y")
        query.log()
        monkeypatch.setattr(Access, "ask", behind)
        # The driver asks again.
        times = 2
        shares = query.driver.partitions(query.offset, query.ends or {})
        assert times == 0
        times = 1
        with pytest.raises(dcp.TransportError, match="has manifest 1, and there is 2: try again"):
            query.take(shares)
        # While Spark waits for something new, it does so, although there is some in the other one.
        cluster.upsert("new", b"1", collection="_default.x")
        times = 1
        assert query.driver.latestOffset(query.ends) == query.ends
        assert query.driver.latestOffset(query.ends) != query.ends
        query.take(shares)
        assert query.reader.documents == truth(cluster, "_default.y")
