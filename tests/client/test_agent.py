"""The access to one bucket: which map it believes, whom it asks, and what its connections request."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

import dcp
from dcp.client.agent import Agent, MapRefresher
from dcp.cluster_map import ClusterMap
from dcp.embedded import Cluster
from dcp.session.refusals import GET_MAP, SELECT
from dcp.wire.memcached import Status


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster:
        yield cluster


@pytest.fixture
def agent(cluster: Cluster) -> Iterator[Agent]:
    with dcp.connect(cluster.url) as client:
        yield client._agent


def config(agent: Agent, **other: Any) -> dict[str, Any]:
    """Return the map of a node as JSON, with other members."""
    found: dict[str, Any] = agent.ask("get_cluster_config").body()
    return found | other


# ------------------------------------------------------------------ the map


def test_of_two_maps_the_newer_one_counts_whoever_sends_it(agent: Agent, cluster: Cluster) -> None:
    before = agent.map
    agent.learn_map(config(agent, rev=before.revision + 2), cluster.addresses[1])
    newest = agent.map
    assert (newest.epoch, newest.revision) == (before.epoch, before.revision + 2)
    for revision in (before.revision, before.revision + 1, before.revision + 2):
        agent.learn_map(config(agent, rev=revision), cluster.addresses[0])
        assert agent.map is newest


@dataclass(frozen=True)
class Overtaken(ClusterMap):
    """A map before which another one is learned, between the comparison and the replacement."""

    agent: Any = None
    other: Any = None

    def newer_than(self, other: ClusterMap) -> bool:
        found = super().newer_than(other)
        if self.agent.map is not self.other and self.other.newer_than(self.agent.map):
            self.agent._replace_map(self.other)
        return found


@pytest.mark.parametrize(("one", "other"), [(2, 1), (1, 2)])
def test_a_map_that_is_overtaken_by_another_is_compared_with_that(agent: Agent, one: int, other: int) -> None:
    before = agent.map
    fields = {name: getattr(before, name) for name in before.__dataclass_fields__}
    late = Overtaken(
        **fields | {"revision": before.revision + one},
        agent=agent,
        other=replace(before, revision=before.revision + other),
    )
    agent._replace_map(late)
    assert agent.map.revision == before.revision + 2


@pytest.mark.parametrize("pushed", [None, [], "text", {}, {"name": "default"}])
def test_what_is_no_map_of_a_bucket_is_ignored(agent: Agent, pushed: object) -> None:
    before = agent.map
    agent.learn_map(pushed, "127.0.0.1:1")
    assert agent.map is before


def test_a_map_without_hosts_is_of_the_node_that_sent_it(agent: Agent) -> None:
    for rev, (node, host) in enumerate((("[::1]:11210", "::1"), ("one.example:11210", "one.example")), 1000):
        pushed = config(agent, rev=rev, nodesExt=[{"services": {"kv": 11210}}])
        pushed["vBucketServerMap"] |= {"serverList": ["$HOST:11210"], "vBucketMap": [[0]] * 4}
        agent.learn_map(pushed, node)
        assert [each.address.host for each in agent.map.nodes] == [host]


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"name": "another"}, "expected the map of bucket 'default', found that of 'another'"),
        ({"uuid": "abc"}, "expected bucket 'default' with the uuid .*, found abc: the bucket was deleted"),
        ({"vBucketServerMap": {}}, "cluster map"),
    ],
)
def test_a_map_that_does_not_serve_the_bucket_is_a_refusal_that_may_pass(
    agent: Agent, other: dict[str, Any], problem: str
) -> None:
    before = agent.map
    with pytest.raises(dcp.ServerError, match=problem) as caught:
        agent.learn_map(config(agent, **other), "one:11210")
    error = caught.value
    assert (error.node, error.step, error.retriable) == ("one:11210", GET_MAP, True)
    assert agent.map is before


def test_a_newer_map_of_a_recreated_bucket_is_an_error_for_good(agent: Agent) -> None:
    with pytest.raises(dcp.ServerError, match="bucket 'default' was deleted and recreated: no position") as caught:
        agent.learn_map(config(agent, uuid="abc", rev=agent.map.revision + 1), "one:11210")
    assert (caught.value.step, caught.value.retriable) == ("", False)


# ------------------------------------------------------------------ whom it asks


def test_another_node_is_asked_when_the_first_is_gone(agent: Agent, cluster: Cluster) -> None:
    assert agent.command_node == cluster.addresses[0]
    other = cluster.addresses[1]
    cluster.crash(0)
    assert agent.ask("version").status == 0
    assert agent.command_node == other


def test_nodes_of_the_map_are_asked_before_those_of_the_url_and_one_that_left_last(cluster: Cluster) -> None:
    first, second = cluster.addresses
    with dcp.connect(cluster.url.replace(f"{first},{second}", second)) as client:
        assert client._agent.command_node == second
        client.refresh_map()
        assert client._agent.command_node == first


def test_of_all_refusals_the_one_that_does_not_pass_is_raised(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        client.close_idle()
        with (
            cluster.fault("refuse", command=SELECT, status=Status.ETMPFAIL, node=0),
            cluster.fault("refuse", command=SELECT, status=Status.EINVAL, node=1),
            pytest.raises(dcp.ServerError) as caught,
        ):
            client.refresh_map()
        assert caught.value.status == Status.EINVAL
        addresses = cluster.addresses
        for node in (0, 1):
            cluster.crash(node)
        with pytest.raises(dcp.TransportError, match="no node can be reached: ") as unreached:
            client.refresh_map()
        # What is the same of both is said once.
        assert f"{addresses[0]}, {addresses[1]}: " in str(unreached.value)


def test_a_warning_is_logged_once(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    for text in ("one", "other", "one"):
        agent.warn_once(text)
    assert caplog.messages == ["one", "other"]


def test_a_node_without_a_port_for_these_connections_is_named(agent: Agent) -> None:
    [node, _] = agent.map.nodes
    closed = replace(node, address=node.address._replace(port=None))
    with pytest.raises(dcp.TransportError, match="no port without TLS in the cluster map"):
        agent.dialer(closed)


# ------------------------------------------------------------------ what is requested


@pytest.mark.parametrize(("interval", "seconds"), [("100ms", 1), ("1600ms", 2), ("2m", 120)])
def test_noops_are_requested_in_whole_seconds(cluster: Cluster, interval: str, seconds: int) -> None:
    with dcp.connect(cluster.url, noop_interval=interval, compression="off", dcp_buffer_size="1mb") as client:
        settings = [client._agent.connection_settings() for _ in range(2)]
    # A node closes the older one of two connections with the same name.
    assert [each.name.rpartition(" ")[2] for each in settings] == ["1", "2"]
    assert (settings[0].noop_interval, settings[0].snappy, settings[0].window) == (seconds, False, 1 << 20)
    assert settings[0].demands is settings[1].demands


# ------------------------------------------------------------------ fetches that a stream schedules


def due_in(maps: MapRefresher) -> float | None:
    return None if maps.due is None else maps.due - time.monotonic()


def test_a_map_is_fetched_at_the_earliest_time_that_was_asked_for(agent: Agent) -> None:
    maps = MapRefresher(agent, delay=100.0)
    maps.poll()
    assert due_in(maps) is None
    maps.request(within=50.0)
    maps.request()
    # Too early.
    maps.refresh_if_due()
    left = due_in(maps)
    assert left is not None
    assert 0 < left <= 50
    maps.request(within=0.0)
    before = agent.connections_opened
    agent.close_idle()
    maps.refresh_if_due()
    assert (due_in(maps), agent.connections_opened) == (None, before + 1)
    # Nodes that push no maps are asked every few seconds.
    maps.polls = True
    maps.poll()
    left = due_in(maps)
    assert left is not None
    assert 0 < left <= agent.options.config_poll_interval


def test_a_pushed_map_is_adopted_and_the_news_of_one_makes_it_be_fetched(agent: Agent) -> None:
    maps, before = MapRefresher(agent), agent.map.revision
    maps.map_changed(config(agent, rev=before + 1), "one:11210")
    assert (agent.map.revision, maps.due) == (before + 1, None)
    maps.map_changed(None, "one:11210")
    assert maps.due is not None


def test_a_fetch_that_fails_is_repeated_after_a_while(
    agent: Agent, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    maps = MapRefresher(agent, retry_delay=100.0)
    agent.close_idle()
    with cluster.fault("refuse", command=SELECT), caplog.at_level(logging.WARNING):
        maps.request(within=0.0)
        maps.refresh_if_due()
    left = due_in(maps)
    assert left is not None
    assert 50 < left <= 100
    [message] = caplog.messages
    assert message.startswith("cluster map not refreshed: ")
