"""Sessions that are ready: bytes sent, bytes acknowledged, ends of streams, and breaches of the protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import dcp
from dcp.errors import FrameError, LocalProtocolError, RemoteProtocolError, SnapshotError, TimeoutError, TransportError
from dcp.position import FailoverLog, Progress, StreamPosition
from dcp.session.events import (
    CommandAnswered,
    DeletionsPurged,
    MessageIgnored,
    StreamAccepted,
    StreamEnded,
    StreamRefused,
    StreamRolledBack,
)
from dcp.session.handshake import Agreement
from dcp.session.sasl import BearerToken
from dcp.session.session import Session
from dcp.session.states import OVER
from dcp.session.stream import ConsumerStream
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import MarkerFlag, OsoSnapshot, StreamEnd, StreamFlag
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.frame import UNKNOWN, Frame, encode
from dcp.wire.framing import stream_id
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status
from tests.conformance import cut
from tests.session.harness import MANY, Peer, decoder, handshake, hear, ready_session, requested

CLOSING = "send_stream_end_on_client_close_stream"
AGREEMENT = Agreement(
    frozenset({Feature.XERROR, Feature.COLLECTIONS}),
    frozenset({"enable_noop", CLOSING}),
    window=1000,
    noop_interval=120.0,
)
WITH_IDS = replace(AGREEMENT, controls=AGREEMENT.controls | {"enable_stream_id"})
LOG = FailoverLog.of([(0xB, 100), (0xA, 0)])


def ready(agreement: Agreement = AGREEMENT) -> Session:
    return ready_session(agreement, decoder)


def message(stream: ConsumerStream, name: str, *, key: bytes = b"", **fields: Any) -> bytes:
    magic = Magic.REQUEST if stream.stream_id is None else Magic.FRAMED_REQUEST
    infos = () if stream.stream_id is None else (stream_id(stream.stream_id),)
    return encode(Frame(name, magic, stream.opaque, vbucket=stream.vbucket, fields=fields, key=key, frame_info=infos))


def row(stream: ConsumerStream, seqno: int) -> bytes:
    rest = {"rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0}
    return message(stream, "mutation", key=b"\0k", seqno=seqno, **rest)


def marker(stream: ConsumerStream, start: int, end: int, **more: int) -> bytes:
    window = {"snapshot_start": start, "snapshot_end": end, "flags": int(MarkerFlag.MEMORY)}
    return message(stream, "snapshot_marker", key=b"", **window, **more)


def answer(stream: ConsumerStream, status: Status = Status.SUCCESS, value: bytes = b"", **fields: int) -> bytes:
    body = value or (FAILOVER_LOG.encode(LOG) if status is Status.SUCCESS else b"")
    return encode(Frame("stream_request", Magic.RESPONSE, stream.opaque, status=int(status), fields=fields, value=body))


def streaming(
    agreement: Agreement = AGREEMENT, seqno: int = 0, sid: int | None = None
) -> tuple[Session, ConsumerStream]:
    session = ready(agreement)
    chosen = None if sid is None else StreamFilter(sid=sid)
    position = StreamPosition(7, 0xA if seqno else 0, seqno, seqno, seqno, purge_seqno=5)
    stream = session.open(Progress(position), stream_filter=chosen)
    session.outgoing()
    assert [type(event) for event in hear(session, answer(stream))] == [StreamAccepted]
    return session, stream


def messages(session: Session) -> list[tuple[str, dict[str, Any]]]:
    return [(frame.name, dict(frame.fields)) for frame in dcp.decode(session.outgoing())]


# ------------------------------------------------------------------ what goes out


def test_answers_that_a_node_waits_for_come_first() -> None:
    session, stream = streaming()
    session.send_command("get_failover_log", vbucket=7)
    noops = [encode(Frame("dcp_noop", Magic.REQUEST, opaque)) for opaque in (11, 12)]
    hear(session, noops[0] + marker(stream, 0, 9) + row(stream, 1) + noops[1])
    out = dcp.decode(session.outgoing())
    assert [(frame.name, frame.opaque) for frame in out[:2]] == [("dcp_noop", 11), ("dcp_noop", 12)]
    assert [frame.name for frame in out[2:]] == ["get_failover_log"]


def test_noops_whose_answers_are_not_taken_break_the_protocol() -> None:
    session, _ = streaming()
    noop = encode(Frame("dcp_noop", Magic.REQUEST, 11))
    for _ in range(2):
        hear(session, noop * 1024)
        session.take()
        assert len(session.outgoing()) == 1024 * len(noop)
    hear(session, noop * 1025)
    with pytest.raises(RemoteProtocolError, match="1024 without an answer"):
        session.take()


def test_what_is_processed_is_given_back_of_every_message_that_counts() -> None:
    session, stream = streaming(replace(AGREEMENT, window=1 << 20))
    counted = marker(stream, 0, 5) + row(stream, 1) + message(stream, "seqno_advanced", seqno=5)
    counted += marker(stream, 91, 95) + row(stream, 95) + message(stream, "stream_end", reason=0)
    stray = ConsumerStream(4711, Progress(StreamPosition(9)))
    counted += message(stray, "seqno_advanced", seqno=5)
    hear(session, counted + encode(Frame("dcp_noop", Magic.REQUEST, 1)))
    delivery = session.take()
    session.processed(delivery.flow_bytes)
    assert session.stray_messages == 1
    session.outgoing()
    session.acknowledge()
    assert messages(session) == [("buffer_ack", {"bytes": len(counted)})]
    session.acknowledge()
    assert messages(session) == []


def test_a_quarter_of_the_window_is_given_back_at_once() -> None:
    session, stream = streaming()
    hear(session, marker(stream, 0, 90) + row(stream, 1))
    counted = session.take().flow_bytes
    session.processed(249 - counted)
    assert messages(session) == []
    session.processed(counted)
    session.processed(1)
    assert messages(session) == [("buffer_ack", {"bytes": 250})]


def test_messages_without_rows_take_no_room_and_need_no_consumer() -> None:
    session, stream = streaming()
    given_back = 0
    for n in range(200):
        hear(session, marker(stream, n, n + 1) + message(stream, "seqno_advanced", seqno=n + 1))
        given_back += sum(fields["bytes"] for _, fields in messages(session))
    assert 200 * 76 - 250 <= given_back <= 200 * 76
    assert session.has_updates
    delivery = session.take()
    assert not delivery.batch.controls
    assert delivery.positions[7, None].position.seqno == 200


def test_the_node_counts_as_gone_after_two_intervals() -> None:
    session, stream = streaming()
    assert session.deadline() == 240.0
    hear(session, marker(stream, 0, 9), now=50.0)
    assert session.deadline() == 290.0


def test_rows_that_arrive_as_the_token_expires_are_delivered_with_their_position() -> None:
    peer = Peer({"sasl_list_mechs": b"OAUTHBEARER"})
    session, _ = handshake(peer, credentials=lambda: BearerToken("a-token", usable=100.0))
    stream = session.open(Progress(StreamPosition(7)))
    hear(session, answer(stream))
    session.take()
    hear(session, marker(stream, 0, 9) + row(stream, 1) + row(stream, 2), now=100.0)
    delivery = session.take()
    assert (len(delivery.batch), delivery.positions[7, None].position.seqno) == (2, 2)
    with pytest.raises(TransportError, match="the token of the connection expires soon"):
        session.take()


@pytest.mark.parametrize(("max_rows", "max_bytes", "expected"), [(2, MANY, 2), (MANY, 120, 1)])
def test_a_batch_is_full_at_its_rows_or_its_bytes(max_rows: int, max_bytes: int, expected: int) -> None:
    session, stream = streaming()
    data = marker(stream, 0, 9) + b"".join(row(stream, seqno) for seqno in (1, 2, 3))
    session.buffer()[: len(data)] = data
    assert session.received(len(data), 0.0, max_rows, max_bytes) == ([], True)
    assert len(session.take().batch) == expected
    assert session.advance(MANY, MANY) == ([], False)
    assert len(session.take().batch) == 3 - expected


def test_a_node_that_falls_silent_is_given_up_for_another_reason_than_one_that_never_answers() -> None:
    session, _ = streaming()
    session.check(239.0)
    with pytest.raises(TransportError, match="no byte from the node for 240 s"):
        session.check(240.0)
    session = Session(requested(handshake_timeout=7.0), decoder, 100.0)
    session.check(106.0)
    with pytest.raises(TimeoutError, match="no answer within 7 s; check the host"):
        session.check(107.0)


def test_a_message_that_has_no_place_is_reported_and_one_that_waits_for_an_answer_is_refused() -> None:
    session, _ = streaming()
    odd = Frame(UNKNOWN, Magic.REQUEST, 4, vbucket=3, fields={"opcode": 0x7A, "extras": b""})
    change = Frame("set_vbucket_state", Magic.REQUEST, 5, vbucket=7, fields={"state": 2})
    assert hear(session, encode(odd) + encode(change)) == [
        MessageIgnored(UNKNOWN, 0x7A, 3, None),
        MessageIgnored("set_vbucket_state", 0x5B, 7, Status.NOT_SUPPORTED),
    ]
    (refusal,) = dcp.decode(session.outgoing())
    assert (refusal.name, refusal.kind.answers, refusal.opaque) == ("set_vbucket_state", True, 5)
    assert refusal.status == Status.NOT_SUPPORTED


def test_a_known_purge_is_told_where_servers_understand_it() -> None:
    position = StreamPosition(7, 0xA, 50, 50, 50, purge_seqno=44)
    for controls, expected in ((AGREEMENT.controls, None), (AGREEMENT.controls | {"max_marker_version"}, 44)):
        session = ready(replace(AGREEMENT, controls=controls))
        session.open(Progress(position), stream_filter=StreamFilter(collections=(8,)))
        (asked,) = dcp.decode(session.outgoing())
        assert asked.body() == StreamFilter(collections=(8,), purge_seqno=expected)


# ------------------------------------------------------------------ streams


def test_only_what_can_be_asked_for_is() -> None:
    session, _ = streaming()
    with pytest.raises(LocalProtocolError, match="vbucket 7: expected one stream at a time"):
        session.open(Progress(StreamPosition(7)))
    with pytest.raises(LocalProtocolError, match="stream id"):
        session.open(Progress(StreamPosition(8)), stream_filter=StreamFilter(sid=3))
    with pytest.raises(LocalProtocolError, match="stream id"):
        ready(WITH_IDS).open(Progress(StreamPosition(8)))
    assert dcp.decode(session.outgoing()) == []
    with pytest.raises(LocalProtocolError, match="expected a session that is ready"):
        Session(requested(), decoder, 0.0).open(Progress(StreamPosition(7)))


def test_a_position_of_collections_is_not_resumed_without_them() -> None:
    position = StreamPosition(7, 0xA, 50, 50, 50, manifest_uid=3)
    ready().open(Progress(position))
    session = ready(replace(AGREEMENT, features=frozenset()))
    session.open(Progress(replace(position, vbucket=8, manifest_uid=0)))
    with pytest.raises(TransportError, match="vbucket 7: the checkpoint is of a stream with collections"):
        session.open(Progress(position))


def test_refusals_and_rollbacks_end_a_request() -> None:
    session = ready()
    for status, kind in ((Status.ETMPFAIL, StreamRefused), (Status.NOT_MY_VBUCKET, StreamRefused)):
        stream = session.open(Progress(StreamPosition(7)))
        (event,) = hear(session, answer(stream, status, b"{not json"))
        assert isinstance(event, kind)
        assert (event.status, stream.ended) == (status, True)
    stream = session.open(Progress(StreamPosition(7, 0xA, 50, 40, 60)))
    (event,) = hear(session, answer(stream, Status.ROLLBACK, rollback_seqno=30))
    assert isinstance(event, StreamRolledBack)
    assert (event.seqno, event.stream.position.seqno) == (30, 50)


def test_a_second_answer_and_answers_to_nothing_are_counted_and_dropped() -> None:
    session, stream = streaming()
    hear(session, marker(stream, 0, 9) + row(stream, 4))
    assert hear(session, answer(stream) + answer(stream, Status.ROLLBACK, rollback_seqno=0)) == []
    opaque = session.send_command("get_failover_log", vbucket=7)
    sent = encode(Frame("get_failover_log", Magic.RESPONSE, opaque, value=FAILOVER_LOG.encode(LOG)))
    assert [type(event) for event in hear(session, sent + sent)] == [CommandAnswered]
    assert session.stray_messages == 3
    assert session.take().positions[7, None].position.seqno == 4


def test_a_closed_stream_ends_when_the_server_says_so() -> None:
    session, stream = streaming()
    session.close_stream(stream)
    (closing,) = dcp.decode(session.outgoing())
    # Servers before 6.5 know no frame infos.
    assert (closing.name, closing.magic, closing.opaque) == ("close_stream", Magic.REQUEST, stream.opaque)
    closed = encode(Frame("close_stream", Magic.RESPONSE, stream.opaque))
    assert hear(session, marker(stream, 0, 9) + row(stream, 1) + closed) == []
    (event,) = hear(session, message(stream, "stream_end", reason=int(StreamEnd.CLOSED)))
    assert isinstance(event, StreamEnded)
    assert (event.reason, session.streams) == (StreamEnd.CLOSED, {})


@pytest.mark.parametrize(("controls", "status"), [(frozenset(), Status.SUCCESS), ({CLOSING}, Status.KEY_ENOENT)])
def test_where_it_says_no_more_it_ends_with_the_answer(controls: frozenset[str], status: Status) -> None:
    session, stream = streaming(replace(AGREEMENT, controls=frozenset(controls)))
    session.close_stream(stream)
    sent = marker(stream, 0, 9) + row(stream, 3)
    (event,) = hear(session, sent + encode(Frame("close_stream", Magic.RESPONSE, stream.opaque, status=int(status))))
    assert isinstance(event, StreamEnded)
    assert session.take().positions[7, None].position.seqno == 3
    again = session.open(Progress(stream.position))
    assert again.opaque != stream.opaque


def test_streams_of_one_vbucket_are_told_apart_by_their_ids() -> None:
    session = ready(WITH_IDS)
    streams = [session.open(Progress(StreamPosition(7)), stream_filter=StreamFilter(sid=sid)) for sid in (1, 2)]
    assert streams[0].opaque != streams[1].opaque
    hear(session, b"".join(map(answer, streams)))
    hear(session, b"".join(marker(stream, 0, 50) for stream in streams))
    hear(session, row(streams[0], 10) + row(streams[1], 20) + row(streams[0], 11))
    marks = session.take().positions
    assert {key: mark.position.seqno for key, mark in marks.items()} == {(7, 1): 11, (7, 2): 20}
    session.outgoing()
    session.close_stream(streams[1])
    (closing,) = dcp.decode(session.outgoing())
    assert (closing.stream_id, closing.vbucket) == (2, 7)


def test_out_of_order_no_position_moves_until_the_end() -> None:
    session, stream = streaming()
    begins, ends = (message(stream, "oso_snapshot", flags=int(flag)) for flag in OsoSnapshot)
    hear(session, begins + row(stream, 9) + row(stream, 2))
    assert session.take().positions[7, None].position.seqno == 0
    hear(session, row(stream, 4) + message(stream, "seqno_advanced", seqno=12) + ends)
    position = session.take().positions[7, None].position
    assert (position.seqno, position.snapshot_start, position.snapshot_end) == (12, 12, 12)


def test_both_markers_of_a_change_stream_are_one_snapshot() -> None:
    session, stream = streaming()
    hear(session, marker(stream, 0, 50) + row(stream, 10) + marker(stream, 0, 50) + row(stream, 20))
    position = session.take().positions[7, None].position
    assert (position.seqno, position.snapshot_start, position.snapshot_end) == (20, 0, 50)


@pytest.mark.parametrize(
    ("more", "purge_seqno"),
    [
        ({}, 5),
        ({"version": 0, "max_visible_seqno": 9, "high_completed_seqno": 0}, 5),
        ({"version": 1, "max_visible_seqno": 9, "high_completed_seqno": 0, "timestamp": 3}, 5),
        (
            {
                "version": 2,
                "max_visible_seqno": 9,
                "high_completed_seqno": 0,
                "purge_seqno": 8,
                "high_prepared_seqno": 0,
            },
            8,
        ),
    ],
)
def test_markers_of_every_version(more: dict[str, int], purge_seqno: int) -> None:
    session, stream = streaming(seqno=20)
    hear(session, marker(stream, 20, 50, **more) + row(stream, 30))
    position = session.take().positions[7, None].position
    assert (position.seqno, position.snapshot_start, position.snapshot_end) == (30, 20, 50)
    assert position.purge_seqno == purge_seqno


# ------------------------------------------------------------------ what breaks the protocol

BREACHES = {
    "a snapshot before the answer": "requested: expected accepted, refused, rolled_back, found snapshot_marker",
    "an advance without a snapshot": "accepted: expected .*, found seqno_advanced",
    "a row beyond the snapshot": "mutation of seqno 51, key b'k': seqno: expected 50 at most, the end of its snapshot",
    "a row that was there": "mutation of seqno 9, key b'k': seqno: expected one above 10, the last before it",
    "a snapshot that lies back": "expected a snapshot that ends at 10 or above, found 3 to 9",
    "an advance beyond": "expected a seqno from 10 to 50, found 51",
    "a row after the end": "mutation of seqno 11, key b'k': expected rows of an open stream only",
    "rows of a refused stream": "vbucket 7: expected rows of open streams",
    "an end out of nowhere": "in_order: expected .*, found oso_ends",
    "out of order later": "in_order: expected .*, found oso_begins",
    "another vbucket": r"expected vbucket and stream id \(7, None\), found \(8, None\)",
    "a long log": "expected a failover log of 16384 bytes at most",
    "no log": "expected a failover log of 1 entry or more",
}


def breach(what: str) -> tuple[Session, bytes]:
    if what in ("a snapshot before the answer", "a long log", "no log", "rows of a refused stream"):
        session = ready()
        stream = session.open(Progress(StreamPosition(7)))
        if what == "rows of a refused stream":
            return session, answer(stream, Status.ENOMEM) + marker(stream, 0, 9) + row(stream, 1)
        log = FAILOVER_LOG.encode([(1, 0)] * 1025)
        no_log = encode(Frame("stream_request", Magic.RESPONSE, stream.opaque))
        return session, {"a long log": answer(stream, value=log), "no log": no_log}.get(what, marker(stream, 0, 9))
    session, stream = streaming()
    if what == "an advance without a snapshot":
        return session, message(stream, "seqno_advanced", seqno=1)
    hear(session, marker(stream, 0, 50) + row(stream, 10))
    session.take()
    other = ConsumerStream(stream.opaque, Progress(StreamPosition(8)))
    return session, {
        "a row beyond the snapshot": row(stream, 51),
        "a row that was there": marker(stream, 0, 50) + row(stream, 9) + marker(stream, 0, 50),
        "a snapshot that lies back": marker(stream, 3, 9),
        "an advance beyond": message(stream, "seqno_advanced", seqno=51),
        "a row after the end": message(stream, "stream_end", reason=2) + marker(stream, 11, 12) + row(stream, 11),
        "an end out of nowhere": message(stream, "oso_snapshot", flags=int(OsoSnapshot.END)),
        "out of order later": message(stream, "oso_snapshot", flags=int(OsoSnapshot.START)),
        "another vbucket": marker(other, 0, 9),
    }[what]


@pytest.mark.parametrize("what", BREACHES)
def test_what_breaks_the_protocol_is_said_for_good(what: str) -> None:
    session, sent = breach(what)
    hear(session, sent)
    if session.has_updates:
        # Take what arrived before the error.
        with contextlib.suppress(RemoteProtocolError):
            session.take()
    assert session.advance(MANY, MANY) == ([], True)
    with pytest.raises(RemoteProtocolError, match=BREACHES[what]):
        session.take()


def stream_like(stream: ConsumerStream, opaque: int, stream_id: int | None = None) -> ConsumerStream:
    """Return a stream of the same vbucket that nobody opened."""
    return ConsumerStream(opaque, stream.progress, stream_id=stream_id)


NOWHERE = "expected rows of an open stream only, found none with this opaque, vbucket and stream id"
RISING = "expected one above 12, the last before it"
# Bytes after a snapshot from 0 to 20 with rows 10 to 12 of vbucket 7, and what is wrong with them.
MISPLACED: dict[str, tuple[Callable[[ConsumerStream, ConsumerStream], bytes], str]] = {
    "after the end": (lambda here, _: message(here, "stream_end", reason=2) + row(here, 13), NOWHERE),
    "before a snapshot": (lambda _, other: row(other, 1), "expected a snapshot of its stream before it, found none"),
    "of no stream": (lambda here, _: row(stream_like(here, 99), 13), NOWHERE),
    "of no stream, with a snapshot": (
        lambda here, _: marker(stream_like(here, 99), 0, 20) + row(stream_like(here, 99), 13),
        NOWHERE,
    ),
    "of another vbucket": (lambda here, other: row(stream_like(other, here.opaque), 13), NOWHERE),
    "with a stream id": (lambda here, _: row(stream_like(here, here.opaque, 5), 13), NOWHERE),
    "repeated": (lambda here, _: row(here, 12), RISING),
    "repeated in another snapshot": (lambda here, _: marker(here, 0, 30) + row(here, 12), RISING),
    "from before, in another snapshot": (lambda here, _: marker(here, 0, 30) + row(here, 3) + row(here, 25), RISING),
    "from before the position": (
        lambda _, other: marker(other, 0, 50) + row(other, 40) + row(other, 45),
        "expected one above 40, the last before it",
    ),
    "below an advance": (
        lambda here, _: message(here, "seqno_advanced", seqno=15) + row(here, 14) + row(here, 16),
        "expected one above 15, the last before it",
    ),
    "beyond the snapshot": (lambda here, _: row(here, 21), "expected 20 at most, the end of its snapshot"),
}


@pytest.mark.parametrize("what", MISPLACED)
@pytest.mark.parametrize("together", [True, False], ids=["in one piece", "frame by frame"])
def test_a_row_without_a_place_is_an_error_after_the_rows_before_it(what: str, together: bool) -> None:
    session, stream = streaming()
    other = session.open(Progress(StreamPosition(8, 0xA, 40, 40, 40)))
    hear(session, answer(other))
    make, problem = MISPLACED[what]
    sound = marker(stream, 0, 20) + row(stream, 10) + row(stream, 11) + row(stream, 12)
    if together:
        hear(session, sound + make(stream, other) + row(stream, 19))
    else:
        for frame in cut(sound + make(stream, other)):
            hear(session, frame)
    delivery = session.take()
    assert delivery.batch.num_rows == 3
    assert delivery.positions[7, None].position.seqno == (15 if what == "below an advance" else 12)
    with pytest.raises(FrameError, match=problem):
        session.take()


@pytest.mark.parametrize("seqno", [11, 21])
def test_a_stream_holds_rows_against_its_snapshot_as_well_as_the_decoder(seqno: int) -> None:
    _, stream = streaming()
    (begins,) = dcp.decode(marker(stream, 0, 20))
    stream.control_arrived(begins)
    stream.rows_arrived(12)
    with pytest.raises(RemoteProtocolError, match=f"expected a row from seqno 13 to 20, found {seqno}"):
        stream.rows_arrived(seqno)


@pytest.mark.parametrize(("start", "skipped"), [(20, False), (21, True)])
def test_a_marker_that_begins_at_the_end_of_a_snapshot_continues_it(start: int, skipped: bool) -> None:
    _, stream = streaming()
    begins, following = dcp.decode(marker(stream, 0, 20) + marker(stream, start, 30))
    stream.control_arrived(begins)
    stream.settle(12)
    assert stream.misses_snapshot_end(following) is skipped


def test_no_position_covers_rows_that_were_lost_with_an_error() -> None:
    session, stream = streaming()
    hear(session, marker(stream, 0, 20) + row(stream, 12))
    stream.state = OVER
    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            session.take()


def test_rows_of_a_refused_stream_are_an_error_after_the_rows_before_them() -> None:
    session = ready()
    refused, other = (session.open(Progress(StreamPosition(vbucket))) for vbucket in (7, 8))
    hear(session, answer(refused, Status.ENOMEM) + answer(other))
    hear(session, marker(other, 0, 9) + row(other, 1) + marker(refused, 0, 9) + row(refused, 1))
    assert session.take().batch.num_rows == 1
    with pytest.raises(FrameError, match=NOWHERE):
        session.take()


def test_out_of_order_rows_need_no_order_but_a_place() -> None:
    session, stream = streaming()
    begins, ends = (message(stream, "oso_snapshot", flags=int(flag)) for flag in OsoSnapshot)
    hear(session, begins + row(stream, 9) + row(stream, 2) + ends + row(stream, 10))
    delivery = session.take()
    assert delivery.batch.num_rows == 2
    assert delivery.positions[7, None].position.seqno == 9
    with pytest.raises(FrameError, match="expected a snapshot of its stream before it, found none"):
        session.take()


def test_the_longest_failover_log_is_accepted() -> None:
    session = ready()
    stream = session.open(Progress(StreamPosition(7)))
    log = FAILOVER_LOG.encode([(1, 0)] * 1024)
    assert hear(session, answer(stream, value=log)) == [StreamAccepted(stream)]


def test_after_out_of_order_rows_the_order_begins_above_them() -> None:
    session, stream = streaming()
    begins, ends = (message(stream, "oso_snapshot", flags=int(flag)) for flag in OsoSnapshot)
    hear(session, begins + row(stream, 9) + row(stream, 2) + ends + marker(stream, 0, 20) + row(stream, 10))
    assert session.take().positions[7, None].position.seqno == 10
    hear(session, marker(stream, 10, 20) + row(stream, 9))
    session.take()
    with pytest.raises(FrameError, match="expected one above 10"):
        session.take()


def test_rows_on_their_way_to_a_closed_stream_are_dropped() -> None:
    """Nodes before 5.5 may send a row that was waiting for the window after they have answered."""
    session, stream = streaming(replace(AGREEMENT, controls=frozenset()))
    session.close_stream(stream)
    closed = encode(Frame("close_stream", Magic.RESPONSE, stream.opaque))
    hear(session, marker(stream, 0, 9) + row(stream, 3) + closed)
    assert session.take().positions[7, None].position.seqno == 3
    late = row(stream, 4) + marker(stream, 4, 9) + row(stream, 5)
    hear(session, late)
    assert session.take().batch.num_rows == 0
    assert session.stray_messages == 3
    again = session.open(Progress(stream.position))
    hear(session, answer(again) + marker(again, 3, 9) + row(again, 4))
    delivery = session.take()
    assert delivery.batch.num_rows == 1
    assert delivery.positions[7, None].position.seqno == 4


@pytest.mark.parametrize(
    ("end", "out_of_order", "complete"),
    [(5, False, True), (7, False, False), (20, False, False), (5, True, False)],
    ids=["its own end", "before its end", "before the end of the snapshot", "in an out-of-order snapshot"],
)
def test_a_stream_ends_at_its_end_or_that_of_its_snapshot(end: int, out_of_order: bool, complete: bool) -> None:
    session = ready()
    session.require_snapshot_end = True
    stream = session.open(Progress(StreamPosition(7)), end=end)
    begins = message(stream, "oso_snapshot", flags=int(OsoSnapshot.START))
    hear(session, answer(stream) + (begins if out_of_order else marker(stream, 0, 9)) + row(stream, 5))
    events = hear(session, message(stream, "stream_end", reason=0))
    assert [type(event) for event in events] == ([StreamEnded] if complete else [])
    assert session.take().batch.num_rows == 1
    if not complete:
        with pytest.raises(SnapshotError):
            session.take()


def test_seqnos_without_rows_count_as_received() -> None:
    session, stream = streaming()
    hear(session, marker(stream, 0, 20) + row(stream, 3) + message(stream, "seqno_advanced", seqno=8))
    assert stream.last_seqno == 8


def test_what_came_before_is_delivered_first_and_nothing_behind() -> None:
    session, stream = streaming()
    bad = message(stream, "oso_snapshot", flags=int(OsoSnapshot.END))
    end = message(stream, "stream_end", reason=0)
    assert hear(session, marker(stream, 0, 50) + row(stream, 10) + bad + row(stream, 11) + end) == []
    delivery = session.take()
    assert delivery.batch.num_rows == 1
    assert delivery.positions[7, None].position.seqno in (0, 10)
    with pytest.raises(RemoteProtocolError):
        session.take()


def test_opaques_go_round_without_meeting() -> None:
    session, stream = streaming()
    session._opaques = 0xFFFF_FFF0
    assert stream.opaque == 1
    assert session.send_command("get_failover_log", vbucket=1) == 2


# ------------------------------------------------------------------ purged deletions

PURGES = {"version": 2, "max_visible_seqno": 0, "high_completed_seqno": 0, "high_prepared_seqno": 0}


@pytest.mark.parametrize(
    ("flags", "seqno", "out_of_order", "reported"),
    [
        (StreamFlag.IGNORE_PURGED_TOMBSTONES, 9, False, True),
        # The deletions up to the position were delivered.
        (StreamFlag.IGNORE_PURGED_TOMBSTONES, 11, False, False),
        # The node has checked these: it rolls a stream back that misses deletions of its collections.
        (StreamFlag(0), 9, False, False),
        # From the beginning nothing is missed, even if the first marker comes after an out-of-order snapshot.
        (StreamFlag.IGNORE_PURGED_TOMBSTONES, 0, False, False),
        (StreamFlag.IGNORE_PURGED_TOMBSTONES, 0, True, False),
    ],
)
def test_a_purge_is_reported_to_a_resumed_stream_that_ignores_it(
    flags: StreamFlag, seqno: int, out_of_order: bool, reported: bool
) -> None:
    session = ready()
    position = StreamPosition(7, 0xA if seqno else 0, seqno, seqno, seqno)
    stream = session.open(Progress(position), flags=flags)
    data = answer(stream)
    if out_of_order:
        start, end = (message(stream, "oso_snapshot", flags=int(flag)) for flag in (OsoSnapshot.START, OsoSnapshot.END))
        data += start + row(stream, 9) + end
    _, *events = hear(session, data + marker(stream, 9, 20, purge_seqno=11, **PURGES))
    assert events == ([DeletionsPurged(stream, 9, 11)] if reported else [])


def test_the_history_that_a_node_names_is_delivered_before_any_row() -> None:
    session = ready()
    stream = session.open(Progress(StreamPosition(7)))
    session.outgoing()
    hear(session, answer(stream))
    (position,) = session.take().positions.values()
    assert position.progress.position.failover_log == LOG


def test_snapshots_that_arrived_whole_are_no_part_of_an_out_of_order_one() -> None:
    _, stream = streaming()
    stream.control_arrived(Frame("oso_snapshot", Magic.REQUEST, fields={"flags": int(OsoSnapshot.START)}))
    with pytest.raises(RemoteProtocolError, match=r"out_of_order: expected .*, found snapshot_marker"):
        stream.snapshots_passed([5], 6, 9)


def test_a_stream_that_is_closed_without_rows_is_delivered_as_closed() -> None:
    session, stream = streaming(replace(AGREEMENT, controls=frozenset()))
    session.take()
    session.close_stream(stream)
    hear(session, encode(Frame("close_stream", Magic.RESPONSE, stream.opaque)))
    assert session.has_updates
    assert (7, None) in session.take().positions
    assert not session.has_updates
