"""Frames as objects: properties of everything that the tables can express, and texts of errors."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.wire.frame import decode, encode, read_opaque, split
from dcp.wire.framing import UNCOUNTED_HEAD, stream_id
from dcp.wire.layout import Dialect
from tests.strategies import conversations

Conversation = tuple[Dialect, list[dcp.Frame]]

MUTATION = dcp.Frame(
    "mutation",
    0x80,
    opaque=0x22,
    vbucket=9,
    fields={"seqno": 1, "rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0},
    key=b"k",
    value=b"v",
)


@given(conversations())
def test_what_is_encoded_decodes_to_the_same_frames(conversation: Conversation) -> None:
    dialect, frames = conversation
    data = b"".join(encode(frame, dialect.name) for frame in frames)
    assert decode(data, dialect.name) == frames


@given(conversations(), st.data())
def test_a_corrupted_byte_gives_frames_or_a_frame_error(conversation: Conversation, data: st.DataObject) -> None:
    dialect, frames = conversation
    raw = bytearray(b"".join(encode(frame, dialect.name) for frame in frames))
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(bytes(raw), dialect.name)
    except dcp.FrameError as error:
        assert 0 <= error.offset <= len(raw)
    else:
        assert b"".join(encode(frame, dialect.name) for frame in found) == raw


@given(st.binary(max_size=200), st.sampled_from(list(dcp.DIALECTS)))
def test_any_bytes_give_frames_or_a_frame_error(data: bytes, dialect: str) -> None:
    try:
        assert b"".join(encode(frame, dialect) for frame in decode(data, dialect)) == data
    except dcp.FrameError as error:
        assert 0 <= error.offset <= len(data)


@given(conversations())
def test_bodies_are_read_or_refused(conversation: Conversation) -> None:
    dialect, frames = conversation
    for frame in frames:
        try:
            frame.body(dialect.name)
        except dcp.RemoteProtocolError as error:
            assert str(error)


@given(conversations())
def test_a_frame_survives_a_pickle_and_shows_what_it_is(conversation: Conversation) -> None:
    for frame in conversation[1]:
        assert pickle.loads(pickle.dumps(frame)) == frame
        assert hash(pickle.loads(pickle.dumps(frame))) == hash(frame)
        assert repr(frame).startswith(f"Frame({frame.name}, ")


@given(conversations())
def test_any_whole_frame_can_be_kept_without_its_layout(conversation: Conversation) -> None:
    dialect, frames = conversation
    for offset, raw in split(b"".join(encode(frame, dialect.name) for frame in frames)):
        if raw[0] not in (0x08, 0x18) or raw[2]:
            assert encode(read_opaque(raw, offset)) == raw


def _change(**changes: Any) -> dcp.Frame:
    members = {name: getattr(MUTATION, name) for name in MUTATION.__slots__}
    return dcp.Frame(**(members | changes))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (_change(name="mutatoin"), "dialect dcp has no request 'mutatoin'; did you mean mutation?"),
        (_change(magic=0x7F), "mutation: magic: expected one of 0x80, 0x81, 0x08, 0x18, 0x82, 0x83, found 127"),
        (_change(vbucket=1 << 16), "mutation: vbucket: expected an integer of 16 bits, found 65536"),
        (_change(opaque=-1), "mutation: opaque: expected an integer of 32 bits, found -1"),
        (_change(status=1), "mutation: status: expected 0 in a request, found 1"),
        (_change(key=b""), "mutation: key length: expected at least 1, found 0"),
        (_change(fields={"seqno": 1}), "expected the fields {seqno, rev_seqno, flags, expiry, lock_time, nru}, found"),
        (_change(fields={**MUTATION.fields, "nru": 256}), "mutation: nru: expected an integer of 8 bits, found 256"),
        (_change(fields={**MUTATION.fields, "meta": 7}), "mutation: meta: expected bytes, found 7"),
        (_change(frame_info=(stream_id(1),)), "mutation: magic: expected 0x08 or 0x18 with frame infos, found 128"),
        (_change(magic=0x08, key=b"k" * 256, frame_info=(stream_id(1),)), "key length: expected at most 255, found"),
        (_change(key=b"k" * (1 << 16)), "mutation: key length: expected at most 65535, found 65536"),
        (_change(magic=0x08, frame_info=(stream_id(1, counted=False),)), "nothing uncounted but the stream id of a"),
        (dcp.Frame("unknown", 0x80), "unknown: fields: expected {opcode: 0 to 255, extras: bytes}"),
        (dcp.Frame("unknown", 0x80, fields={"opcode": b"", "extras": b""}), "unknown: fields: expected {opcode"),
        (dcp.Frame("unknown", 0x80, fields={"opcode": 1, "extras": 1}), "unknown: fields: expected {opcode"),
        (dcp.Frame("unknown", 0x80, fields={"opcode": -1, "extras": b""}), "unknown: fields: expected {opcode"),
        (dcp.Frame("unknown", 0x80, fields={"opcode": 256, "extras": b""}), "unknown: fields: expected {opcode"),
        (dcp.Frame("get_failover_log", 0x81, value=b"x"), "value length: expected a multiple of 16, found 1"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_frame_that_cannot_be_said_is_refused_with_the_reason(frame: dcp.Frame, problem: str) -> None:
    with pytest.raises(dcp.LocalProtocolError) as refused:
        encode(frame)
    assert problem in str(refused.value)


def test_the_value_of_a_frame_is_shown_unless_it_has_credentials() -> None:
    for name, shown in (("set", True), ("get", True), ("sasl_auth", False), ("sasl_step", False)):
        frame = dcp.Frame(name, 0x80, key=b"key", value=b"value of it")
        assert ("value of it" in repr(frame)) is shown


def test_a_message_that_is_no_request_is_refused_as_one() -> None:
    with pytest.raises(dcp.UsageError, match="dialect upr1 has no request 'rollback'"):
        encode(dcp.Frame("rollback", 0x80), "upr1")


def test_a_key_has_two_bytes_of_length_without_frame_infos() -> None:
    for length in (256, (1 << 16) - 1):
        (found,) = decode(encode(_change(key=b"k" * length, fields={**MUTATION.fields, "meta": b""})))
        assert len(found.key) == length


def test_the_fallback_of_a_message_does_not_take_what_a_special_form_claims() -> None:
    event = {"seqno": 5, "event_id": 0, "version": 0}
    with pytest.raises(dcp.LocalProtocolError, match=r"expected the fields .*collection_id"):
        encode(dcp.Frame("system_event", 0x80, fields=event, value=b"short"))


def test_only_an_error_may_have_a_text_in_an_answer_without_a_form() -> None:
    def answer(status: int, value: bytes) -> bytes:
        return struct.pack(">BBHBBHIIQ", 0x81, 0x57, 0, 0, 0, status, len(value), 5, 0) + value

    assert decode(answer(0, b""))[0].value == b""
    assert decode(answer(4, b"text"))[0].value == b"text"
    with pytest.raises(dcp.FrameError, match="mutation response: value length: expected 0, found 4"):
        decode(answer(0, b"text"))


def test_a_frame_error_says_where_whose_and_what() -> None:
    good = encode(MUTATION)
    bad = bytearray(good)
    bad[4] = 30
    with pytest.raises(dcp.FrameError) as refused:
        decode(good + bytes(bad))
    error = refused.value
    assert (error.offset, error.opcode, error.vbucket) == (len(good), 0x57, 9)
    assert str(error) == ("frame at byte 57 (opcode 0x57, vbucket 9): mutation: extras length: expected 31, found 30")


def test_every_form_that_would_have_done_is_named() -> None:
    bad = bytearray(encode(dcp.Frame("deletion", 0x80, fields={"seqno": 1, "rev_seqno": 1}, key=b"key")))
    bad[3:5] = 2, 19
    with pytest.raises(dcp.FrameError, match="extras length: expected 18 or 21, found 19"):
        decode(bytes(bad))


def test_an_unknown_marker_version_is_refused() -> None:
    marker = {"version": 0, "snapshot_start": 1, "snapshot_end": 2, "flags": 1}
    fields = {**marker, "max_visible_seqno": 0, "high_completed_seqno": 0}
    bad = bytearray(encode(dcp.Frame("snapshot_marker", 0x80, fields=fields)))
    bad[24] = 9
    with pytest.raises(dcp.FrameError, match="version: expected 0, 1 or 2, found 9"):
        decode(bytes(bad))


def test_framing_extras_without_a_length_are_read_in_rows_of_streams_only() -> None:
    """Servers send them there. In other messages these bytes are of the body."""
    body = UNCOUNTED_HEAD.to_bytes(1, "big") + bytes(20)
    (frame,) = decode(struct.pack(">BBBBBBHIIQ", 0x08, 0x7E, 0, 0, 0, 0, 0, len(body), 0, 0) + body)
    assert (frame.name, frame.frame_info, frame.value) == ("unknown", (), body)


def test_the_form_that_fits_best_says_what_is_wrong() -> None:
    """Those of other versions have the same extras, and fit less."""
    fields = {"version": 2, "snapshot_start": 1, "snapshot_end": 2, "flags": 1}
    fields |= {"max_visible_seqno": 0, "high_completed_seqno": 0, "purge_seqno": 0, "high_prepared_seqno": 0}
    marker = bytearray(encode(dcp.Frame("snapshot_marker", 0x80, fields=fields)))
    bad = marker[:-4]
    bad[8:12] = (len(bad) - 24).to_bytes(4, "big")
    with pytest.raises(dcp.FrameError, match=r"snapshot_marker: value length: expected \d+, found \d+"):
        decode(bytes(bad))


def test_an_unknown_dialect_is_refused_with_those_there_are() -> None:
    with pytest.raises(dcp.LocalProtocolError, match="expected one of tap, upr1, upr2, dcp, found 'upr3'"):
        decode(b"", "upr3")


def test_the_uncounted_stream_id_of_real_servers_is_read_and_can_be_written() -> None:
    fields = {"seqno": 1, "rev_seqno": 1, "delete_time": 7}
    frame = dcp.Frame("deletion", 0x08, fields=fields, key=b"a", frame_info=(stream_id(71, counted=False),))
    raw = encode(frame)
    assert raw[2] == 0
    assert decode(raw) == [frame]
    assert decode(raw)[0].stream_id == 71


@pytest.mark.parametrize("number", [-(1 << 63), -1, (1 << 63) - 1])
def test_a_signed_field_takes_all_numbers_of_its_width(number: int) -> None:
    frame = dcp.Frame("get_cluster_config", 0x80, fields={"epoch": number, "revision": 0})
    (again,) = dcp.decode(encode(frame))
    assert again.fields["epoch"] == number


@pytest.mark.parametrize("number", [-(1 << 63) - 1, 1 << 63])
def test_a_signed_field_takes_no_other_number(number: int) -> None:
    with pytest.raises(dcp.LocalProtocolError, match="epoch: expected an integer of 64 bits"):
        encode(dcp.Frame("get_cluster_config", 0x80, fields={"epoch": number, "revision": 0}))


def test_reserved_bytes_are_all_or_none() -> None:
    def opening(reserved: Any) -> dcp.Frame:
        return dcp.Frame("open", 0x80, key=b"name", fields={"flags": 1, "reserved": reserved})

    (found,) = decode(encode(opening(b"abcd")))
    assert found.fields["reserved"] == b"abcd"
    assert encode(opening(b"")) == encode(opening(bytes(4)))
    for wrong in (b"abc", b"abcde", 0, "abcd", bytearray(4)):
        with pytest.raises(dcp.LocalProtocolError, match="open: reserved: expected 4 bytes, found "):
            encode(opening(wrong))
