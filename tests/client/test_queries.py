"""Questions of a client besides streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

import dcp
from dcp.client.agent import Agent
from dcp.client.queries import Heads, KnownLogs, ask_each, heads
from dcp.cluster_map import ClusterMap, Node
from dcp.embedded import Cluster
from dcp.embedded.store import StoredItem
from dcp.position import StreamPosition
from dcp.wire.frame import Frame
from dcp.wire.memcached import VbucketState


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=8) as cluster:
        cluster.load(50)
        cluster.create_scope("shop")
        cluster.create_collection("shop", "order")
        cluster.upsert("one", b"1", collection="shop.order")
        yield cluster


def test_collections_have_their_paths(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        assert client.collections() == {0: "_default._default", 9: "shop.order"}


def test_a_node_that_has_not_loaded_its_collections_is_not_one_without(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        with (
            cluster.fault("refuse", command="get_collections_manifest", status="NO_COLLECTIONS_MANIFEST"),
            pytest.raises(dcp.TransportError, match="collections manifest not loaded yet"),
        ):
            client.collections()
        assert len(client.collections()) == 2


def test_high_seqnos_are_those_of_the_bucket_or_of_a_collection(cluster: Cluster) -> None:
    (one,) = cluster.truth("shop.order").values()
    with dcp.connect(cluster.url) as client:
        assert list(client.high_seqnos()) == list(range(8))
        assert client.high_seqnos()[one.vbucket] == client.high_seqnos(9)[one.vbucket] == one.seqno
        assert client.high_seqnos(0)[one.vbucket] < one.seqno
        with pytest.raises(dcp.ServerError, match="the collection with the id 77 was dropped, or is not readable"):
            client.high_seqnos(77)


def test_high_seqnos_of_several_collections_are_the_highest_of_each(cluster: Cluster) -> None:
    cluster.create_collection("shop", "bill")
    for number in range(20):
        cluster.upsert(f"bill {number}", b"1", collection="shop.bill")
    expected: dict[int, int] = {}
    for path in ("shop.order", "shop.bill", "_default._default"):
        for document in cluster.truth(path).values():
            expected[document.vbucket] = max(document.seqno, expected.get(document.vbucket, 0))
    with dcp.connect(cluster.url) as client:
        assert client.high_seqnos([10, 0, 9]) == expected
        assert client.high_seqnos([]) == {}


def test_nodes_are_asked_at_the_same_time() -> None:
    with Cluster(nodes=4) as cluster, dcp.connect(cluster.url) as client:
        # Passes only if all of them wait at the same time.
        barrier = threading.Barrier(4)
        nodes = client.map.nodes
        found = ask_each({node: partial(barrier.wait, 10.0) for node in nodes})
        assert sorted(found.values()) == [0, 1, 2, 3]
        assert [*found] == [*nodes]
        assert ask_each({}) == {}


def test_histories_are_those_that_a_stream_is_told(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        stream = client.stream(end="now")
        for _ in stream:
            pass
        told = {position.vbucket: position.failover_log for position in stream.checkpoint}
        assert client.failover_logs() == told
        assert client.failover_logs([5, 2]) == {2: told[2], 5: told[5]}


def test_a_node_is_asked_on_a_connection_of_its_own(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        for node in client.map.nodes:
            with (
                client.open_command_connection(node) as caller,
                client.open_command_connection(node, stream=True) as opened,
            ):
                assert caller.ask("version").status == 0
                assert caller.agreement.controls == frozenset()
                assert "enable_noop" in opened.agreement.controls


def test_what_moved_since_the_client_connected_is_there(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        before = client.high_seqnos()
        cluster.rebalance_in()
        assert client.high_seqnos() == before
        positions = client.positions("now")
        assert {here.vbucket: here.seqno for here in positions} == before
        assert all(here.vbuuid for here in positions if here.seqno)
        assert client.positions(positions, vbuckets=[3]) == positions


def test_the_position_of_an_empty_vbucket_is_its_beginning() -> None:
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        cluster.upsert("key", b"1")
        (change,) = cluster.truth().values()
        empty, changed = sorted(client.positions("now"), key=lambda here: here.seqno)
    assert empty == StreamPosition(1 - change.vbucket)
    assert (changed.vbucket, changed.seqno) == (change.vbucket, 1)
    assert changed.vbuuid


def test_a_node_that_owns_nothing_and_is_down_is_not_asked() -> None:
    with Cluster(nodes=2, vbuckets=1) as cluster:
        cluster.load(20)
        (owner,) = {cluster.owner(f"key-{number:010}") for number in range(20)}
        with dcp.connect(cluster.url, kv_connect_timeout=5) as client, cluster.fault("partition", node=1 - owner):
            assert client.high_seqnos() == {0: 20}
            assert client.positions("now").by_vbucket()[0].seqno == 20
            with client.stream(end="now") as stream:
                assert sum(map(len, stream)) == 20


@pytest.mark.parametrize("ahead", [False, True])
def test_of_two_nodes_that_claim_a_vbucket_the_owner_in_the_map_counts(ahead: bool) -> None:
    with Cluster(nodes=2, vbuckets=2, replicas=1) as cluster:
        bucket = cluster._bucket
        key = next(key for key in (b"%d" % n for n in range(99)) if bucket.vbucket_of(key) == 0)
        cluster.set_lag(1)
        for value in (b"1", b"2"):
            cluster.upsert(key, value)
        with cluster._lock:
            owner = cluster.owner(key)
            # The replica is promoted, and the map does not show it yet.
            bucket.nodes[1 - owner].vbuckets[0].state = VbucketState.ACTIVE
            assert bucket.nodes[1 - owner].vbuckets[0].high_seqno == 1
            for seqno in (2, 3, 4) if ahead else ():
                bucket.nodes[1 - owner].vbuckets[0].put(StoredItem("mutation", seqno, b"other"))
        with dcp.connect(cluster.url) as client:
            assert client.high_seqnos() == {0: 2, 1: 0}


class Counting:
    """The questions of a client, and the vbuckets whose failover logs were asked for."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.asked: list[int] = []

    @property
    def map(self) -> ClusterMap:
        return self._agent.map

    @property
    def connections_opened(self) -> int:
        return self._agent.connections_opened

    def refresh_map(self) -> ClusterMap:
        return self._agent.refresh_map()

    def ask_node(self, node: Node, name: str, questions: Sequence[Mapping[str, Any]]) -> list[Frame]:
        if name == "kv_get_failover_log":
            self.asked += [question["vbucket"] for question in questions]
        return self._agent.ask_node(node, name, questions)


class FailoverBetween(Counting):
    """The questions of a client, with a failover before the first one for failover logs."""

    def __init__(self, agent: Agent, failover: Callable[[], object]) -> None:
        super().__init__(agent)
        self._failover = [failover]

    def ask_node(self, node: Node, name: str, questions: Sequence[Mapping[str, Any]]) -> list[Frame]:
        if name == "kv_get_failover_log" and self._failover:
            self._failover.pop()()
        return super().ask_node(node, name, questions)


def test_a_history_that_begins_between_two_reads_is_not_paired_with_a_seqno_above_its_begin() -> None:
    """Only one of the vbuckets loses a change."""
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        key = next(key for key in (b"%d" % n for n in range(99)) if cluster._bucket.vbucket_of(key) == 0)
        for value in (b"1", b"2"):
            cluster.upsert(key, value)

        def failover() -> None:
            cluster.crash(0)
            cluster.recover(0, lose=1)

        found = heads(FailoverBetween(client._agent, failover), [0, 1])  # type: ignore[arg-type]
        assert found.high_seqnos == {0: 1, 1: 0}
        assert [found.failover_logs[vbucket].newest.seqno for vbucket in (0, 1)] == [1, 0]


def test_a_failover_log_is_asked_for_again_only_where_it_may_have_changed() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(20)
        seconds = 0.0
        agent, known = Counting(client._agent), KnownLogs(lambda: seconds)
        everything = list(range(4))

        def asked() -> list[int]:
            agent.asked.clear()
            found = heads(agent, everything, known=known, max_age=10.0)  # type: ignore[arg-type]
            # Each log is the one that the node sends now.
            assert found == Heads(client.high_seqnos(), client.failover_logs())
            return sorted(agent.asked)

        def owner(vbucket: int) -> int:
            return [str(node) for node in client.map.nodes].index(str(client.map.owner(vbucket)))

        assert asked() == everything
        assert asked() == []
        cluster.upsert("key", b"1")
        changed = cluster.truth()[b"key"].vbucket
        assert asked() == [changed]
        # After the loss of a change and another one, the seqno is the same.
        cluster.crash(owner(changed))
        cluster.recover(owner(changed), lose=1)
        cluster.upsert("key", b"2")
        assert asked() == everything
        cluster.restart(0)
        assert asked() == everything
        cluster.move(0, 1 - owner(0))
        assert asked() == everything
        seconds = 9.0
        assert asked() == []
        seconds = 10.0
        assert asked() == everything
