"""The splitter: any chunks give the same frames, and no length is believed before it is checked."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp import _codec
from dcp.wire.frame import encode
from dcp.wire.framing import UNCOUNTED_HEAD, UNCOUNTED_LENGTH, RequestInfo
from dcp.wire.layout import HEADER, Magic
from dcp.wire.memcached import MAX_FRAME
from tests.strategies import conversations

NOOP = encode(dcp.Frame("noop", 0x80, opaque=7))


def split(chunks: list[bytes], max_frame: int = MAX_FRAME) -> list[bytes]:
    splitter = _codec.Splitter(max_frame)
    frames = []
    for chunk in chunks:
        splitter.feed(chunk)
        frames += list(splitter)
    splitter.finish()
    return frames


def header(magic: int = 0x80, key: int = 0, extras: int = 0, body: int = 0) -> bytes:
    return bytes([magic, 0x57, *key.to_bytes(2, "big"), extras, 0, 0, 9, *body.to_bytes(4, "big")]) + bytes(12)


@given(conversations(), st.lists(st.integers(0, 400), max_size=12))
def test_any_chunking_gives_the_same_frames(
    conversation: tuple[dcp.wire.layout.Dialect, list[dcp.Frame]], cuts: list[int]
) -> None:
    dialect, frames = conversation
    whole = [encode(frame, dialect.name) for frame in frames]
    data = b"".join(whole)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert split([data[a:b] for a, b in pairwise(edges)]) == whole
    assert split([data[i : i + 1] for i in range(len(data))]) == whole


def test_the_header_of_the_codec_is_that_of_the_table() -> None:
    offsets, position = {}, 0
    for field in HEADER:
        offsets[field.name] = position
        position += field.width
    assert {name: offsets[name] for name in _codec.HEADER} == _codec.HEADER


def test_the_framing_of_the_codec_is_that_of_the_table() -> None:
    assert _codec.FRAMING == {
        "stream_id": RequestInfo.STREAM_ID,
        "uncounted_head": UNCOUNTED_HEAD,
        "uncounted_length": UNCOUNTED_LENGTH,
    }


def test_rows_are_made_by_a_decoder_alone() -> None:
    with pytest.raises(TypeError, match="expected a decoder to make them"):
        _codec.Rows()


def test_the_magics_of_the_codec_are_those_of_the_table() -> None:
    accepted = set()
    for magic in range(256):
        try:
            accepted |= {magic for _ in split([header(magic)])}
        except dcp.FrameError:
            continue
    assert accepted == set(Magic)


@pytest.mark.parametrize(
    ("data", "problem", "waited_for"),
    [
        (b"\x00", "magic: expected 0x80 to 0x83, 0x08 or 0x18, found 0x00", 1),
        (
            header(body=0xFFFFFFFF),
            f"frame length: expected at most {MAX_FRAME} bytes (max_frame), found 4294967319",
            12,
        ),
        (header(body=MAX_FRAME - 23), f"frame length: expected at most {MAX_FRAME} bytes", 12),
        (
            header(key=5, extras=4, body=8),
            "expected at least 0 bytes of framing extras, 4 of extras and 5 of key, found 8",
            12,
        ),
        (
            header(0x08, key=0x0302, extras=4, body=8),
            "at least 3 bytes of framing extras, 4 of extras and 2 of key",
            12,
        ),
    ],
)
def test_a_length_is_judged_as_soon_as_its_bytes_are_there(data: bytes, problem: str, waited_for: int) -> None:
    splitter = _codec.Splitter(MAX_FRAME)
    splitter.feed(NOOP + data[: waited_for - 1])
    assert list(splitter) == [NOOP]
    splitter.feed(data[waited_for - 1 : waited_for])
    with pytest.raises(dcp.FrameError) as refused:
        next(splitter)
    assert problem in str(refused.value)
    assert refused.value.offset == len(NOOP)


def test_a_refusal_is_for_ever() -> None:
    splitter = _codec.Splitter(MAX_FRAME)
    splitter.feed(b"\x00")
    for _ in range(2):
        with pytest.raises(dcp.FrameError):
            next(splitter)
        splitter.feed(NOOP)
    with pytest.raises(dcp.FrameError):
        splitter.finish()


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    largest = header(body=76) + bytes(76)
    assert split([largest], max_frame=100) == [largest]
    with pytest.raises(dcp.FrameError, match="at most 99 bytes"):
        split([largest], max_frame=99)


def test_an_input_that_ends_inside_a_frame_is_refused() -> None:
    with pytest.raises(dcp.FrameError, match="expected 24 bytes, found 23: the input ends inside the frame"):
        split([NOOP[:-1]])
    splitter = _codec.Splitter(MAX_FRAME)
    splitter.feed(NOOP[:-1])
    assert (splitter.pending, splitter.offset) == (23, 0)


@pytest.mark.parametrize("bound", [23, 1 << 31])
def test_a_bound_that_cannot_hold_is_refused(bound: int) -> None:
    with pytest.raises(dcp.LocalProtocolError, match="max_frame: expected 24 to 2147483647 bytes"):
        _codec.Splitter(bound)


def test_memory_follows_what_was_fed_not_what_is_announced() -> None:
    value = header(body=MAX_FRAME - 24) + bytes(1000)
    tracemalloc.start()
    try:
        splitter = _codec.Splitter(MAX_FRAME)
        for _ in range(2000):
            splitter.feed(value[:100])
        before = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert before < 1 << 20


def test_frames_that_are_taken_leave_no_memory_behind() -> None:
    splitter = _codec.Splitter(MAX_FRAME)
    tracemalloc.start()
    try:
        for _ in range(3000):
            splitter.feed(NOOP * 40 + NOOP[:11])
            taken = len(list(splitter))
            splitter.feed(NOOP[11:])
            taken += len(list(splitter))
            assert (taken, splitter.pending) == (41, 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="only free-threaded builds can turn it on")
def test_the_import_leaves_the_gil_off() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import sys, dcp; print(sys._is_gil_enabled())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "False\n"
