"""Helpers for tests of the decoder: ways to feed it and to take all that it delivers, and frames to feed it with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dcp
from dcp.wire.frame import encode
from tests.reference import Answer, Options
from tests.strategies import Case, chunks


def decoder_for(dialect: str, options: Options, views: bool = False) -> dcp.Decoder:
    return dcp.Decoder(dialect, views=views, **vars(options))


def feed(decoder: dcp.Decoder, data: bytes, feeding: str) -> None:
    if feeding == "buffer":
        while data:
            room = decoder.buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            decoder.received(count)
            data = data[count:]
    else:
        decoder.feed(data if feeding == "bytes" else bytearray(data))


def take(decoder: dcp.Decoder, found: Answer, max_rows: int | None = None, max_bytes: int | None = None) -> bool:
    """Take a batch. Return whether there was anything in it."""
    batch = decoder.take(max_rows, max_bytes)
    assert len(batch) <= (max_rows or len(batch))
    assert all(0 <= row <= len(batch) for row, _ in batch.controls)
    arrow = batch.to_arrow()
    arrow.validate(full=True)
    found.controls += [(len(found.rows) + row, frame) for row, frame in batch.controls]
    found.rows += arrow.to_pylist()
    found.flow_bytes += batch.flow_bytes
    return bool(batch.num_rows or batch.controls)


def drain(decoder: dcp.Decoder, found: Answer, limits: tuple[int | None, int | None] = (None, None)) -> None:
    try:
        while take(decoder, found, *limits):
            pass
    except dcp.FrameError as error:
        found.error = error


def decode(data: bytes, dialect: str = "dcp", options: Options | None = None, views: bool = False) -> Answer:
    decoder, found = decoder_for(dialect, options or Options(), views), Answer()
    decoder.feed(data)
    drain(decoder, found)
    return found


def decode_case(case: Case) -> Answer:
    decoder, found = decoder_for(case.dialect, case.options, case.views), Answer()
    for piece in chunks(case.data, case.cuts):
        feed(decoder, piece, case.feeding)
        drain(decoder, found, case.limits)
        if found.error is not None:
            break
    return found


def assert_same(found: Answer, expected: Answer) -> None:
    assert str(found.error) == str(expected.error)
    assert found.rows == expected.rows
    assert found.controls == expected.controls
    assert found.flow_bytes == expected.flow_bytes


NUMBERS = {"seqno": 0, "rev_seqno": 3, "flags": 0x02000006, "expiry": 5, "lock_time": 0, "nru": 7}


def mutation(seqno: int, key: bytes = b"key", value: bytes = b"{}", **changes: Any) -> dcp.Frame:
    fields = NUMBERS | {"seqno": seqno} | changes.pop("fields", {})
    cas = (seqno & 0xFFFFFFFF) << 20 | 5
    frame = dcp.Frame("mutation", 0x80, 9, cas, 77, fields=fields, key=key, value=value)
    return replace(frame, **changes)


def marker(start: int, end: int, **changes: Any) -> dcp.Frame:
    fields = {"snapshot_start": start, "snapshot_end": end, "flags": 1}
    return replace(dcp.Frame("snapshot_marker", 0x80, opaque=9, vbucket=77, fields=fields), **changes)


def encoded(*frames: dcp.Frame) -> bytes:
    return b"".join(encode(frame) for frame in frames)
