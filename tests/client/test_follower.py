"""The engine of a stream, one step at a time: what wakes its threads, and what it drops."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NoReturn

import pytest

import dcp
from dcp.client.follow.backoff import FIRST_DELAY, LONGEST_DELAY
from dcp.client.follow.disk_wait import DiskWait
from dcp.client.follow.node_link import NodeLink
from dcp.client.follow.node_pool import NodePool
from dcp.client.follow.settings import BatchLimits
from dcp.client.follow.vbucket import FollowedVbucket
from dcp.cluster_map import Node, NodeAddress
from dcp.embedded import Cluster
from dcp.position import StreamPosition
from dcp.session.events import Event, MapChanged, SessionReady, StreamAccepted, StreamEnded
from dcp.session.refusals import OPEN, refused
from dcp.session.session import Delivery
from dcp.wire.dcp import StreamEnd
from dcp.wire.memcached import Status
from tests.client.consumer import PATIENCE, Consumer, catch_up, link_of
from tests.client.hostile import marker, mutation
from tests.client.links import Unheard, ended_link, unconnected_link
from tests.waiting import wakes


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(vbuckets=2) as cluster:
        key = next(key for key in (b"%d" % n for n in range(99)) if cluster._bucket.vbucket_of(key) == 0)
        cluster.upsert(key, b"1")
        yield cluster


@pytest.fixture
def stream(cluster: Cluster) -> Iterator[dcp.ChangeStream]:
    """A stream of one vbucket that has delivered all there is."""
    with dcp.connect(cluster.url) as client, client.stream(vbuckets=[0]) as stream:
        catch_up(stream, Consumer(), cluster)
        yield stream


def test_a_lost_connection_wakes_the_supervisor_which_asks_for_a_map_at_once(stream: dcp.ChangeStream) -> None:
    follower, link = stream._follower, link_of(stream)
    due: list[float | None] = []

    def lose() -> None:
        link.close()
        follower.on_lost(link, dcp.TransportError("lost"))
        due.append(follower._maps.due)

    # Without being woken it sleeps for as long as the longest delay.
    assert wakes(follower._work, lose, LONGEST_DELAY / 2)
    assert due[0] is not None
    assert due[0] <= time.monotonic()


def test_an_event_wakes_supervisor_and_consumer(stream: dcp.ChangeStream) -> None:
    follower, link = stream._follower, link_of(stream)
    [vbucket] = follower._vbuckets.values()
    assert vbucket.stream is not None
    accepted = StreamAccepted(vbucket.stream)
    for condition in (follower._work, follower._queue.changed):
        for before in ([], [accepted]):
            events: list[Event] = [*before, MapChanged(None)]
            assert wakes(condition, partial(follower.on_events, link, events), LONGEST_DELAY / 2)


def test_what_a_closing_connection_delivers_is_dropped(stream: dcp.ChangeStream) -> None:
    """Its streams were requested again from a position before."""
    follower, link = stream._follower, link_of(stream)
    batches = stream.counters.batches
    with follower._lock:
        link.close()
        [vbucket] = follower._vbuckets.values()
        assert vbucket.stream is not None
        follower.on_events(link, [StreamEnded(vbucket.stream, StreamEnd.OK)])
        follower.on_delivery(link, Delivery(dcp.Decoder().take(), {}, 0, 0))
        assert not vbucket.done
    assert stream.counters.batches == batches


def test_a_connection_that_ends_after_its_stream_is_no_loss(
    stream: dcp.ChangeStream, caplog: pytest.LogCaptureFixture
) -> None:
    follower, link = stream._follower, link_of(stream)
    stream.close()
    follower.on_lost(link, dcp.TransportError("lost"))
    assert follower.counters.reconnects == 0
    assert "reconnecting" not in caplog.text


def test_what_a_connection_delivers_is_counted(stream: dcp.ChangeStream) -> None:
    follower, link = stream._follower, link_of(stream)
    decoder = dcp.Decoder(on_bad_value="quarantine")
    decoder.feed(marker(1, 0, 9) + mutation(1, 1) + mutation(1, 2, b"{", datatype=2))
    with follower._lock:
        before = replace(follower.counters)
        follower.on_delivery(link, Delivery(decoder.take(), {}, 70, 0))
        now = follower.counters
        assert (now.rows, now.bytes, now.batches) == (before.rows + 2, before.bytes + 70, before.batches + 1)
        assert (now.bad_rows, now.unselected_rows) == (before.bad_rows + 1, before.unselected_rows)
        # Nobody has processed it yet.
        assert follower.windows()[link.name].used >= 70


def test_a_connection_that_is_ready_ends_the_refusals_of_its_node(stream: dcp.ChangeStream) -> None:
    follower, link = stream._follower, link_of(stream)
    assert link.session is not None
    assert link.session.agreement is not None
    busy = refused(OPEN, "busy", Status.ETMPFAIL)
    with follower._lock:
        link.ready = False
        for now in range(0, 600, 50):
            assert follower._patience.exhausted(link.name, link.name, busy, now) is None
        follower.on_events(link, [SessionReady(link.session.agreement)])
        assert link.ready
        # It would be the end of the series that began at 0.
        assert follower._patience.exhausted(link.name, link.name, busy, 601.0) is None


def test_a_connection_that_was_lost_before_its_purges_were_checked_is_left_alone(stream: dcp.ChangeStream) -> None:
    follower = stream._follower
    with follower._lock:
        follower._links_to_check.append(link := ended_link())
        follower._check_purges()
    assert (follower._links_to_check, link.ready, follower.failed) == ([], False, False)


def test_an_exception_in_the_thread_of_a_connection_is_reported() -> None:
    bugs = list[Exception]()

    class Heard(Unheard):
        def on_bug(self, bug: Exception) -> None:
            bugs.append(bug)

    def fail(_: float) -> NoReturn:
        raise ValueError("a bug")

    near, far = socket.socketpair()
    link = NodeLink("one:11210", lambda: near, fail, Heard(), BatchLimits(1, 1, 0.0))
    link.start()
    link.thread.join()
    with far:
        assert [str(bug) for bug in bugs] == ["a bug"]
        # The connection is closed.
        assert far.recv(1) == b""


def test_the_supervisor_sleeps_no_longer_than_to_the_next_request(stream: dcp.ChangeStream) -> None:
    follower = stream._follower
    with follower._lock:
        [vbucket] = follower._vbuckets.values()
        vbucket.release()
        vbucket.retry("refused")
        assert follower._assigner.assign() <= 1.25 * FIRST_DELAY


def test_the_supervisor_sleeps_no_longer_than_to_the_next_question_about_the_disk(stream: dcp.ChangeStream) -> None:
    assigner, wait = stream._follower._assigner, DiskWait(lambda node, vbuckets: {}, 60)
    with stream._follower._lock:
        assigner._disk = wait
        assert assigner.assign() > 0
        wait.due = time.monotonic()
        assert assigner.assign() == 0


def test_the_supervisor_sleeps_no_longer_than_to_the_next_connection() -> None:
    node, sleeps = Node(NodeAddress("one", 11210, None)), list[float]()
    pool = NodePool(lambda _: unconnected_link())
    pool.link_to(node, 0.0, sleeps)
    [link] = pool
    pool.remove_lost(link, dcp.TransportError("lost"))
    assert sleeps == []
    pool.link_to(node, 0.01, sleeps)
    assert [0.75 * FIRST_DELAY <= sleep <= 1.25 * FIRST_DELAY for sleep in sleeps] == [True]
    assert list(pool) == []
    # Delays become longer, even of a node that accepts connections and drops them.
    pool.link_to(node, 1.0, sleeps)
    [link] = pool
    pool.remove_lost(link, dcp.TransportError("lost"))
    pool.link_to(node, 1.01, sleeps)
    assert 1.0 + 1.5 * FIRST_DELAY <= sleeps[1] <= 1.0 + 2.5 * FIRST_DELAY


def requests(stream: dcp.ChangeStream, cancelled: bool) -> list[int]:
    """Request another vbucket twice before the connection's thread runs, or request and cancel it.

    Return the vbuckets that the thread has opened streams for.
    """
    follower, link = stream._follower, link_of(stream)
    other, done = FollowedVbucket(1, StreamPosition(1)), threading.Event()
    # The thread needs the lock to open streams.
    with follower._lock:
        follower._vbuckets[1] = other
        for _ in range(1 if cancelled else 2):
            other.release()
            follower._assigner._open([other], link)
        if cancelled:
            other.release()
            other.done = True
    link.run_in_thread(lambda _: done.set())
    assert done.wait(PATIENCE)
    assert link.session is not None
    return sorted(each.vbucket for each in link.session.streams.values())


def test_a_request_that_is_repeated_before_it_is_sent_opens_one_stream(stream: dcp.ChangeStream) -> None:
    assert requests(stream, cancelled=False) == [0, 1]
    assert stream.counters.reconnects == 0


def test_a_request_that_is_cancelled_before_it_is_sent_opens_none(stream: dcp.ChangeStream) -> None:
    assert requests(stream, cancelled=True) == [0]


@pytest.mark.parametrize(("seqno", "age", "repeated"), [(5, 0.0, True), (6, 0.0, False), (5, LONGEST_DELAY + 1, False)])
def test_the_delay_begins_again_after_a_stream_that_moved_or_lasted(seqno: int, age: float, repeated: bool) -> None:
    """A node that accepts a stream and ends it at once would be asked thousands of times a second."""
    vbucket = FollowedVbucket(0, StreamPosition(0, 1, 5, 5, 5))
    for _ in range(4):
        vbucket.retry("refused")
    assert vbucket.delay == 8 * FIRST_DELAY
    vbucket.accepted(time.monotonic() - age)
    vbucket.position = StreamPosition(0, 1, seqno, 5, 9)
    vbucket.retry("stream ended")
    assert vbucket.delay == (16 * FIRST_DELAY if repeated else FIRST_DELAY)
    # What came before the stream does not count any more.
    vbucket.retry("refused")
    assert vbucket.delay == (32 if repeated else 2) * FIRST_DELAY


def test_a_vbucket_is_warned_of_again_once_another_node_is_asked() -> None:
    link = ended_link()
    vbucket = FollowedVbucket(0, StreamPosition(0), asked=link.name, overdue=True)
    vbucket.requested(link, 1.0)
    assert vbucket.overdue
    vbucket.asked = "another:11210"
    vbucket.requested(link, 2.0)
    assert (vbucket.overdue, vbucket.asked, vbucket.unanswered(5.0)) == (False, link.name, 3.0)


def test_what_was_processed_takes_no_room_of_the_window_any_more() -> None:
    link = ended_link()
    link.unprocessed, link.held = 10, 20
    link.processed(3, 5)
    assert (link.unprocessed, link.held) == (7, 15)


ONE, OTHER = (Node(NodeAddress(name, 11210, None)) for name in ("one", "other"))


def ready_link(pool: NodePool, node: Node, now: float = 0.0) -> NodeLink:
    """Connect to a node, and return the link as if its handshake had succeeded."""
    before = set[NodeLink](pool)
    assert pool.link_to(node, now, []) is None
    [link] = set[NodeLink](pool) - before
    link.thread.join()
    pool.mark_ready(link)
    return link


def test_a_connection_that_takes_no_more_requests_is_kept_for_its_streams() -> None:
    pool = NodePool(lambda _: unconnected_link())
    full = ready_link(pool, ONE)
    assert pool.link_to(ONE, 0.0, []) is full
    pool.mark_full(full)
    assert (pool.serves(full, ONE), pool.serves(full, OTHER), pool.node_of(full)) == (True, False, ONE)
    assert pool.by_node() == {ONE: full}
    taking, of_other = ready_link(pool, ONE, LONGEST_DELAY), ready_link(pool, OTHER)
    assert [*pool] == [taking, of_other, full]
    assert [pool.serves(link, ONE) for link in pool] == [True, False, True]
    assert pool.link_to(ONE, 0.0, []) is taking
    pool.close_idle({full})
    assert not full.closing
    pool.close_idle({taking})
    assert [link.closing for link in (full, taking, of_other)] == [True, False, False]
    assert [*pool] == [taking, of_other]
    assert pool.node_of(full) is None
    pool.stop()
    assert taking.closing
    assert of_other.closing


def test_the_last_error_of_a_node_is_known_until_it_is_ready_again() -> None:
    pool = NodePool(lambda _: unconnected_link())
    link = ready_link(pool, ONE)
    assert pool.windows() == {link.name: (0, 0)}
    pool.remove_lost(link, dcp.TransportError("lost"))
    assert ([*pool], pool.last_errors, pool.windows()) == ([], {link.name: "lost"}, {})
    ready_link(pool, ONE, LONGEST_DELAY)
    assert pool.last_errors == {}


def test_no_stream_is_requested_from_a_node_that_left() -> None:
    node = Node(NodeAddress("one", 11210, None))
    pool = NodePool(lambda _: unconnected_link())
    pool.link_to(node, 0.0, [])
    [link] = pool
    link.thread.join()
    pool.mark_ready(link)
    assert pool.link_to(node, 0.0, []) is link
    pool.abandon_all_but([])
    assert pool.link_to(node, 0.0, []) is None


def test_a_node_that_ends_each_stream_at_once_is_asked_ever_more_rarely() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        ended = cluster.fault("end")
        with client.stream() as stream, pytest.raises(dcp.TimeoutError):
            stream.next(2)
        assert 0 < ended.hits < 20
