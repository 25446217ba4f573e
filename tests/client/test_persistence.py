"""`persisted_only`: rows are delivered only when no failover can take them back."""

from __future__ import annotations

import random
import socket
import struct
import threading
from typing import NoReturn

import pytest

import dcp
from dcp._codec import LazyPosition
from dcp.client.follow.persistence import Persistence, VbucketHistory, needed_seqnos
from dcp.client.queries import persisted_seqno
from dcp.cluster_map import ClusterMap, Node
from dcp.embedded import Cluster
from dcp.position import Progress, StreamPosition
from dcp.wire.memcached import Status
from tests.client.consumer import PATIENCE, Consumer, catch_up, truth
from tests.client.hostile import HostileNode, marker, mutation
from tests.client.test_linger import HOUR
from tests.waiting import until


def test_what_is_on_all_disks_comes() -> None:
    with Cluster(nodes=3, vbuckets=16, replicas=2) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(2000)
        consumer = Consumer()
        for batch in client.stream(end="now", persisted_only=True):
            consumer.take(batch)
        assert consumer.state() == truth(cluster)


@pytest.mark.parametrize("slow", [0, 1])
def test_what_one_copy_has_in_memory_only_waits_for_it(slow: int) -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        consumer = Consumer()
        with client.stream(persisted_only=True) as stream:
            cluster.load(50)
            catch_up(stream, consumer, cluster)
            before = stream.checkpoint
            cluster.set_persistence(slow, False)
            cluster.upsert("late", b"1")
            with pytest.raises(TimeoutError):
                stream.next(0.5)
            assert stream.checkpoint == before
            cluster.set_persistence(slow, True)
            catch_up(stream, consumer, cluster)


def test_a_disk_that_never_catches_up_is_named() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.upsert("early", b"1")
        cluster.set_persistence(1, False)
        cluster.upsert("late", b"1")
        with client.stream(persisted_only=True, persisted_within=0.3) as stream:
            with pytest.raises(
                dcp.TransportError, match=f"vbucket 0: seqno 2 .* {cluster.addresses[1]} has 1"
            ) as found:
                stream.next(PATIENCE)
            assert found.value.retriable
            assert cluster.addresses[0] not in str(found.value)


def test_a_replica_that_is_gone_is_named() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        gone = cluster.addresses[1]
        cluster.upsert("one", b"1")
        cluster.crash(1)
        with (
            client.stream(persisted_only=True, persisted_within=0.3) as stream,
            pytest.raises(dcp.TransportError, match=f"{gone} does not report this history"),
        ):
            stream.next(PATIENCE)


def test_a_server_that_cannot_say_is_an_error() -> None:
    with Cluster(vbuckets=1, server_version="3.1") as cluster, dcp.connect(cluster.url) as client:
        cluster.upsert("one", b"1")
        with client.stream(persisted_only=True) as stream, pytest.raises(dcp.ServerError, match=r"requires 4\.0"):
            stream.next(PATIENCE)


def test_the_flow_control_window_bounds_what_waits() -> None:
    window = 64 << 10
    with (
        Cluster(nodes=2, vbuckets=4, replicas=1) as cluster,
        dcp.connect(cluster.url, dcp_buffer_size=window) as client,
    ):
        cluster.set_persistence(1, False)
        for n in range(500):
            cluster.upsert(f"key{n}", b"x" * 1000)
        consumer = Consumer()
        with client.stream(persisted_only=True, batch_rows=10) as stream:
            with pytest.raises(TimeoutError):
                stream.next(0.5)
            assert stream.counters.bytes <= 2 * (window + 2000)
            cluster.set_persistence(1, True)
            catch_up(stream, consumer, cluster)


def test_the_bytes_of_rows_that_a_rollback_drops_are_acknowledged() -> None:
    with (
        Cluster(nodes=2, vbuckets=1, replicas=1) as cluster,
        dcp.connect(cluster.url, dcp_buffer_size=2000) as client,
    ):
        cluster.set_persistence(1, False)
        for n in range(4):
            cluster.upsert(f"key{n}", b"x" * 500)
        # Each time one row arrives, waits to be persisted, and is dropped, while its connection stays open.
        ended = cluster.fault("end", after=1, times=4)
        rolled_back = cluster.fault("rollback", to="0,0,0", times=3)
        consumer = Consumer()
        with client.stream(persisted_only=True, batch_rows=1) as stream:
            until(lambda: ended.hits == 4 and rolled_back.hits == 3)
            cluster.set_persistence(1, True)
            catch_up(stream, consumer, cluster)


def test_vbuckets_of_a_connection_that_a_rollback_closes_are_streamed_again() -> None:
    with Cluster(nodes=2, vbuckets=6, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        owner = client.map.owner
        # The first is rolled back. Rows of the second are dropped with its rows, so the connection of all is closed.
        back, dropped, silent = (n for n in range(6) if owner(n) == owner(0))
        keys = {cluster._bucket.vbucket_of(key): key for key in (b"%d" % n for n in range(99))}
        consumer = Consumer()
        with client.stream(persisted_only=True, batch_rows=1) as stream:
            for vbucket in (back, dropped, silent):
                cluster.upsert(keys[vbucket], b"1")
            catch_up(stream, consumer, cluster)
            cluster.set_persistence(1, False)
            for vbucket in (back, dropped):
                cluster.upsert(keys[vbucket], b"2")
            until(lambda: stream.counters.rows == 5)
            rolled_back = cluster.fault("rollback", vbuckets=[back], to="0", times=1)
            cluster.fault("end", vbuckets=[back], times=1)
            cluster.upsert(keys[back], b"3")
            until(lambda: rolled_back.hits == 1)
            cluster.set_persistence(1, True)
            cluster.upsert(keys[silent], b"2")
            catch_up(stream, consumer, cluster)


HISTORY = VbucketHistory(3, 0xA)


class Unanswered:
    """The only batch that waits, of a vbucket whose node refuses connections. Without owner there is no node."""

    needs = {HISTORY: 1}  # noqa: RUF012

    def __init__(self, owner: int = 0) -> None:
        owners = {"serverList": ["one:11210"], "numReplicas": 0, "vBucketMap": [[owner]] * 4}
        nodes = [{"services": {"kv": 11210}, "hostname": "one"}]
        config = {"rev": 1, "name": "default", "nodeLocator": "vbucket", "nodesExt": nodes, "vBucketServerMap": owners}
        self.map = ClusterMap.from_dict(config, "one")
        self.asked = self.polls = 0
        self.bug: Exception | None = None

    def open_command_connection(self, node: Node) -> NoReturn:
        self.asked += 1
        raise dcp.TransportError(f"{node}: connection refused")

    def waiting(self) -> list[Unanswered]:
        return [self]

    def on_persisted(self) -> None:
        self.polls += 1

    def on_bug(self, bug: Exception) -> None:
        self.bug = bug


def test_a_node_that_fails_is_left_alone_for_a_while_and_the_others_are_polled() -> None:
    node, hour = Unanswered(), 3600.0
    persistence = Persistence(node, hour, interval=0.001, retry_delay=hour)
    thread = persistence.start(node, lambda _: None)
    until(lambda: node.polls > 20)
    persistence.stop()
    thread.join()
    assert (node.asked, node.bug) == (1, None)


def test_a_batch_of_a_vbucket_without_owner_waits_for_a_new_map() -> None:
    nobody = Unanswered(owner=-1)
    persistence = Persistence(nobody, 3600.0, interval=0.001)
    thread = persistence.start(nobody, lambda _: None)
    until(lambda: nobody.polls > 5)
    assert not persistence.covers(nobody.needs)
    persistence.stop()
    thread.join()
    assert (nobody.asked, nobody.bug) == (0, None)


@pytest.mark.parametrize(
    ("seqno", "start", "end", "last", "needed"),
    [
        (5, 5, 5, 0, 5),
        (5, 0, 9, 0, 9),
        # Nothing of the snapshot has arrived: what it loses was not delivered.
        (5, 5, 9, 0, 5),
        # The row is above the end that the position knows of, as rows of an out-of-order snapshot are.
        (5, 5, 5, 8, 8),
    ],
    ids=["complete", "inside a snapshot", "before a snapshot", "out of order"],
)
def test_rows_are_safe_once_their_snapshot_is_persisted(
    seqno: int, start: int, end: int, last: int, needed: int
) -> None:
    position = StreamPosition(3, 0xA, seqno, start, end)
    progress = Progress(position, disorder=last or None)
    assert needed_seqnos([LazyPosition(progress, last)]) == {HISTORY: needed}


def test_of_an_older_history_only_what_came_before_its_end_is_persisted() -> None:
    """The persisted seqno in such an answer is that of the newest history."""

    opaques: list[int] = []
    taken = threading.Event()

    def script(guest: socket.socket, opaque: int) -> None:
        # The vbucket is requested again when its second row is found to be lost: then there is nothing more.
        opaques.append(opaque)
        if len(opaques) == 1:
            guest.sendall(marker(opaque, 1, 1) + mutation(opaque, 1))
            taken.wait(PATIENCE)
            guest.sendall(marker(opaque, 2, 2) + mutation(opaque, 2))

    # Format, vbucket, uuid, persisted and current seqno; uuid that was asked for, and the seqno at which it ended.
    answer = struct.pack(">BHQQQQQ", 1, 0, 0xB, 100, 100, 0xA, 1)
    with (
        HostileNode(script, malformed={"observe_seqno": answer}) as node,
        dcp.connect(node.url) as client,
        client.stream(persisted_only=True, batch_rows=1) as stream,
    ):
        assert stream.next(PATIENCE) is not None
        taken.set()
        until(lambda: len(opaques) == 2)
        with pytest.raises(TimeoutError):
            stream.next(0)
        assert stream.checkpoint.by_vbucket()[0].seqno == 1


@pytest.mark.parametrize(("ended", "persisted"), [(1, 1), (100, 100), (200, 100)])
def test_a_copy_has_of_an_ended_history_no_more_than_came_before_its_end(ended: int, persisted: int) -> None:
    """Only the owner's answer ends the history for the stream: those of replicas count as well."""
    fields = {"vbucket_id": 0, "vbuuid": 0xB, "persisted_seqno": 100, "current_seqno": 100}
    answer = dcp.Frame("observe_seqno", 0x81, fields=fields | {"old_vbuuid": 0xA, "old_seqno": ended})
    assert persisted_seqno(answer) == persisted


def test_a_copy_that_does_not_know_a_history_has_nothing_of_it() -> None:
    assert persisted_seqno(dcp.Frame("observe_seqno", 0x81, status=Status.KEY_ENOENT)) is None
    with pytest.raises(dcp.ServerError, match="persisted_only: the server does not report persisted seqnos"):
        persisted_seqno(dcp.Frame("observe_seqno", 0x81, status=Status.UNKNOWN_COMMAND))


@pytest.mark.parametrize("seed", range(8))
def test_no_failover_takes_anything_back(seed: int) -> None:
    """The rows that replicas lacked are delivered again, with those of the same batches."""
    chance = random.Random(seed)
    with Cluster(nodes=3, vbuckets=4, replicas=1, seed=seed) as cluster, dcp.connect(cluster.url) as client:
        consumer = Consumer()
        with client.stream(persisted_only=True, batch_rows=chance.choice((1, 3, 1000)), linger=0.0) as stream:
            cluster.load(30, prefix="before-")
            catch_up(stream, consumer, cluster)
            cluster.set_lag(chance.randrange(1, 6))
            for n in range(60):
                cluster.upsert(f"key{chance.randrange(20)}", str(n).encode())
                if chance.random() < 0.1:
                    cluster.snapshot()
            for _ in range(chance.randrange(3)):
                take_one(stream, consumer)
            cluster.failover(chance.randrange(3))
            cluster.set_lag(0)
            catch_up(stream, consumer, cluster)
        assert consumer.rollbacks == []
        assert all(len({row.seqno for row in rows}) == len(rows) for rows in consumer.rows.values())


def take_one(stream: dcp.ChangeStream, consumer: Consumer) -> None:
    try:
        batch = stream.next(0.3)
    except TimeoutError:
        return
    assert batch is not None
    consumer.take(batch)


@pytest.mark.parametrize("promotions", [[1], [1, 0]])
def test_lost_rows_that_fill_the_window_do_not_hold_up_their_rollback(promotions: list[int]) -> None:
    """The node cannot send the end of its stream before the rows are acknowledged, and they are never persisted."""
    with (
        Cluster(nodes=2, vbuckets=1, replicas=1, seed=1) as cluster,
        dcp.connect(cluster.url, dcp_buffer_size=100) as client,
    ):
        first = cluster.owner("early")
        consumer = Consumer()
        with client.stream(persisted_only=True, batch_rows=1) as stream:
            cluster.upsert("early", b"1")
            catch_up(stream, consumer, cluster)
            cluster.set_lag(5)
            for n in range(3):
                cluster.upsert(f"late{n}", b"x" * 200)
            until(lambda: stream.counters.rows > 1)
            for other in promotions:
                cluster.promote(0, abs(first - other))
            cluster.set_lag(0)
            cluster.upsert("later", b"2")
            catch_up(stream, consumer, cluster)
        assert consumer.rollbacks == []


def test_a_purge_is_reported_although_another_vbucket_takes_back_rows_that_were_not_persisted() -> None:
    with Cluster(nodes=2, vbuckets=2, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        # Each of the two vbuckets has a node of its own.
        mine, other, *more = (b"1", b"0", b"2", b"5", b"7")
        for key in (mine, other):
            cluster.upsert(key, b"1")
        before = client.positions("now")
        cluster.delete(mine)
        cluster.upsert(b"3", b"1")
        cluster.snapshot()
        assert cluster.purge() == 1
        cluster.set_persistence(1, False)
        with (
            cluster.fault("silent", vbuckets=[0]) as silent,
            client.stream(before, ignore_purged=True, persisted_only=True, batch_rows=2, linger=HOUR) as stream,
        ):
            queue = stream._follower._queue
            for key in more:
                cluster.upsert(key, b"1")
            until(lambda: len(queue.waiting()) == 1)
            # The snapshot begins, and its row waits for others.
            silent.clear()
            until(lambda: len(queue.waiting()) == 2)
            rolled_back = cluster.fault("rollback", vbuckets=[1], to="0", times=1)
            cluster.fault("end", vbuckets=[1], times=1)
            cluster.upsert(other, b"2")
            until(lambda: rolled_back.hits == 1)
            cluster.set_persistence(1, True)
            found = list[tuple[str, int]]()
            while ("purged", 0) not in found:
                batch = stream.next(PATIENCE)
                assert batch is not None
                found += [(row["event"], row["vbucket"]) for row in batch.to_arrow().to_pylist()]
