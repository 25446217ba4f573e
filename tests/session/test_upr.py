"""Sessions in both drafts of UPR: requests, events, and no loss under random failures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import dcp
from dcp.embedded.connection import ServerConnection
from dcp.embedded.handlers import HANDLERS_OF
from dcp.errors import LocalProtocolError, RemoteProtocolError, ServerError
from dcp.position import UNKNOWN_END, FailoverLog, Progress, StreamPosition
from dcp.session.events import StreamAccepted, StreamEnded, StreamRefused, StreamRolledBack
from dcp.session.handshake import Agreement, ConnectionSettings
from dcp.session.legacy.upr import UprSession
from dcp.session.session import Session
from dcp.session.stream import ConsumerStream
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import StreamEnd
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from tests.session.harness import Peer, hear, made_ready
from tests.session.world import COLUMNS, World

both = pytest.mark.parametrize("draft", ["upr1", "upr2"])
SCHEDULES, STEPS = 40, 60
LOG = ((0xB, 100), (0xA, 0))
BEGINNING = StreamPosition(7)


# ------------------------------------------------------------------ against a producer of ours


class UprWorld(World):
    """The same random failures, in one draft."""

    generations = ("3.0",)
    draft = "upr1"

    def play(self) -> None:
        """Do something at random. More often than in DCP, a snapshot breaks and part of it is lost."""
        if self.random.random() < 0.2:
            self.write_some()
            self.cut()
            self.fail_over()
        super().play()

    def connect(self) -> None:
        self.count("connections")
        self.talk = ServerConnection(self.bucket, self.bucket.nodes[self.active()], HANDLERS_OF[self.draft], self.draft)
        self.session = made_ready(
            UprSession(ConnectionSettings("", ""), lambda _: dcp.Decoder(self.draft, columns=COLUMNS), 0.0), Agreement()
        )


@both
def test_no_change_is_lost_or_comes_back(draft: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        world = UprWorld(seed)
        world.draft = draft
        try:
            for _ in range(STEPS):
                world.play()
            world.catch_up()
            world.check()
        except BaseException:
            print(f"seed {seed}")
            raise
        counts.update(world.counts)
    # Each kind of event happened often enough for the test to mean something.
    assert counts["rows"] > 20 * SCHEDULES
    assert counts["StreamRolledBack"] > SCHEDULES // 2


# ------------------------------------------------------------------ message by message


class Node:
    """Messages of a node in one draft, whatever was requested."""

    def __init__(self, draft: str, stream: ConsumerStream) -> None:
        self.draft, self.opaque, self.vbucket = draft, stream.opaque, stream.vbucket

    def message(self, name: str, *, key: bytes = b"", **fields: int) -> bytes:
        magic = Magic.RESPONSE if self.draft == "upr1" else Magic.REQUEST
        return encode(Frame(name, magic, self.opaque, vbucket=self.vbucket, fields=fields, key=key), self.draft)

    def row(self, seqno: int) -> bytes:
        rest = {"rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0}
        return self.message("mutation", key=b"k", seqno=seqno, **rest)

    def histories(self, log: tuple[tuple[int, int], ...] = LOG) -> bytes:
        name = "failover_log" if self.draft == "upr1" else "get_failover_log"
        return self._answer(name, value=FAILOVER_LOG.encode(log))

    def accepts(self) -> bytes:
        return self._answer("stream_ok" if self.draft == "upr1" else "stream_request")

    def rolls_back(self, seqno: int) -> bytes:
        fields = {"rollback_seqno": seqno}
        if self.draft == "upr1":
            return self._answer("rollback", fields=fields)
        return self._answer("stream_request", Status.ROLLBACK, fields=fields)

    def ends(self, *, ok: bool) -> bytes:
        if self.draft == "upr1":
            return self.message("stream_end_ok" if ok else "stream_end_state_changed")
        return self.message("stream_end", reason=0 if ok else 1)

    def _answer(self, name: str, status: Status = Status.SUCCESS, **parts: Any) -> bytes:
        where: dict[str, Any] = {"vbucket": self.vbucket} if self.draft == "upr1" else {"status": int(status)}
        return encode(Frame(name, Magic.RESPONSE, self.opaque, **where, **parts), self.draft)


def ready(draft: str, window: int = 0) -> UprSession:
    session = UprSession(ConnectionSettings("group", "travel", window=window), lambda _: dcp.Decoder(draft), 0.0)
    peer = Peer()
    while session.agreement is None:
        (asked,) = dcp.decode(session.outgoing())
        hear(session, peer.answer(asked))
    assert "open" not in {frame.name for frame in peer.requests}
    return session


def asked(session: Session, draft: str) -> list[tuple[str, bytes, dict[str, Any]]]:
    return [(frame.name, frame.key, dict(frame.fields)) for frame in dcp.decode(session.outgoing(), draft)]


def opened(draft: str, position: StreamPosition = BEGINNING) -> tuple[UprSession, ConsumerStream, Node]:
    session = ready(draft)
    stream = session.open(Progress(position), end=500)
    return session, stream, Node(draft, stream)


def streaming(draft: str) -> tuple[UprSession, ConsumerStream, Node]:
    session, stream, node = opened(draft)
    events = hear(session, node.histories() + node.accepts() + node.message("stream_start"))
    assert [type(event) for event in events] == [StreamAccepted]
    session.outgoing()
    return session, stream, node


@both
def test_histories_are_asked_for_before_the_stream_is(draft: str) -> None:
    position = StreamPosition(7, 0xB, 120, 120, 120, failover_log=FailoverLog.of(LOG))
    session, stream, node = opened(draft, position)
    first = "failover_log_request" if draft == "upr1" else "get_failover_log"
    assert asked(session, draft) == [(first, b"", {})]
    assert hear(session, node.histories(((0xC, 200), *LOG))) == []
    fields = {"start_seqno": 120, "end_seqno": 500, "vbuuid": 0xB, "high_seqno": 100}
    flags = {} if draft == "upr1" else {"flags": 0}
    assert asked(session, draft) == [("stream_request", b"group", flags | fields)]
    hear(session, node.accepts())
    assert (stream.position.vbuuid, stream.position.seqno) == (0xC, 120)


@both
def test_the_end_of_a_snapshot_is_known_when_it_has_come(draft: str) -> None:
    session, stream, node = streaming(draft)
    hear(session, node.message("snapshot_start") + node.row(3) + node.row(9))
    session.take()
    assert (stream.position.seqno, stream.position.snapshot_start, stream.position.snapshot_end) == (9, 0, UNKNOWN_END)
    hear(session, node.message("snapshot_end"))
    assert stream.position.complete
    hear(session, node.message("snapshot_start") + node.row(12))
    session.take()
    assert (stream.position.seqno, stream.position.snapshot_start) == (12, 9)
    assert stream.position.marks == (9,)


INSIDE = StreamPosition(7, 0xB, 130, 110, UNKNOWN_END, failover_log=FailoverLog.of(LOG), marks=(110,))


@both
def test_a_snapshot_that_broke_is_asked_for_again_from_its_start(draft: str) -> None:
    session, stream, node = opened(draft, INSIDE)
    hear(session, node.histories(((0xC, 130), *LOG)))
    assert asked(session, draft)[1][2]["start_seqno"] == 110
    hear(session, node.accepts() + node.message("stream_start") + node.message("snapshot_start") + node.row(112))
    session.take()
    # Rows that the consumer has already do not move the position.
    assert (stream.position.seqno, stream.position.snapshot_start) == (130, 110)
    hear(session, node.message("snapshot_end"))
    assert (stream.position.seqno, stream.position.snapshot_start) == (130, 112)
    hear(session, node.message("snapshot_start") + node.row(140) + node.message("snapshot_end"))
    assert (stream.position.seqno, stream.position.complete) == (140, True)


@both
@pytest.mark.parametrize(("log", "seqno"), [(((0xC, 125), *LOG), 125), (((0xD, 0),), 0)])
def test_what_came_of_a_broken_snapshot_may_be_lost(draft: str, log: tuple[tuple[int, int], ...], seqno: int) -> None:
    session, stream, node = opened(draft, INSIDE)
    session.outgoing()
    (event,) = hear(session, node.histories(log))
    assert isinstance(event, StreamRolledBack)
    assert event.seqno == seqno
    assert event.stream.position.rolled_back(seqno).seqno == (110 if seqno else 0)
    assert session.outgoing() == b""
    assert stream.ended


@both
def test_a_node_can_say_no(draft: str) -> None:
    position = StreamPosition(7, 0xB, 120, 120, 120)
    session, stream, node = opened(draft, position)
    (event,) = hear(session, node.histories() + node.rolls_back(99))
    assert isinstance(event, StreamRolledBack)
    assert event.seqno == 99
    session, stream, node = opened(draft)
    no = node._answer("not_my_vbucket" if draft == "upr1" else "get_failover_log", Status.NOT_MY_VBUCKET)
    (refused,) = hear(session, no)
    assert isinstance(refused, StreamRefused)
    assert refused.status == Status.NOT_MY_VBUCKET
    assert stream.ended


def test_a_history_that_the_second_draft_does_not_know_is_one_to_go_back_from() -> None:
    session, _, node = opened("upr2", StreamPosition(7, 0xB, 120, 120, 120))
    (event,) = hear(session, node.histories() + node._answer("stream_request", Status.KEY_ENOENT))
    assert isinstance(event, StreamRolledBack)
    assert event.seqno == 0


@both
@pytest.mark.parametrize(("ok", "reason"), [(True, StreamEnd.OK), (False, StreamEnd.STATE_CHANGED)])
def test_a_stream_ends_for_a_reason(draft: str, ok: bool, reason: StreamEnd) -> None:
    session, stream, node = streaming(draft)
    (event,) = hear(session, node.ends(ok=ok))
    assert isinstance(event, StreamEnded)
    assert (event.reason, stream.ended, session.streams) == (reason, True, {})


@both
@pytest.mark.parametrize("names", [["snapshot_end"], ["snapshot_start", "snapshot_start"], ["stream_start"]])
def test_what_cannot_happen_ends_the_session(draft: str, names: list[str]) -> None:
    session, _, node = streaming(draft)
    hear(session, b"".join(node.message(name) for name in names))
    session.take()
    with pytest.raises(RemoteProtocolError, match=r"stream of vbucket 7, \w+: expected"):
        session.take()


@both
def test_rows_outside_of_snapshots_end_the_session(draft: str) -> None:
    session, _, node = streaming(draft)
    hear(session, node.message("snapshot_start") + node.row(5) + node.message("snapshot_end"))
    assert len(session.take().batch) == 1
    hear(session, node.row(6))
    with pytest.raises(RemoteProtocolError, match="expected"):
        session.take()


@both
def test_a_flush_cannot_be_gone_on_from(draft: str) -> None:
    session, _, node = streaming(draft)
    hear(session, node.message("stream_flush"))
    session.take()
    with pytest.raises(ServerError, match="vbucket 7: it was flushed"):
        session.take()


@both
def test_what_drafts_lack_is_refused(draft: str) -> None:
    session, stream, _ = streaming(draft)
    with pytest.raises(LocalProtocolError, match=f"UPR draft {draft[-1]}: no message closes a stream"):
        session.close_stream(stream)
    with pytest.raises(LocalProtocolError, match="without flags and filter"):
        session.open(Progress(StreamPosition(8)), stream_filter=StreamFilter(collections=(0,)))


@both
def test_its_owner_stops_reading_when_the_consumer_is_behind(draft: str) -> None:
    session = ready(draft, window=100)
    stream = session.open(Progress(StreamPosition(7)))
    node = Node(draft, stream)
    sent = [node.histories(), node.accepts(), node.message("stream_start"), node.message("snapshot_start"), node.row(1)]
    hear(session, b"".join(sent))
    delivery = session.take()
    assert delivery.flow_bytes > sum(map(len, sent))
    assert not session.wants_bytes
    assert session.deadline() is None
    session.processed(delivery.flow_bytes)
    assert session.wants_bytes


@both
@pytest.mark.parametrize(("position", "start"), [((9, 5, 9), 9), ((9, 5, 12), 5), ((9, 9, 12), 9)])
def test_a_stream_is_requested_from_the_last_whole_snapshot(
    draft: str, position: tuple[int, int, int], start: int
) -> None:
    session = ready(draft)
    stream = session.open(Progress(StreamPosition(7, 0xB, *position)))
    session.outgoing()
    hear(session, Node(draft, stream).histories(((0xB, 0),)))
    (request,) = dcp.decode(session.outgoing(), draft)
    # The history is not in the log that the position has: it may have begun anywhere.
    assert (request.fields["start_seqno"], request.fields["high_seqno"]) == (start, 0)
