"""Command connections: one for each node is kept, replaced when it is lost, and closed in time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import dcp
from dcp.client.commands import CommandConnection, CommandPool
from dcp.client.connection_string import HostPort
from dcp.client.transport import connect
from dcp.embedded import Cluster
from dcp.session.handshake import ConnectionSettings
from tests.client.consumer import PATIENCE, hasty_threads
from tests.waiting import until


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=8, replicas=1) as cluster:
        cluster.load(50)
        yield cluster


def connections(cluster: Cluster) -> list[int]:
    return [traffic.connections for traffic in cluster.stats().values()]


def streams(cluster: Cluster) -> list[int]:
    return [traffic.streams for traffic in cluster.stats().values()]


def test_a_node_is_asked_over_the_same_connection_again(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        client.high_seqnos()
        before = set(cluster._server.links)
        assert connections(cluster) == [1, 1]
        client.refresh_map()
        client.collections()
        client.high_seqnos()
        client.failover_logs()
        assert set(cluster._server.links) == before


def test_a_connection_that_broke_meanwhile_is_replaced(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        before = client.high_seqnos()
        lost = set(cluster._server.links)
        # Its end is what the client meets with the next question.
        with cluster.fault("partition"):
            pass
        assert client.high_seqnos() == before
        until(lambda: connections(cluster) == [1, 1])
        assert not lost & set(cluster._server.links)


def test_a_connection_that_something_between_swallows_is_replaced(cluster: Cluster) -> None:
    with dcp.connect(cluster.url, bootstrap_timeout="2s") as client:
        before = client.high_seqnos()
        caller = client._agent._commands._idle[client._agent._map_source]
        far, near = socket.socketpair()
        with far, caller._socket:
            caller._socket = near
            assert client.high_seqnos() == before
        with cluster.fault("pause"), pytest.raises(dcp.TimeoutError, match="no answer within"):
            client._agent.ask_node(client.map.nodes[1], "version", [{}])


@pytest.mark.parametrize(("idle_timeout", "opened"), [(30.0, 1), (-1.0, 2)])
def test_a_connection_that_was_idle_for_too_long_is_not_used_again(
    cluster: Cluster, idle_timeout: float, opened: int
) -> None:
    with dcp.connect(cluster.url) as client:
        addresses = []

        def open_connection(address: HostPort) -> CommandConnection:
            addresses.append(address)
            return client.open_command_connection(client.map.nodes[0])

        pool = CommandPool(open_connection, idle_timeout)
        for _ in range(2):
            assert pool.ask(client._agent._map_source, lambda connection: connection.ask("version")).status == 0
        pool.close()
        assert len(addresses) == opened


def test_no_time_is_left_after_the_timeout() -> None:
    far, near = socket.socketpair()
    with far, pytest.raises(dcp.TimeoutError, match="no answer within 0 s"):
        CommandConnection(near, ConnectionSettings("test", "default"), HostPort("localhost", 11210), 0.0)


def test_statistics_come_one_by_one(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        assert client.purge_seqnos() == dict.fromkeys(range(8), 0)
        for number in range(50):
            cluster.delete(f"key-{number:010}")
        cluster.upsert("last", b"1")
        cluster.purge()
        assert sum(client.purge_seqnos().values()) > 0
        (node, _) = client.map.nodes
        assert client._agent.stats_of(node, "no such group") == {}
        assert "version" in client._agent.stats_of(node, "")


def test_of_two_connections_to_a_node_one_is_kept(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client, hasty_threads(), ThreadPoolExecutor(8) as pool:
        expected = client.high_seqnos()
        assert all(found == expected for found in pool.map(lambda _: client.high_seqnos(), range(40)))
        until(lambda: connections(cluster) == [1, 1])


def test_no_connection_is_kept_to_a_node_that_left(cluster: Cluster) -> None:
    node = cluster.rebalance_in()
    with dcp.connect(cluster.url) as client:
        client.high_seqnos()
        assert connections(cluster) == [1, 1, 1]
        cluster.rebalance_out(node)
        client.refresh_map()
        until(lambda: connections(cluster)[:2] == [1, 1] and sum(connections(cluster)) == 2)


def test_none_is_kept_while_a_stream_goes_on(cluster: Cluster) -> None:
    with dcp.connect(cluster.url, stats_interval=0) as client:
        client.high_seqnos()
        with client.stream():
            until(lambda: connections(cluster) == [1, 1] and streams(cluster) == [4, 4])
            assert "dcp monitor" not in {thread.name for thread in threading.enumerate()}
            client.high_seqnos()
            assert connections(cluster) == [2, 2]
            client.close_idle()
            until(lambda: connections(cluster) == [1, 1] and streams(cluster) == [4, 4])
    until(lambda: connections(cluster) == [0, 0])


def test_a_closed_client_asks_nobody(cluster: Cluster) -> None:
    client = dcp.connect(cluster.url)
    client.close()
    with pytest.raises(dcp.LocalProtocolError, match="the client is closed: connect again"):
        client.high_seqnos()
    until(lambda: connections(cluster) == [0, 0])


def test_small_requests_are_not_held_back_and_a_peer_that_is_gone_is_noticed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        connect("127.0.0.1", listener.getsockname()[1], PATIENCE, None) as sock,
    ):
        assert isinstance(sock, socket.socket)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
