"""Changes of nodes and data, as consumers on real sockets see them."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable

import pytest

from dcp.embedded import Cluster
from dcp.embedded.server import _LONGEST_SLEEP
from dcp.errors import LocalProtocolError
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import MarkerFlag, StreamEnd
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from tests.embedded.consumer import Consumer, frames_named, items
from tests.waiting import until


def filled(count: int = 30, *, nodes: int = 2, vbuckets: int = 2, replicas: int = 1, record: bool = False) -> Cluster:
    cluster = Cluster(nodes=nodes, vbuckets=vbuckets, replicas=replicas, record_versions=record, seed=1)
    for n in range(count):
        cluster.upsert(f"key-{n}", b"%d" % n)
    return cluster


def vbuuid(consumer: Consumer, vbucket: int) -> int:
    log = FAILOVER_LOG.decode(consumer.request("get_failover_log", vbucket).value, {})
    return int(next(iter(log))[0])


def test_a_failover_rolls_back_consumers_of_lost_writes() -> None:
    with filled() as cluster, Consumer(cluster) as consumer:
        high = cluster._bucket.active(0).high_seqno
        uuid = vbuuid(consumer, 0)
        consumer.stream(0)
        consumer.until("", seqno=high)
        cluster.failover(0, lose=3)
        assert consumer.remaining() == []
        assert len(cluster.addresses) == 1
        assert len(cluster.truth()) == 27
        with Consumer(cluster) as another:
            assert another.stream(0, high, vbuuid=uuid).fields == {"rollback_seqno": high - 3}
            assert another.stream(0, high - 3, vbuuid=uuid).status == Status.SUCCESS


def test_two_failovers_add_two_entries_to_the_failover_log() -> None:
    with filled(nodes=3, replicas=2, vbuckets=1) as cluster, Consumer(cluster) as consumer:
        uuid = vbuuid(consumer, 0)
        cluster.failover(0, lose=2)
        cluster.upsert("other", b"")
        cluster.failover(1, lose=5)
        with Consumer(cluster) as last:
            assert last.stream(0, 30, vbuuid=uuid).fields == {"rollback_seqno": 24}
            assert len(FAILOVER_LOG.decode(last.request("get_failover_log").value, {})) == 2


def test_no_other_program_gets_the_port_of_a_crashed_node() -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        host, _, port = cluster.addresses[1].rpartition(":")
        cluster.crash(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), 5)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
        cluster.recover(1)
        socket.create_connection((host, int(port)), 5).close()


def test_a_crashed_node_recovers_at_its_address_with_a_new_history() -> None:
    with filled() as cluster, Consumer(cluster, 1) as consumer:
        address = cluster.addresses[1]
        uuid = vbuuid(consumer, 1)
        high = cluster._bucket.active(1).high_seqno
        cluster.crash(1)
        assert consumer.remaining() == []
        host, _, port = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
        with pytest.raises(LocalProtocolError, match="no node that is up"):
            [cluster.upsert(f"key-{n}", b"") for n in range(10)]
        cluster.recover(1, lose=1)
        assert cluster.addresses[1] == address
        with Consumer(cluster, 1) as again:
            assert vbuuid(again, 1) != uuid
            assert again.stream(1, high, vbuuid=uuid).fields == {"rollback_seqno": high - 1}


def test_a_restarted_node_disconnects_its_clients_and_reads_from_disk() -> None:
    with filled(nodes=1, vbuckets=1, replicas=0) as cluster:
        with Consumer(cluster) as consumer:
            consumer.stream(0)
            consumer.until("", seqno=30)
            uuid = vbuuid(consumer, 0)
            cluster.restart(0)
            consumer.remaining()
        with Consumer(cluster) as again:
            assert vbuuid(again, 0) == uuid
            again.stream(0)
            (marker,) = frames_named(again.until("", seqno=30), "snapshot_marker")
    assert MarkerFlag.DISK in MarkerFlag(int(marker.fields["flags"]))


def test_a_stream_ends_when_its_vbucket_moves() -> None:
    with filled() as cluster, Consumer(cluster) as old, Consumer(cluster, 1) as new:
        high = cluster._bucket.active(0).high_seqno
        uuid = vbuuid(old, 0)
        old.stream(0)
        old.until("", seqno=high)
        cluster.move(0, 1)
        cluster.move(0, 0)
        assert old.until("stream_end")[-1].fields["reason"] == StreamEnd.STATE_CHANGED
        cluster.move(0, 1)
        assert vbuuid(new, 0) == uuid
        assert new.stream(0, high, vbuuid=uuid).status == Status.SUCCESS


@pytest.mark.parametrize("replicas", [0, 1])
def test_nodes_join_and_leave(replicas: int) -> None:
    with filled(replicas=replicas, vbuckets=12) as cluster:
        before = cluster.truth()
        assert cluster.rebalance_in() == 2
        with Consumer(cluster, 2) as consumer:
            served = [n for n in range(12) if consumer.stream(n).status == Status.SUCCESS]
            assert len(served) == 4 * (1 + replicas)
            cluster.rebalance_out(2)
            ended = {consumer.until("stream_end")[-1].vbucket for _ in served}
            assert ended == set(served)
        cluster.rebalance_out(0)
        assert cluster.truth() == before
        assert len(cluster.addresses) == 1


def test_a_promoted_replica_lacks_its_lag() -> None:
    with filled(0) as cluster:
        cluster.set_lag(1)
        for n in range(30):
            cluster.upsert(f"key-{n}", b"")
        cluster.promote(0, 1)
        assert len(cluster.truth()) == 29


def test_items_from_before_a_snapshot_are_read_from_disk() -> None:
    with filled(vbuckets=1) as cluster, Consumer(cluster) as consumer:
        for expected in (MarkerFlag.MEMORY, MarkerFlag.DISK):
            assert consumer.stream(0, end=30).status == Status.SUCCESS
            (marker,) = frames_named(consumer.until("stream_end"), "snapshot_marker")
            assert int(marker.fields["flags"]) & expected
            cluster.snapshot()


def test_a_purge_rolls_back_consumers_that_may_have_missed_deletions() -> None:
    with filled(vbuckets=1) as cluster, Consumer(cluster) as consumer:
        uuid = vbuuid(consumer, 0)
        cluster.delete("key-3")
        cluster.upsert("last", b"")
        assert cluster.purge(before=1) == 0
        assert consumer.stream(0, 5, end=5, vbuuid=uuid).status == Status.SUCCESS
        assert cluster.purge() == 1
        consumer.until("stream_end")
        assert consumer.stream(0, 5, vbuuid=uuid).fields == {"rollback_seqno": 0}


def test_the_pager_sends_expirations() -> None:
    with Cluster(vbuckets=1) as cluster, Consumer(cluster) as consumer:
        cluster.upsert("old", b"", expiry=1)
        cluster.upsert("new", b"", expiry=1 << 31)
        consumer.stream(0)
        consumer.until("", seqno=2)
        assert cluster.run_pager() == 1
        assert items(consumer.until("deletion", "expiration"))[-1] == 3
        assert set(cluster.truth()) == {b"new"}


def test_recorded_versions_include_lost_ones() -> None:
    with filled(1, record=True, vbuckets=1) as cluster:
        cluster.upsert("key-0", b"lost")
        cluster.failover(0, lose=1)
        cluster.upsert("key-0", b"new")
        cluster.load(2)
        versions = cluster.recorded_versions()[b"key-0"]
        assert [(v.value, v.seqno) for v in versions] == [(b"0", 1), (b"lost", 2), (b"new", 2)]
        assert versions[0].vbuuid == versions[1].vbuuid != versions[2].vbuuid
        assert cluster.truth()[b"key-0"].value == b"new"
        assert len(cluster.recorded_versions()) == 3


def test_versions_are_recorded_on_request_only() -> None:
    with Cluster() as cluster, pytest.raises(LocalProtocolError, match=r"Cluster\(record_versions=True\)"):
        cluster.recorded_versions()


def test_received_bytes_are_counted() -> None:
    with Cluster() as cluster:
        host, _, port = cluster.addresses[0].rpartition(":")
        noop = encode(Frame("noop", Magic.REQUEST))
        with socket.create_connection((host, int(port))) as client:
            client.sendall(noop)
            assert client.recv(1)
            (node,) = cluster.stats().values()
            assert node.bytes_received == len(noop)


def test_traffic_of_nodes_is_counted() -> None:
    with filled(30) as cluster:
        highs = [cluster._bucket.active(n).high_seqno for n in range(2)]
        with Consumer(cluster) as consumer:
            consumer.stream(0)
            consumer.until("", seqno=highs[0])
            busy, idle = cluster.stats().values()
            assert (busy.connections, busy.streams, busy.items) == (1, 1, highs[0])
            assert busy.bytes_sent >= consumer.received > 0
            assert busy.bytes_received > 0
            assert idle == (0, 0, 0, 0, 0)
        while cluster.stats()[0].connections:
            cluster.upsert("other", b"")
        assert cluster.stats()[0][1:3] == (0, highs[0])


def test_each_item_is_counted_once_however_often_its_stream_writes() -> None:
    with Cluster(vbuckets=1) as cluster, Consumer(cluster) as consumer:
        cluster.load(300, value_size=10_000)
        consumer.stream(0)
        consumer.until("", seqno=300)
        assert cluster.stats()[0].items == 300


def test_a_link_that_a_fault_pauses_does_not_keep_its_node_busy() -> None:
    with Cluster(vbuckets=1) as cluster, Consumer(cluster) as consumer:
        consumer.stream(0)
        (link,) = cluster._server.links
        with cluster.fault("pause"), cluster._changing():
            cluster.upsert("key", b"")
            assert not link.write(time.monotonic())
        assert items(consumer.until("mutation")) == [1]


def writes(cluster: Cluster, consumer: Consumer) -> Callable[[], object]:
    consumer.stream(0)
    return lambda: cluster.upsert("key", b"")


def clears_a_fault(cluster: Cluster, consumer: Consumer) -> Callable[[], object]:
    cluster.upsert("key", b"")
    fault = cluster.fault("silent")
    consumer.stream(0)
    return fault.clear


@pytest.mark.parametrize("prepare", [writes, clears_a_fault])
def test_a_change_wakes_the_nodes(prepare: Callable[[Cluster, Consumer], Callable[[], object]]) -> None:
    def is_sent_at_once() -> bool:
        with Cluster(vbuckets=1) as cluster, Consumer(cluster) as consumer:
            change = prepare(cluster, consumer)
            begun = time.monotonic()
            # After this turn, the nodes sleep until something wakes them, or for the longest sleep.
            consumer.request("get_failover_log")
            change()
            consumer.until("mutation")
            return time.monotonic() - begun < _LONGEST_SLEEP

    # Nothing else but a machine that stood still for seconds, three times, delays what is sent at once.
    assert any(is_sent_at_once() for _ in range(3))


def test_a_client_that_is_gone_is_dropped_although_its_answers_were_not_sent() -> None:
    with Cluster(vbuckets=1) as cluster, Consumer(cluster) as consumer:
        cluster.load(1, value_size=1 << 20)
        (key,) = cluster.truth()
        consumer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # The node reads no more requests than it can answer.
        for _ in range(100):
            consumer.socket.sendall(encode(Frame("get", Magic.REQUEST, key=key)))
        (link,) = cluster._server.links
        until(lambda: link.connection.backlogged and link.pending)
        # Without a last message: the connection is reset.
        consumer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        consumer.socket.close()
        until(lambda: not cluster.stats()[0].connections)
