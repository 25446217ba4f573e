"""Broken servers: sessions raise only documented errors, and their memory stays bounded."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp.errors import DcpError, RemoteProtocolError, ServerError, SnapshotError
from dcp.position import Progress
from dcp.session.session import Session
from dcp.session.stream import ConsumerStream
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from tests.conformance import TRANSCRIPTS, cut, transcript
from tests.session.harness import MANY, Peer, decoder, ready_session, requested
from tests.session.replay import STREAMED, Replay, with_opaque

SMALL = [path for path in STREAMED if path.stat().st_size < 12_000]


class Damage(NamedTuple):
    """One change to the frames of a conversation. Places are thousandths of the whole."""

    kind: str
    frame: int
    place: int
    data: bytes


KINDS = ["flip", "cut", "insert", "drop", "twice", "swap", "opaque", "vbucket"]
DAMAGES = st.lists(
    st.builds(
        Damage, st.sampled_from(KINDS), st.integers(0, 999), st.integers(0, 999), st.binary(min_size=1, max_size=8)
    ),
    min_size=1,
    max_size=4,
)


def damaged(frames: list[bytes], damages: list[Damage]) -> bytes:
    frames = list(frames)
    for kind, frame, place, data in damages:
        n = frame * len(frames) // 1000
        raw = frames[n]
        at = place * len(raw) // 1000
        frames[n] = {
            "flip": raw[:at] + bytes([raw[at] ^ data[0]]) + raw[at + 1 :] if raw else raw,
            "cut": raw[:at],
            "insert": raw[:at] + data + raw[at:],
            "drop": b"",
            "twice": raw + raw,
            "swap": frames[n - 1],
            "opaque": with_opaque(raw, data[0] % 4) if len(raw) > 16 else raw,
            "vbucket": raw[:6] + bytes([0, data[0] % 16]) + raw[8:],
        }[kind]
    return b"".join(frames)


def survive(session: Session, data: bytes, chunk: int) -> DcpError | None:
    """Pass bytes to a session. Return the error that it ends with and then repeats; None if it does not end."""
    try:
        while data:
            with session.buffer() as room:
                count = min(len(room), len(data), chunk)
                room[:count] = data[:count]
            data = data[count:]
            _, full = session.received(count, 0.0, 7, MANY)
            while full:
                delivery = session.take()
                for mark in delivery.positions.values():
                    assert mark.position.vbucket < 1 << 16
                session.processed(delivery.flow_bytes)
                _, full = session.advance(7, MANY)
        for mark in session.take().positions.values():
            assert mark.position.seqno >= 0
    except DcpError as error:
        return error
    return None


@settings(max_examples=400)
@given(st.sampled_from(SMALL), DAMAGES, st.sampled_from([1, 13, 1 << 20]))
def test_damaged_conversations_end_in_documented_errors(path: object, damages: list[Damage], chunk: int) -> None:
    replay = Replay(transcript(next(one for one in SMALL if one == path)))
    session = ready_session(replay.agreement, decoder)
    opened: dict[object, ConsumerStream] = {}
    frames = []
    for step in replay.steps:
        if step.request is not None and (step.request.frame.vbucket, step.request.sid) not in opened:
            key = step.request.frame.vbucket, step.request.sid
            chosen = step.request.frame.body() if step.request.frame.value else None
            opened[key] = session.open(Progress(step.request.position), stream_filter=chosen)
        stream = None
        if step.request_of is not None:
            stream = opened[step.request_of.frame.vbucket, step.request_of.sid]
        frames.append(step.raw if stream is None else with_opaque(step.raw, stream.opaque))
    session.outgoing()
    data = damaged(frames, damages)
    error = survive(session, data, chunk)
    # A lost frame can also look like a snapshot whose end the node skipped.
    assert error is None or isinstance(error, RemoteProtocolError | SnapshotError)
    assert len(session.streams) <= len(opened)
    # Answers to noops, and acknowledgements.
    assert len(session.outgoing()) <= 2 * len(data) + 100
    if error is not None:
        with pytest.raises(type(error)):
            session.take()


@given(st.binary(max_size=200), st.integers(1, 50), st.integers(0, 20))
def test_garbage_during_a_handshake_ends_in_documented_errors(garbage: bytes, chunk: int, after: int) -> None:
    session, peer = Session(requested(), decoder, 0.0), Peer()
    for _ in range(after):
        if session.agreement is None:
            for asked in dcp.decode(session.outgoing()):
                assert survive(session, peer.answer(asked), 1 << 20) is None
    error = survive(session, garbage, chunk)
    assert error is None or isinstance(error, RemoteProtocolError | ServerError)


HELLOS = [raw for path in TRANSCRIPTS for raw in cut(transcript(path).main.server)[:8] if raw[0] == 0x81]


@given(st.sampled_from(HELLOS), DAMAGES)
def test_damaged_answers_of_a_handshake_end_in_documented_errors(raw: bytes, damages: list[Damage]) -> None:
    session, peer = Session(requested(), decoder, 0.0), Peer()
    error = None
    for _ in range(30):
        asked = dcp.decode(session.outgoing())
        if not asked or error is not None:
            break
        right = peer.answer(asked[0])
        same = raw[1] == right[1]
        error = survive(session, damaged([with_opaque(raw, 0) if same else right], damages if same else []), 1 << 20)
    assert error is None or isinstance(error, DcpError)


def test_a_flood_of_strangers_takes_no_room() -> None:
    session, peer = Session(requested(), decoder, 0.0), Peer()
    while session.agreement is None:
        for asked in dcp.decode(session.outgoing()):
            survive(session, peer.answer(asked), 1 << 20)
    session.outgoing()
    one = encode(Frame("seqno_advanced", Magic.REQUEST, 99, vbucket=9, fields={"seqno": 5}))
    for _ in range(300):
        assert survive(session, one * 100, 1 << 20) is None
    assert session.stray_messages == 30_000
    assert not session._decoder.new_controls
