"""States of a vbucket after its node accepts, ends or refuses its stream, one event at a time."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest

import dcp
from dcp.client.follow.transitions import Transitions
from dcp.client.follow.vbucket import FollowedVbucket
from dcp.embedded import Cluster
from dcp.position import FailoverLog, Progress, StreamPosition
from dcp.session.events import StreamAccepted, StreamRefused
from dcp.session.refusals import STREAM_REQUEST, refused
from dcp.session.states import REQUESTED
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import ENDLESS, StreamEnd
from dcp.wire.memcached import Status
from tests.client.consumer import PATIENCE, link_of
from tests.waiting import until

# Seconds for which refusals are repeated, and in which a vbucket has to be announced over TAP.
REFUSED_FOR, WITHIN = 10.0, 600.0
DOCUMENTS = 20


class Streamed:
    """A stream whose vbuckets were delivered so far. Its threads stand still: the caller has the lock."""

    def __init__(self, stream: dcp.ChangeStream) -> None:
        self.stream, self.follower, self.link = stream, stream._follower, link_of(stream)
        self.transitions: Transitions = self.follower._transitions
        self.follower._maps.due = None

    def vbucket(self, number: int = 0) -> tuple[FollowedVbucket, ConsumerStream]:
        vbucket = self.follower._vbuckets[number]
        assert vbucket.stream is not None
        return vbucket, vbucket.stream

    @property
    def rollbacks(self) -> list[tuple[int, int | None, int]]:
        """Vbucket, seqno before and seqno after of each rollback that waits to be delivered."""
        found = []
        for item in self.follower._queue.waiting():
            [row] = item.batch.to_arrow().to_pylist()
            assert row["event"] == "rollback"
            assert item.rolled_back == {row["vbucket"]: row["seqno"]}
            found.append((row["vbucket"], row["snapshot_end"], row["seqno"]))
        return found

    @property
    def asks_for_map(self) -> bool:
        return self.follower._maps.due is not None

    def refuse(self, status: Status, body: object = None) -> FollowedVbucket:
        vbucket, stream = self.vbucket()
        self.transitions.refused(StreamRefused(stream, status, body), self.link.name)
        return vbucket


@contextlib.contextmanager
def streaming(
    dialect: Literal["dcp", "tap"] = "dcp", start: str = "beginning", *, vbuckets: int = 2, **options: Any
) -> Iterator[Streamed]:
    """Stream all vbuckets from an embedded node."""
    with Cluster(vbuckets=vbuckets, dialect=dialect) as cluster:
        cluster.load(DOCUMENTS)
        with (
            dcp.connect(cluster.url, dialect=dialect, refusal_timeout=REFUSED_FOR, bootstrap_timeout=WITHIN) as client,
            client.stream(start, **options) as stream,
        ):
            rows = 0
            while start != "now" and rows < DOCUMENTS:
                batch = stream.next(PATIENCE)
                assert batch is not None
                rows += batch.num_rows
            followed = stream._follower._vbuckets.values()
            until(lambda: all(vbucket.stream is not None and not vbucket.asked for vbucket in followed))
            with stream._follower._lock:
                yield Streamed(stream)


@pytest.fixture
def streamed() -> Iterator[Streamed]:
    with streaming() as streamed:
        yield streamed


def waits(vbucket: FollowedVbucket, reason: str) -> bool:
    """Return whether the vbucket has no stream, and is requested again, after a while, because of this."""
    assert (vbucket.link, vbucket.stream) == (None, None)
    return not vbucket.done and vbucket.retry_at > time.monotonic() and vbucket.last_error == reason


def test_an_accepted_vbucket_is_waited_for_no_more_and_its_refusals_are_forgotten(streamed: Streamed) -> None:
    vbucket, stream = streamed.vbucket()
    vbucket.asked = streamed.link.name
    busy = refused(STREAM_REQUEST, "busy", Status.ETMPFAIL)

    def is_final(now: float) -> bool:
        return streamed.follower._patience.exhausted(0, streamed.link.name, busy, now) is not None

    assert not is_final(0.0)
    streamed.follower.on_events(streamed.link, [StreamAccepted(stream)])
    assert vbucket.asked == ""
    assert not is_final(REFUSED_FOR + 1)
    assert is_final(2 * REFUSED_FOR + 2)


@pytest.mark.parametrize("reason", [StreamEnd.OK, StreamEnd.FILTER_EMPTY])
def test_a_vbucket_is_done_when_its_stream_ends_at_its_end_or_nothing_can_pass_its_filter(
    streamed: Streamed, reason: StreamEnd
) -> None:
    for number in (0, 1):
        vbucket, stream = streamed.vbucket(number)
        streamed.transitions.ended(stream, reason)
        assert (vbucket.done, vbucket.link, vbucket.stream) == (True, None, None)
    assert streamed.stream.counters.stream_ends == {reason.name.lower(): 2}
    assert not streamed.follower.failed


@pytest.mark.parametrize(
    ("reason", "name", "asks"),
    [
        (StreamEnd.STATE_CHANGED, "state_changed", True),
        (StreamEnd.SLOW, "slow", False),
        (StreamEnd.CLOSED, "closed", False),
        (4711, "4711", False),
    ],
)
def test_a_stream_that_ends_early_is_requested_again_from_its_position(
    streamed: Streamed, reason: int, name: str, asks: bool
) -> None:
    vbucket, stream = streamed.vbucket()
    vbucket.position = vbucket.position.rolled_back(0)
    streamed.transitions.ended(stream, reason)
    assert waits(vbucket, f"stream ended, {name}")
    assert vbucket.position.seqno == stream.last_seqno > 0
    # Another node owns the vbucket if its state changed.
    assert streamed.asks_for_map is asks
    assert not streamed.follower.failed


def test_a_stream_ends_with_an_error_when_its_user_may_not_read_it_any_more(streamed: Streamed) -> None:
    streamed.transitions.ended(streamed.vbucket()[1], StreamEnd.LOST_PRIVILEGES)
    assert isinstance(streamed.follower._queue.error, dcp.ServerError)


@pytest.mark.parametrize("status", [Status.ETMPFAIL, Status.KEY_ENOENT, Status.UNKNOWN_COLLECTION])
def test_a_refused_vbucket_is_requested_again_after_a_while(streamed: Streamed, status: Status) -> None:
    assert waits(streamed.refuse(status), f"refused, {status.name}")
    assert not streamed.asks_for_map
    assert not streamed.follower.failed


def test_a_vbucket_that_moved_is_requested_with_the_map_that_its_node_sends(streamed: Streamed) -> None:
    agent = streamed.follower._agent
    found = agent.map
    newer = {
        "name": found.name,
        "uuid": found.uuid,
        "rev": found.revision + 1,
        "revEpoch": found.epoch,
        "nodeLocator": "vbucket",
        "nodesExt": [{"services": {"kv": 11210}, "hostname": "another"}],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 0,
            "serverList": ["another:11210"],
            "vBucketMap": [[0], [0]],
        },
    }
    assert waits(streamed.refuse(Status.NOT_MY_VBUCKET, newer), "refused, NOT_MY_VBUCKET")
    assert agent.map.revision == found.revision + 1
    # The map of the node may be older than that of others.
    assert streamed.asks_for_map


def test_a_vbucket_that_moved_without_a_map_is_requested_with_another_map(streamed: Streamed) -> None:
    streamed.refuse(Status.NOT_MY_VBUCKET, b"")
    assert streamed.asks_for_map


def test_a_connection_on_which_nothing_succeeds_any_more_is_replaced(streamed: Streamed) -> None:
    with pytest.raises(dcp.TransportError, match=r"stream request refused: NO_BUCKET .*; the connection is of no use"):
        streamed.refuse(Status.NO_BUCKET)
    assert not streamed.follower.failed


def test_a_refusal_that_does_not_pass_ends_the_stream_and_names_the_node(streamed: Streamed) -> None:
    streamed.refuse(Status.EINVAL)
    error = streamed.follower._queue.error
    assert isinstance(error, dcp.ServerError)
    assert (error.node, error.status, error.step) == (streamed.link.name, Status.EINVAL, STREAM_REQUEST)
    assert "ignore_purged" not in str(error)
    assert "dialect" not in str(error)


def test_a_position_that_a_node_rejects_is_rolled_back_to_the_beginning(streamed: Streamed) -> None:
    vbucket = streamed.refuse(Status.ERANGE)
    assert (vbucket.link, vbucket.stream, vbucket.position.seqno) == (None, None, 0)
    assert [vbucket for vbucket, _, _ in streamed.rollbacks] == [0]
    assert not streamed.follower.failed


def test_a_stream_that_may_not_go_back_fails_where_a_node_rejects_its_position() -> None:
    with streaming(on_rollback="fail") as streamed:
        reached = streamed.vbucket()[1].last_seqno
        streamed.refuse(Status.ERANGE)
        error = streamed.follower._queue.error
        assert isinstance(error, dcp.RollbackError)
        assert (error.vbucket, error.seqno, error.rollback_seqno) == (0, reached, 0)


def test_a_refusal_of_flags_of_newer_servers_says_so() -> None:
    with streaming(ignore_purged=True) as streamed:
        streamed.refuse(Status.EINVAL)
        assert "ignore_purged requires servers of 7.2 or newer" in str(streamed.follower._queue.error)


def test_a_vbucket_is_requested_from_where_it_was_rolled_back_to(streamed: Streamed) -> None:
    vbucket, stream = streamed.vbucket()
    streamed.transitions.rolled_back(stream, 0)
    assert (vbucket.link, vbucket.stream, vbucket.position.seqno) == (None, None, 0)
    assert streamed.rollbacks == [(0, stream.last_seqno, 0)]


def test_a_node_that_may_know_the_history_before_only_is_asked_for_that_first(streamed: Streamed) -> None:
    vbucket, _ = streamed.vbucket()
    log = FailoverLog.of([(0xB, 50), (0xA, 0)])
    vbucket.release()
    for before, uuid, rollbacks in (
        (StreamPosition(0, 0xB, 50, 50, 50, failover_log=log), 0xA, []),
        (StreamPosition(0, 0xA, 50, 50, 50, failover_log=FailoverLog.of([(0xA, 0)])), 0, [(0, 50, 0)]),
    ):
        streamed.follower._rollbacks.roll_back(vbucket, before, 0)
        assert (vbucket.position.vbuuid, streamed.rollbacks) == (uuid, rollbacks)


@pytest.mark.parametrize(("more", "rollbacks"), [(0, 0), (5, 1)])
def test_rows_of_an_out_of_order_snapshot_that_broke_are_taken_back(
    streamed: Streamed, more: int, rollbacks: int
) -> None:
    vbucket, stream = streamed.vbucket()
    stream.progress, reached = Progress(stream.position).disorder_begins(), stream.last_seqno
    stream.last_seqno += more
    streamed.transitions.cut_off(vbucket)
    assert streamed.rollbacks == [(0, reached + more, reached)] * rollbacks


# ------------------------------------------------------------------ TAP


def test_a_refusal_over_tap_says_which_dialect_may_be_right() -> None:
    with streaming("tap") as streamed:
        streamed.refuse(Status.UNKNOWN_COMMAND)
        assert "dialect" in str(streamed.follower._queue.error)


def test_a_vbucket_that_a_tap_node_leaves_out_has_a_limit_of_its_own() -> None:
    with streaming("tap") as streamed:
        streamed.follower._patience._within = 0
        vbucket = streamed.refuse(Status.NOT_MY_VBUCKET)
        assert waits(vbucket, "refused, NOT_MY_VBUCKET")
        assert not streamed.follower.failed
        vbucket.stream = streamed.vbucket(1)[1]
        streamed.refuse(Status.ETMPFAIL)
        assert streamed.follower.failed


def test_dialects_with_answers_wait_for_no_announcement(streamed: Streamed) -> None:
    streamed.vbucket()[0].requested(streamed.link, 0.0)
    assert streamed.transitions.report_unannounced() == math.inf


@pytest.mark.parametrize(("end", "fails"), [(ENDLESS, False), (100, True)])
def test_vbuckets_that_are_not_announced_in_time_are_reported_once(
    end: int, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with streaming("tap", vbuckets=4) as streamed:
        transitions, now = streamed.transitions, time.monotonic()
        vbuckets = [streamed.vbucket(number)[0] for number in range(4)]
        assert transitions.report_unannounced() == math.inf
        for vbucket, since in zip(vbuckets, (WITHIN + 1, WITHIN + 1, WITHIN / 2, WITHIN / 4), strict=True):
            vbucket.requested(streamed.link, now - since)
        vbuckets[1].end = end
        with caplog.at_level(logging.WARNING):
            assert 0 < transitions.report_unannounced() <= WITHIN / 2
            assert transitions.report_unannounced() <= WITHIN / 2
        [record] = caplog.records
        assert record.getMessage().startswith(f"{streamed.link.name}: vbuckets 0, 1 were not announced within 600 s")
        assert [vbucket.overdue for vbucket in vbuckets] == [True, True, False, False]
        # A stream with an end would never reach it.
        assert streamed.follower.failed is fails
        # Without a connection nothing is asked, and no time passes.
        for vbucket in vbuckets[2:]:
            vbucket.release()
        assert transitions.report_unannounced() == math.inf


def test_a_lost_connection_over_tap_restarts_its_vbuckets() -> None:
    with streaming("tap") as streamed:
        vbucket, _ = streamed.vbucket()
        streamed.transitions.cut_off(vbucket)
        assert (vbucket.link, vbucket.stream) == (None, None)
        # Its snapshots have no seqnos.
        assert streamed.rollbacks == [(0, None, 0)]


def test_a_lost_connection_over_tap_ends_a_stream_that_may_not_go_back() -> None:
    with streaming("tap", on_rollback="fail") as streamed:
        streamed.transitions.cut_off(streamed.vbucket(1)[0])
        error = streamed.follower._queue.error
        assert isinstance(error, dcp.RollbackError)
        assert (error.vbucket, error.seqno, error.rollback_seqno) == (1, 0, 0)


def test_a_lost_connection_over_tap_ends_a_stream_of_changes_alone() -> None:
    with streaming("tap", "now") as streamed:
        streamed.transitions.cut_off(streamed.vbucket()[0])
        assert isinstance(streamed.follower._queue.error, dcp.TransportError)
        assert streamed.rollbacks == []


def test_a_lost_connection_on_which_a_vbucket_was_only_requested_changes_nothing() -> None:
    with streaming("tap") as streamed:
        vbucket, stream = streamed.vbucket()
        stream.state = REQUESTED
        vbucket.requested(streamed.link, now := time.monotonic())
        streamed.transitions.cut_off(vbucket)
        assert streamed.rollbacks == []
        # The time until the next request is not the node's.
        assert vbucket.unanswered(now + 1000) < 500


def test_a_stream_that_resumes_is_resumed_where_its_connection_was_lost(streamed: Streamed) -> None:
    vbucket, stream = streamed.vbucket()
    streamed.transitions.cut_off(vbucket)
    assert (vbucket.link, vbucket.position.seqno) == (None, stream.last_seqno)
    assert streamed.rollbacks == []
