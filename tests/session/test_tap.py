"""Sessions over TAP: the request, acknowledgements and their timing, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.errors import DcpError, LocalProtocolError, RemoteProtocolError, ServerError
from dcp.position import Progress, StreamPosition
from dcp.session.events import MapChanged, StreamAccepted, StreamEnded, StreamRefused
from dcp.session.handshake import ConnectionSettings
from dcp.session.legacy.tap import ONLY_CHANGES, TapConsumerStream, TapSession
from dcp.wire.dcp import ENDLESS, StreamEnd
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status, VbucketState
from dcp.wire.tap import TapConnectFlag, TapFlag, TapOpaque
from tests.session.harness import Peer, hear

BEGIN, END = TapOpaque.INITIAL_VBUCKET_STREAM, TapOpaque.CLOSE_BACKFILL


def ready(
    *vbuckets: int, end: int = ENDLESS, window: int = 0, **asks: Any
) -> tuple[TapSession, list[TapConsumerStream]]:
    """Return a session that has requested vbuckets."""
    session = TapSession(
        ConnectionSettings("me", "b", window=window), lambda _: dcp.Decoder("tap", ["key"]), 0.0, **asks
    )
    peer = Peer()
    while session.agreement is None:
        (asked,) = dcp.decode(session.outgoing())
        hear(session, peer.answer(asked))
    opened = (session.open(Progress(StreamPosition(number)), end=end) for number in vbuckets)
    return session, [stream for stream in opened if isinstance(stream, TapConsumerStream)]


def message(name: str, opaque: int, vbucket: int = 0, *, ttl: int = 255, key: bytes = b"", **fields: int) -> bytes:
    common = {"tap_flags": int(TapFlag.ACK), "ttl": ttl}
    return encode(Frame(name, Magic.REQUEST, opaque, vbucket=vbucket, fields=common | fields, key=key), "tap")


def opaque(number: int, code: TapOpaque, vbucket: int = 0) -> bytes:
    return message("tap_opaque", number, vbucket, code=int(code))


def row(number: int, vbucket: int = 0) -> bytes:
    return message("deletion", number, vbucket, key=b"k%d" % number, rev_seqno=1)


def answers(session: TapSession) -> list[tuple[str, int, int]]:
    return [(frame.name, frame.opaque, frame.status) for frame in dcp.decode(session.outgoing(), "tap")]


def test_all_vbuckets_are_asked_for_at_once() -> None:
    session, _ = ready(3, 5, date=7)
    (asked,) = dcp.decode(session.outgoing(), "tap")
    flags = TapConnectFlag.BACKFILL | TapConnectFlag.LIST_VBUCKETS
    flags |= TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_FLAG_BYTEORDER
    assert (asked.name, asked.key, asked.fields) == ("tap_connect", b"me", {"flags": flags})
    assert (asked.body("tap").backfill, asked.body("tap").vbuckets) == (7, (3, 5))
    assert session.outgoing() == b""
    with pytest.raises(LocalProtocolError, match="expected all vbuckets before the first bytes go out"):
        session.open(Progress(StreamPosition(6)))


def test_nothing_is_gone_on_from() -> None:
    session, _ = ready()
    with pytest.raises(LocalProtocolError, match="vbucket 4: TAP can begin at the beginning only"):
        session.open(Progress(StreamPosition(4, 1, 5, 5, 5)))


def test_rows_are_acknowledged_when_the_consumer_is_done_with_them() -> None:
    session, _ = ready(0)
    session.outgoing()
    hear(session, opaque(2, TapOpaque.ENABLE_AUTO_NACK) + opaque(4, BEGIN))
    assert answers(session) == [("tap_opaque", 2, 0), ("tap_opaque", 4, 0)]
    hear(session, row(5) + row(6) + opaque(8, END))
    assert answers(session) == []
    first = session.take()
    hear(session, row(9))
    second = session.take()
    assert answers(session) == []
    session.processed(first.flow_bytes)
    assert answers(session) == [("deletion", 5, 0), ("deletion", 6, 0), ("tap_opaque", 8, 0)]
    session.processed(second.flow_bytes)
    assert answers(session) == [("deletion", 9, 0)]


def test_a_consumer_without_room_gets_them_again() -> None:
    session, _ = ready(0)
    session.outgoing()
    hear(session, opaque(4, BEGIN) + row(5))
    session.processed(session.take().flow_bytes)
    hear(session, row(6))
    session.decline(session.take().flow_bytes)
    hear(session, row(7))
    session.processed(session.take().flow_bytes)
    assert answers(session)[1:] == [("deletion", 5, 0), ("deletion", 6, Status.ETMPFAIL), ("deletion", 7, 0)]


def test_what_exists_ends_where_that_was_asked_for() -> None:
    session, (first, second) = ready(0, 1, end=1)
    session.outgoing()
    begun = hear(session, opaque(2, BEGIN) + opaque(4, BEGIN, 1))
    assert [type(event) for event in begun] == [StreamAccepted, StreamAccepted]
    (end,) = hear(session, row(5) + opaque(6, END))
    assert isinstance(end, StreamEnded)
    assert (end.stream, end.reason) == (first, StreamEnd.OK)
    assert (first.ended, second.ended) == (True, False)


def test_only_changes_begin_without_a_word() -> None:
    session, streams = ready(0, 1, date=ONLY_CHANGES)
    session.outgoing()
    events = hear(session, opaque(2, TapOpaque.ENABLE_AUTO_NACK))
    assert [(type(event), getattr(event, "stream", None)) for event in events] == [(StreamAccepted, s) for s in streams]


NOOP = encode(Frame("noop", Magic.REQUEST), "tap")


@pytest.mark.parametrize("then", [opaque(6, END), NOOP])
def test_a_vbucket_that_is_not_announced_is_not_there(then: bytes) -> None:
    session, (_, second) = ready(0, 1)
    session.outgoing()
    hear(session, opaque(2, TapOpaque.ENABLE_AUTO_NACK) + opaque(4, BEGIN))
    refused = next(event for event in hear(session, then) if isinstance(event, StreamRefused))
    assert (refused.stream, refused.status) == (second, Status.NOT_MY_VBUCKET)
    assert second.ended


def test_a_sign_of_life_is_a_reason_to_look_at_the_map() -> None:
    session, _ = ready(0)
    session.outgoing()
    hear(session, opaque(4, BEGIN))
    assert [type(event) for event in hear(session, NOOP)] == [MapChanged]
    hear(session, b"", 100.0)
    assert session.deadline() == session.last_heard + 60


def test_a_connection_may_be_refused() -> None:
    session, streams = ready(0, 1)
    session.outgoing()
    events = hear(session, encode(Frame("tap_connect", Magic.RESPONSE, status=int(Status.NOT_SUPPORTED)), "tap"))
    assert [(type(event), getattr(event, "status", None)) for event in events] == [(StreamRefused, 0x83)] * 2
    assert all(stream.ended for stream in streams)


@pytest.mark.parametrize("asked", [True, False])
def test_vbuckets_are_taken_over_only_by_who_asked_for_them(asked: bool) -> None:
    flags = TapConnectFlag.SUPPORT_ACK | (TapConnectFlag.TAKEOVER_VBUCKETS if asked else TapConnectFlag(0))
    session, (stream,) = ready(0, flags=flags)
    session.outgoing()
    states = [message("tap_vbucket_set", n, state=int(s)) for n, s in ((6, 3), (8, VbucketState.ACTIVE))]
    events = hear(session, opaque(2, BEGIN) + states[0] + opaque(4, END) + states[1])
    expected = Status.SUCCESS if asked else Status.NOT_SUPPORTED
    assert [status for name, _, status in answers(session) if name == "tap_vbucket_set"] == [expected] * 2
    assert [type(event) for event in events] == ([StreamAccepted, StreamEnded] if asked else [StreamAccepted])
    assert stream.ended == asked


def test_a_message_that_went_round_in_circles_is_refused() -> None:
    session, (stream,) = ready(0)
    session.outgoing()
    assert hear(session, message("tap_opaque", 2, ttl=0, code=int(BEGIN))) == []
    assert answers(session) == [("tap_opaque", 2, Status.EINVAL)]
    assert stream.state == "requested"


def test_a_flush_cannot_be_gone_on_from() -> None:
    session, _ = ready(0)
    session.outgoing()
    hear(session, opaque(2, BEGIN) + row(3) + message("tap_flush", 4))
    assert len(session.take().batch) == 1
    with pytest.raises(ServerError, match="flushed"):
        session.take()


def test_what_cannot_happen_ends_the_session_behind_what_came_before() -> None:
    session, _ = ready(0)
    session.outgoing()
    hear(session, opaque(2, BEGIN) + row(3) + opaque(4, BEGIN))
    assert len(session.take().batch) == 1
    with pytest.raises(RemoteProtocolError, match="vbucket 0, backfilling: expected close_backfill"):
        session.take()


def test_its_owner_stops_reading_when_the_consumer_is_behind() -> None:
    session, _ = ready(0, window=100)
    session.outgoing()
    hear(session, opaque(2, BEGIN) + row(3) + row(4))
    delivery = session.take()
    assert not session.wants_bytes
    assert session.deadline() is None
    session.processed(delivery.flow_bytes)
    assert session.wants_bytes


PARTS = [opaque(2, BEGIN), row(3), row(4), opaque(6, END), row(7), message("tap_flush", 8), NOOP, b"\x80", b"\x81\x40"]


@given(st.lists(st.sampled_from(PARTS) | st.binary(max_size=30), max_size=12), st.integers(1, 50))
def test_only_documented_errors_come_of_anything(parts: list[bytes], size: int) -> None:
    session, _ = ready(0)
    session.outgoing()
    data = b"".join(parts)
    try:
        for at in range(0, len(data), size):
            hear(session, data[at : at + size])
            session.processed(session.take().flow_bytes)
            session.outgoing()
    except DcpError:
        return
