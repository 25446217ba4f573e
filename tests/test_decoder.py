"""The decoder of columns against a slow one, against stored documents, and against a hostile peer."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dcp
from dcp.columns.decoder import CAN_RECEIVE, MAX_BATCH_ROWS
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.frame import dialect_of, encode
from dcp.wire.framing import FrameInfo, stream_id
from dcp.wire.layout import Role
from dcp.wire.tap import TapFlag
from tests.conformance import (
    NO_VALUE_WITH_UNDERLYING_DATATYPE,
    TRANSCRIPTS,
    Change,
    Transcript,
    compare_with_documents,
    has_collections,
    open_flags,
    transcript,
)
from tests.decoding import assert_same, decode, decode_case, decoder_for, drain, encoded, feed, marker, mutation, take
from tests.reference import Answer, Options, answer
from tests.strategies import Case, cases, chunks

pa = pytest.importorskip("pyarrow", reason="the rows are read with pyarrow")
cramjam = pytest.importorskip("cramjam", reason="values are compressed with cramjam")

# ------------------------------------------------------------------------------------- how it is asked


# ----------------------------------------------------------------------------------- against the oracle


@given(cases())
@settings(max_examples=400, deadline=None)
def test_any_bytes_give_the_rows_and_controls_that_the_tables_say(case: Case) -> None:
    assert_same(decode_case(case), answer(case.data, case.dialect, case.options))


@given(cases(sound=True))
@settings(max_examples=200, deadline=None)
def test_what_an_honest_producer_sends_is_never_refused(case: Case) -> None:
    found = decode_case(case)
    assert found.error is None
    assert_same(found, answer(case.data, case.dialect, case.options))


@given(cases())
@settings(deadline=None)
def test_byte_by_byte_the_answer_is_the_same(case: Case) -> None:
    decoder, found = decoder_for(case.dialect, case.options, case.views), Answer()
    for position in range(len(case.data)):
        feed(decoder, case.data[position : position + 1], case.feeding)
        if decoder.advance():
            break
    drain(decoder, found)
    assert_same(found, answer(case.data, case.dialect, case.options))


@given(cases())
@settings(deadline=None)
def test_a_batch_may_be_built_in_several_advances(case: Case) -> None:
    decoder, found = decoder_for(case.dialect, case.options, case.views), Answer()
    for piece in chunks(case.data, case.cuts):
        feed(decoder, piece, case.feeding)
        decoder.advance()
    rows, counted = decoder.rows, decoder.flow_bytes
    controls = [(row, frame) for row, frame, _ in decoder.new_controls]
    drain(decoder, found)
    assert (rows, counted, controls) == (len(found.rows), found.flow_bytes, found.controls)
    assert_same(found, answer(case.data, case.dialect, case.options))


@given(cases(), st.binary(max_size=30))
@settings(deadline=None)
def test_an_error_is_for_ever(case: Case, more: bytes) -> None:
    data = case.data + b"\0"
    # After an incomplete frame, a byte that begins no frame is part of that one.
    assume(answer(data, case.dialect, case.options).error is not None)
    decoder, found = decoder_for(case.dialect, case.options), Answer()
    decoder.feed(data)
    drain(decoder, found)
    assert found.error is not None
    for _ in range(2):
        decoder.feed(more)
        assert decoder.advance()
        with pytest.raises(dcp.FrameError) as again:
            decoder.take(1)
        assert again.value is found.error


@given(cases())
@settings(deadline=None)
def test_what_is_decoded_and_what_is_pending_are_what_was_fed(case: Case) -> None:
    decoder = decoder_for(case.dialect, case.options)
    fed = 0
    for piece in chunks(case.data, case.cuts):
        feed(decoder, piece, case.feeding)
        fed += len(piece)
        assert decoder.offset + decoder.pending == fed
        if decoder.advance():
            break
        assert decoder.offset + decoder.pending == fed


# ------------------------------------------------------------------------------------- the fast lane


def plain(count: int, first: int = 1) -> list[dcp.Frame]:
    """Return mutations for the fast path, with keys and values around every size that it treats differently."""
    return [
        mutation(n, b"k" * (1 + n % 40), bytes([n % 256]) * (n * 7 % 90 if n % 50 else 5000), datatype=n % 2)
        for n in range(first, first + count)
    ]


# Frames that end a run of the fast path, or that look as if they belonged to it.
ODD = {
    "framed": [mutation(0, value=bytes(900), magic=0x08, frame_info=(FrameInfo(0, b"ab"),))],
    "framed for another stream": [mutation(0, value=bytes(900), magic=0x08, frame_info=(stream_id(7),))],
    "framed with nothing": [mutation(0, magic=0x08)],
    "with a meta section": [mutation(0, value=b"value", fields={"meta": b"meta"})],
    "with snappy": [mutation(0, value=b"\x0d\x08abc\x19\x03", datatype=2)],
    "with xattrs": [mutation(0, value=join_xattrs([(b"n", b"1")], b"{}"), datatype=4)],
    "empty with all bits": [mutation(0, value=b"", datatype=7)],
    "of another stream": [marker(50, 60, vbucket=2), mutation(0, vbucket=2), mutation(0, vbucket=3)],
    "without a snapshot": [mutation(0, opaque=10)],
    "a marker": [marker(600, 700)],
    "a marker V2.0": [
        marker(0, 0, fields={**marker(0, 9).fields, "version": 0, "max_visible_seqno": 1, "high_completed_seqno": 1})
    ],
    "out of order": [dcp.Frame("oso_snapshot", 0x80, opaque=9, vbucket=77, fields={"flags": 1})],
    "in order again": [dcp.Frame("oso_snapshot", 0x80, opaque=9, vbucket=77, fields={"flags": 2})],
    "the end of the stream": [dcp.Frame("stream_end", 0x80, opaque=9, vbucket=77, fields={"reason": 0})],
    "a noop": [dcp.Frame("dcp_noop", 0x80)],
    "unknown": [dcp.Frame("unknown", 0x80, fields={"opcode": 0x77, "extras": bytes(31)}, key=b"k")],
    "a deletion": [dcp.Frame("deletion", 0x80, 9, vbucket=77, fields={"seqno": 0, "rev_seqno": 1}, key=b"k")],
    "a deletion V2 with an uncounted stream id": [
        dcp.Frame(
            "deletion", 0x08, 9, vbucket=77, key=b"k", value=bytes(900), frame_info=(stream_id(0, counted=False),),
            fields={"seqno": 0, "rev_seqno": 1, "delete_time": 2},
        )
    ],
}  # fmt: skip


def numbered(frames: list[dcp.Frame]) -> list[dcp.Frame]:
    """Return frames of rows with rising seqnos."""
    return [
        replace(frame, fields={**frame.fields, "seqno": n}) if "seqno" in frame.fields else frame
        for n, frame in enumerate(frames, 1)
    ]


@pytest.mark.parametrize("where", [0, 1, 255, 256, 400])
@pytest.mark.parametrize("odd", ODD)
def test_a_run_with_one_odd_frame_is_the_same_as_frame_by_frame(odd: str, where: int) -> None:
    frames = plain(400)
    data = encoded(marker(0, 1000), *numbered([*frames[:where], *ODD[odd], *frames[where:]]))
    assert_same(decode(data), answer(data))


@pytest.mark.parametrize("odd", ODD)
def test_odd_frames_that_look_alike_are_a_run_for_nobody(odd: str) -> None:
    rows = [frame for frame in ODD[odd] if "seqno" in frame.fields]
    data = encoded(marker(0, 1000), marker(0, 1000, opaque=10), *numbered([*plain(3), *rows * 20, *plain(3)]))
    assert_same(decode(data), answer(data))


def test_both_lanes_give_the_same_rows() -> None:
    frames = [marker(0, 5000), *plain(700), marker(5001, 6000), *plain(700, 5001)]
    data = encoded(*frames)
    fast = decode(data)
    assert len(fast.rows) == 1400
    assert decode(data, views=True).rows == fast.rows
    assert decode(data, options=Options(keys="utf8", columns=("seqno",))).rows == [
        {"seqno": row["seqno"]} for row in fast.rows
    ]
    names = (*fast.rows[0], "timestamp")
    slow = decode(data, options=Options(columns=names)).rows
    assert [{name: row[name] for name in fast.rows[0]} for row in slow] == fast.rows
    assert_same(fast, answer(data))


@pytest.mark.parametrize("columns", [("key", "value"), ("value", "opaque", "nru", "key", "delete_time", "durability")])
def test_a_run_fills_only_what_is_asked_for(columns: tuple[str, ...]) -> None:
    data, options = encoded(marker(0, 1000), *plain(300)), Options(columns=columns)
    assert_same(decode(data, options=options), answer(data, options=options))


@pytest.mark.parametrize("seqnos", [[5, 5], [5, 4], [2**64 - 1, 0], [5, 6, 7, 6], [0, 0]])
def test_a_seqno_that_falls_ends_a_run(seqnos: list[int]) -> None:
    data = encoded(marker(0, 9), *(mutation(n) for n in seqnos))
    found = decode(data)
    assert [row["seqno"] for row in found.rows] == seqnos[:-1]
    assert_same(found, answer(data))


@pytest.mark.parametrize("end", [0, 1, 23, 24, 25, 54, 55, 56, 60])
def test_a_run_stops_before_a_frame_that_is_not_whole(end: int) -> None:
    whole = encoded(marker(0, 9), *plain(5))
    last = encoded(mutation(6, b"a key", b"a value"))
    decoder, found = dcp.Decoder(), Answer()
    decoder.feed(whole + last[:end])
    drain(decoder, found)
    assert (len(found.rows), decoder.pending) == (5, end)
    decoder.feed(last[end:])
    drain(decoder, found)
    assert_same(found, answer(whole + last))


@pytest.mark.parametrize("views", [False, True])
def test_a_run_stops_before_a_frame_above_max_frame(views: bool) -> None:
    frames = [marker(0, 9), mutation(1), mutation(2), mutation(3, value=bytes(500))]
    decoder = dcp.Decoder(max_frame=300, views=views)
    decoder.feed(encoded(*frames))
    assert len(decoder.take()) == 2
    with pytest.raises(dcp.FrameError, match=r"frame length: expected at most 300 bytes \(max_frame\)"):
        decoder.take()


def test_a_run_does_not_read_a_length_that_does_not_add_up() -> None:
    sound = encoded(marker(0, 9), *plain(5))
    for at, byte in ((4, 32), (3, 0), (2, 1), (11, 20)):
        broken = bytearray(encoded(mutation(6)))
        broken[at] = byte
        data = sound + bytes(broken) + encoded(mutation(7)) * 30
        assert_same(decode(data), answer(data))


# ----------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("max_rows", [1, 7, 255, 256, 257, 10_000])
def test_batches_of_at_most_so_many_rows_are_full_until_the_last(max_rows: int, views: bool) -> None:
    data = encoded(marker(0, 1000), *plain(600))
    decoder, sizes = dcp.Decoder(views=views), []
    decoder.feed(data)
    while size := len(decoder.take(max_rows)):
        sizes.append(size)
    assert sizes == [max_rows] * (600 // max_rows) + ([600 % max_rows] if 600 % max_rows else [])


@pytest.mark.parametrize("datatype", [0, 2])
def test_a_batch_takes_about_max_bytes_and_a_row_that_is_larger_comes_alone(datatype: int) -> None:
    sizes = [100, 100, 100, 3000, 100, 100, 20, 20]
    values = [bytes(cramjam.snappy.compress_raw(bytes(n))) if datatype else bytes(n) for n in sizes]
    decoder = dcp.Decoder(columns=["value"])
    decoder.feed(encoded(marker(0, 9), *(mutation(n, value=v, datatype=datatype) for n, v in enumerate(values))))
    taken: list[list[int]] = []
    while batch := decoder.take(max_bytes=1000):
        taken.append([len(value) for value in batch.to_arrow()["value"].to_pylist()])
    assert taken == [[100, 100, 100], [3000], [100, 100, 20, 20]]


def test_controls_fill_a_batch_too() -> None:
    decoder, found = dcp.Decoder(), Answer()
    decoder.feed(encoded(*(marker(n, n) for n in range(100))))
    batches = 0
    while take(decoder, found, None, 1000):
        batches += 1
    assert (batches, len(found.controls)) == (5, 100)


def test_advance_says_when_a_limit_is_reached() -> None:
    decoder = dcp.Decoder()
    decoder.feed(encoded(*plain(5)))
    assert decoder.advance(max_rows=3)
    assert not decoder.advance(max_rows=5)
    assert (decoder.rows, len(decoder.take())) == (5, 5)


@pytest.mark.parametrize("name", ["max_rows", "max_bytes"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=f"{name}: expected 1 or more, found 0"):
        dcp.Decoder().take(**{name: 0})


def test_a_limit_above_what_a_batch_can_have_is_that() -> None:
    for limit in (MAX_BATCH_ROWS, MAX_BATCH_ROWS + 1, 1 << 62):
        decoder = dcp.Decoder()
        decoder.feed(SOUND)
        assert len(decoder.take(max_rows=limit, max_bytes=limit << 20)) == 1


# ----------------------------------------------------------------------------------------- errors

SOUND = encoded(marker(0, 1000), mutation(5))
SNAPPY = bytes(cramjam.snappy.compress_raw(b"0123456789" * 20))
BOMB = bytes(cramjam.snappy.compress_raw(bytes(1000)))
COLLECTION = "expected a collection id of at most 32 bits as the shortest LEB128 before it"
UTF8 = 'expected UTF-8, as keys="utf8" requires'
UNSNAPPY = "value: expected a valid snappy block"
TOO_MUCH = "value: expected at most max_value bytes after decompression, found more"
NO_XATTRS = "value: expected a valid section of xattrs at its beginning"
NOTED = {
    UNSNAPPY: "snappy: not a valid block",
    TOO_MUCH: "snappy: inflates to more than max_value",
    NO_XATTRS: "xattrs: not a valid section",
}
IN_COLLECTIONS, IN_UTF8 = Options(collections=True), Options(keys="utf8")

WRONG: list[tuple[dcp.Frame, Options, str]] = [
    *(
        (mutation(6, key), IN_COLLECTIONS, COLLECTION)
        for key in (b"\x80", b"\x80\0k", b"\xff" * 5, b"\xff\xff\xff\xff\x10k")
    ),
    *((mutation(6, key), IN_UTF8, UTF8) for key in (b"\xff", b"\xc3", b"12345678\xed\xa0\x80", b"\xf4\x90\x80\x80")),
    (mutation(6, b"\x08\xff"), Options(collections=True, keys="utf8"), UTF8),
    *(
        (mutation(6, value=value, datatype=2), Options(), UNSNAPPY)
        for value in (b"\xff" * 9, SNAPPY[:-1], SNAPPY + b"\0", b"\x04\x05\1", b"\x04\x05\0", b"\x00\x00x", b"\x01",
                      b"\xff\xff\xff\xff\x0f\x00a", b"\xff\xff\xff\xff\x1f", b"\x05\xf0\x00")
    ),
    (mutation(6, value=BOMB, datatype=2), Options(max_value=999), TOO_MUCH),
    *(
        (mutation(6, value=value, datatype=4), Options(), NO_XATTRS)
        for value in (b"{}", bytes(3), b"\0\0\0\1", b"\0\0\0\2ab", b"\0\0\0\6\0\0\0\2ab", b"\0\0\0\7\0\0\0\3a\0b",
                      b"\0\0\0\5\0\0\0\1\0", b"\0\0\0\6\0\0\0\2a\0", b"\0\0\0\x09\0\0\0\5a\0\0\0\0",
                      b"\0\0\0\4\xff\xff\xff\xff", b"\0\0\0\x08\0\0\0\6a\0bcd\0")
    ),
    (mutation(6, value=bytes(cramjam.snappy.compress_raw(b"{}")), datatype=6), Options(), NO_XATTRS),
    (mutation(5), Options(), "seqno: expected one above 5, the last before it"),
]  # fmt: skip


@pytest.mark.parametrize(("frame", "options", "problem"), WRONG)
def test_what_is_wrong_is_raised_behind_the_rows_before_it(frame: dcp.Frame, options: Options, problem: str) -> None:
    sound = encoded(marker(0, 1000), mutation(5, b"\0key"))
    data = sound + encoded(frame, mutation(9))
    found = decode(data, options=options)
    assert isinstance(found.error, dcp.FrameError)
    key = frame.key[1:] if options.collections and problem == UTF8 else frame.key
    assert found.error.problem == f"mutation of seqno {frame.fields['seqno']!r}, key {key!r}: {problem}"
    assert (found.error.offset, found.error.opcode, found.error.vbucket) == (len(sound), 0x57, 77)
    assert (len(found.rows), len(found.controls), found.flow_bytes) == (1, 1, len(sound))
    assert_same(found, answer(data, options=options))


def test_xattrs_that_are_no_text_are_refused_only_where_they_become_text() -> None:
    data = encoded(marker(0, 1000), mutation(5, value=b"\0\0\0\x08\0\0\0\4a\0\xff\0{}", datatype=4))
    without = decode(data, options=Options(columns=("value",), xattrs="map"))
    assert ([row["value"] for row in without.rows], without.error) == ([b"{}"], None)
    refused = decode(data, options=Options(columns=("value", "xattrs"), xattrs="map"))
    assert isinstance(refused.error, dcp.FrameError)
    assert "expected a valid section of xattrs" in refused.error.problem


def test_an_empty_key_behind_the_id_of_a_collection_is_not_named() -> None:
    data = encoded(marker(0, 1000), mutation(5, b"\0key"), mutation(5, b"\x08"))
    found = decode(data, options=Options(collections=True))
    assert isinstance(found.error, dcp.FrameError)
    assert found.error.problem == "mutation of seqno 5: seqno: expected one above 5, the last before it"


@pytest.mark.parametrize(("frame", "options", "problem"), WRONG)
def test_in_quarantine_a_bad_value_is_delivered_as_it_came(frame: dcp.Frame, options: Options, problem: str) -> None:
    data = encoded(marker(0, 1000), mutation(5, b"\0key"), frame, mutation(9, b"\0key"))
    found = decode(data, options=replace(options, on_bad_value="quarantine"))
    if problem not in NOTED:
        assert found.error is not None
        return
    bad, good = found.rows[1:]
    assert (bad["value"], bad["xattrs"], bad["error"]) == (frame.value, None, NOTED[problem])
    assert (bad["datatype"], good["value"], good["error"]) == (frame.datatype, b"{}", None)


@pytest.mark.parametrize(("frame", "options", "problem"), WRONG)
def test_what_is_not_asked_for_is_not_looked_at(frame: dcp.Frame, options: Options, problem: str) -> None:
    found = decode(encoded(frame), options=replace(options, columns=("cas",)))
    assert (found.error is None) == (problem != COLLECTION)


def test_a_value_that_inflates_to_just_max_value_is_delivered() -> None:
    (row,) = decode(encoded(mutation(1, value=BOMB, datatype=2)), options=Options(max_value=1000)).rows
    assert row["value"] == bytes(1000)


def test_a_value_that_inflates_to_nothing_has_no_xattrs() -> None:
    data = encoded(mutation(1, value=b"\0", datatype=6))
    (row,) = decode(data).rows
    assert (row["value"], row["xattrs"]) == (b"", None)
    assert_same(decode(data), answer(data))


@given(st.binary(max_size=60), st.sampled_from([None, 0, 3, 20, 64, 200]))
@settings(max_examples=300, deadline=None)
def test_snappy_accepts_what_another_implementation_accepts(block: bytes, announced: int | None) -> None:
    value = block if announced is None else bytes([announced & 0x7F | 0x80, announced >> 7, *block])
    value = value or b"\0"
    data = encoded(mutation(1, value=value, datatype=2))
    assert_same(decode(data), answer(data))


@given(st.lists(st.sampled_from([b"abc", b"abcabcabc", bytes(100), b"\xff" * 7, b"0123456789" * 30])), st.booleans())
@settings(deadline=None)
def test_compressed_values_come_back(parts: list[bytes], views: bool) -> None:
    value = b"".join(parts) or b"{}"
    block = bytes(cramjam.snappy.compress_raw(value))
    (row,) = decode(encoded(mutation(1, value=block, datatype=3)), views=views).rows
    assert (row["value"], row["datatype"]) == (value, 3)


def test_every_byte_of_a_block_may_be_wrong() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"0123456789" * 30 + b"abcabcabc" * 9 + bytes(300)))
    for at in range(len(block)):
        for byte in (0, 0x7F, 0xFF, block[at] ^ 1):
            data = encoded(mutation(1, value=block[:at] + bytes([byte]) + block[at + 1 :], datatype=2))
            assert_same(decode(data), answer(data))


BROKEN_FRAMES = {
    "magic": b"\0" * 24,
    "lengths": encoded(mutation(1))[:10] + b"\0\1" + bytes(12),
    "announced": encoded(mutation(1))[:8] + b"\xff" * 4,
    "extras": encoded(mutation(1))[:4] + b"\x1e" + encoded(mutation(1))[5:],
    "no key": encoded(mutation(1, b"k"))[:3] + b"\0" + encoded(mutation(1, b"k"))[4:],
    "control": encoded(marker(1, 2))[:4] + b"\x13" + encoded(marker(1, 2))[5:],
    "nmeta": encoded(mutation(1, value=b"v", fields={"meta": b"m"})).replace(b"\0\1\x07", b"\0\7\x07"),
    "frame infos": encoded(mutation(1, value=bytes(9), magic=0x08, frame_info=(FrameInfo(1, b"abc"),))).replace(
        b"\x13abc", b"\x14abc"
    ),
}


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("broken", BROKEN_FRAMES)
def test_a_frame_that_the_tables_refuse_is_refused_in_their_words(broken: str, views: bool) -> None:
    data = SOUND + BROKEN_FRAMES[broken] + encoded(mutation(9))
    found = decode(data, views=views)
    with pytest.raises(dcp.FrameError) as refused:
        dcp.decode(data)
    assert str(found.error) == str(refused.value)
    assert_same(found, answer(data))


def test_flow_control_counts_nothing_behind_a_control_that_is_wrong() -> None:
    found = decode(SOUND + BROKEN_FRAMES["control"] + encoded(mutation(9)) * 3)
    assert found.flow_bytes == len(SOUND)


def test_after_a_control_that_is_wrong_nothing_is_decoded() -> None:
    decoder = dcp.Decoder()
    decoder.feed(SOUND + BROKEN_FRAMES["control"])
    assert decoder.advance()
    assert decoder.rows == 1
    decoder.feed(encoded(mutation(9)))
    assert decoder.advance()
    assert decoder.rows == 1


def test_a_system_event_whose_value_is_not_that_of_its_version_is_refused() -> None:
    fields = {"seqno": 1, "event_id": 0, "version": 0, "manifest_uid": 1, "scope_id": 0, "collection_id": 8}
    raw = bytearray(encoded(dcp.Frame("system_event", 0x80, fields=fields, key=b"fruit")))
    raw[11] -= 1
    found = decode(bytes(raw[:-1]), options=Options(events=frozenset(["system_event"])))
    assert "system_event: value length: expected 16, found 15" in str(found.error)


def test_the_key_of_a_system_event_is_a_name_without_a_collection() -> None:
    fields = {"seqno": 1, "event_id": 0, "version": 0, "manifest_uid": 1, "scope_id": 0, "collection_id": 8}
    data = encoded(dcp.Frame("system_event", 0x80, fields=fields, key=b"fruit"))
    (row,) = decode(data, options=Options(collections=True, events=frozenset(["system_event"]))).rows
    assert (row["key"], row["collection_id"]) == (b"fruit", None)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"dialect": "dpc"}, "dialect: expected one of tap, upr1, upr2, dcp, found 'dpc'"),
        ({"columns": ["keys"]}, "columns: there is no column 'keys' in dialect dcp; did you mean key?"),
        ({"columns": ["?"]}, "there is no column '?' in dialect dcp; there are event, vbucket, seqno, "),
        ({"columns": ["tap_flags"]}, "there is no column 'tap_flags' in dialect dcp"),
        ({"columns": []}, "columns: expected one or more names, each once, found []"),
        ({"columns": ["key", "key"]}, "columns: expected one or more names, each once, found ['key', 'key']"),
        ({"events": ["mutatoin"]}, "expected some of mutation, deletion, expiration, system_event, prepare, commit"),
        ({"keys": "text"}, "keys: expected one of binary, utf8, found 'text'"),
        ({"on_bad_value": "ignore"}, "on_bad_value: expected one of fail, quarantine, found 'ignore'"),
        ({"xattrs": "cut"}, "xattrs: expected one of split, map, inline, found 'cut'"),
    ],
)  # fmt: skip
def test_an_argument_that_means_nothing_is_refused_with_what_there_is(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=re.escape(problem)):
        dcp.Decoder(**arguments)


@pytest.mark.parametrize("name", ["max_frame", "max_value"])
@pytest.mark.parametrize("bound", [0, 23, 1 << 30, 1 << 62])
def test_a_bound_that_cannot_hold_is_refused(name: str, bound: int) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=f"{name}: expected 24 to 1073741823 bytes, found {bound}"):
        dcp.Decoder(max_frame=bound if name == "max_frame" else 100, max_value=bound if name == "max_value" else 100)


def test_nothing_is_received_without_a_buffer_nor_twice() -> None:
    decoder = dcp.Decoder()
    with pytest.raises(dcp.LocalProtocolError, match="received: expected 0 to 0 bytes"):
        decoder.received(1)
    room = decoder.buffer()
    room[: len(SOUND)] = SOUND
    decoder.received(len(SOUND) - 1)
    decoder.received(1)
    with pytest.raises(dcp.LocalProtocolError, match=f"received: expected 0 to {len(room) - len(SOUND)} bytes"):
        decoder.received(len(room))
    assert len(decoder.take()) == 1
    decoder.buffer()
    decoder.feed(bytearray(SOUND))
    with pytest.raises(dcp.LocalProtocolError, match="received: expected 0 to 0 bytes"):
        decoder.received(1)


def test_no_more_bytes_are_received_than_there_is_room_for() -> None:
    decoder = dcp.Decoder()
    room = len(decoder.buffer())
    for count in (-1, room + 1):
        with pytest.raises(dcp.LocalProtocolError, match=f"received: expected 0 to {room} bytes"):
            decoder.received(count)


# -------------------------------------------------------------------------------- streams and snapshots


@pytest.mark.parametrize("data", [lambda: bytes(1 << 31), lambda: mmap(-1, 1 << 31)], ids=["lent", "copied"])
def test_views_do_not_reach_beyond_two_gib(data: Callable[[], Any]) -> None:
    decoder = dcp.Decoder(views=True)
    with pytest.raises(dcp.LocalProtocolError, match="feed: expected at most 2147483647 bytes at once with views"):
        decoder.feed(data())
    assert decoder.pending == 0


def test_a_decoder_forgets_rows_and_counts_their_bytes() -> None:
    decoder = dcp.Decoder()
    data = encode(marker(1, 9)) + b"".join(encode(mutation(seqno)) for seqno in range(1, 6))
    decoder.feed(data)
    decoder.advance()
    decoder.discard_rows(3)
    batch = decoder.take()
    assert batch.to_arrow()["seqno"].to_pylist() == [1, 2, 3]
    assert batch.flow_bytes == len(data)
    assert batch.last_seqnos == []


def test_what_means_a_stream_id_in_a_request_means_none_in_an_answer() -> None:
    fields = dict.fromkeys(["seqno", "rev_seqno", "flags", "expiry", "lock_time"], 1)
    row = dcp.Frame("mutation", 0x18, fields=fields, key=b"k", frame_info=(stream_id(7),))
    start = dcp.Frame("snapshot_start", 0x81)
    data = encode(start, "upr1") + encode(row, "upr1")
    found = decode(data, "upr1")
    assert [frame.stream_id for frame in (row,)] == [row["stream_id"] for row in found.rows] == [None]
    assert_same(found, answer(data, "upr1"))


def test_streams_that_share_a_vbucket_have_snapshots_of_their_own() -> None:
    frames = [
        marker(0, 10, magic=0x08, frame_info=(stream_id(1),)),
        marker(20, 30, magic=0x08, frame_info=(stream_id(2),)),
        mutation(25, magic=0x08, frame_info=(stream_id(2),)),
        mutation(5, magic=0x08, frame_info=(stream_id(1),)),
        mutation(1),
    ]
    rows = decode(encoded(*frames)).rows
    assert [(row["stream_id"], row["snapshot_start"], row["snapshot_end"]) for row in rows] == [
        (2, 20, 30),
        (1, 0, 10),
        (None, None, None),
    ]


def test_a_new_snapshot_may_begin_lower_and_a_stream_that_ended_is_forgotten() -> None:
    end = dcp.Frame("stream_end", 0x80, opaque=9, vbucket=77, fields={"reason": 0})
    rows = decode(encoded(marker(5, 9), mutation(9), marker(1, 4), mutation(3), end, mutation(2))).rows
    assert [(row["seqno"], row["snapshot_start"]) for row in rows] == [(9, 5), (3, 1), (2, None)]


def test_out_of_order_snapshots_have_no_window_and_no_order() -> None:
    start, end = (dcp.Frame("oso_snapshot", 0x80, opaque=9, vbucket=77, fields={"flags": n}) for n in (1, 2))
    data = encoded(start, mutation(9), mutation(3), mutation(3), end, mutation(5), mutation(5))
    found = decode(data)
    assert [(row["seqno"], row["snapshot_end"]) for row in found.rows] == [(9, None), (3, None), (3, None), (5, None)]
    assert found.error is not None
    assert_same(found, answer(data))


def test_all_vbuckets_of_a_bucket_may_be_interleaved() -> None:
    markers = [marker(n, n + 9, vbucket=n, opaque=n ^ 3) for n in range(1024)]
    rounds = [mutation(n + k, vbucket=n, opaque=n ^ 3, value=b"v" * k) for k in range(3) for n in range(1023, -1, -1)]
    ends = [dcp.Frame("stream_end", 0x80, n ^ 3, vbucket=n, fields={"reason": 0}) for n in range(0, 1024, 3)]
    data = encoded(*markers, *rounds, *ends, *(mutation(n + 5, vbucket=n, opaque=n ^ 3) for n in range(1024)))
    found = decode(data)
    assert len(found.rows) == 4096
    assert_same(found, answer(data))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=300))
@settings(deadline=None)
def test_streams_may_open_and_end_in_any_order(steps: list[tuple[bool, int]]) -> None:
    frames: list[dcp.Frame] = []
    for seqno, (opens, stream) in enumerate(steps):
        # Keys that a poor hash would put into the same slots.
        opaque, vbucket = stream << 20, stream % 2
        end = dcp.Frame("stream_end", 0x80, opaque, vbucket=vbucket, fields={"reason": 0})
        frames += [marker(seqno, seqno + 1, opaque=opaque, vbucket=vbucket) if opens else end]
    frames += [mutation(1, opaque=stream << 20, vbucket=stream % 2, value=b"") for stream in range(201)]
    data = encoded(*frames)
    assert_same(decode(data), answer(data))


def test_a_seqno_that_was_passed_without_a_row_is_refused_in_a_later_row() -> None:
    decoder = dcp.Decoder()
    decoder.expect_open_streams()
    decoder.open_stream(9, 77, 0, 0)
    passed = dcp.Frame("seqno_advanced", 0x80, 9, vbucket=77, fields={"seqno": 7})
    decoder.feed(encoded(marker(1, 9), mutation(3), passed, mutation(7)))
    assert len(decoder.take()) == 1
    with pytest.raises(dcp.FrameError, match=r"seqno 7, .*expected one above 7, the last before it"):
        decoder.take()


def test_refused_streams_make_room_for_others() -> None:
    decoder = dcp.Decoder()
    decoder.expect_open_streams()
    most = 1 << 18
    for _ in range(2):
        for opaque in range(most):
            decoder.open_stream(opaque, 0, 0, 0)
        with pytest.raises(dcp.UsageError, match=f"no more than {most} streams"):
            decoder.open_stream(most, 0, 0, 0)
        for opaque in range(most):
            decoder.forget_stream(opaque, 0, 0)
        decoder.finish_batch()


def test_a_peer_that_opens_streams_without_end_is_refused() -> None:
    one = bytearray(encoded(marker(1, 2)))
    most, pieces = 1 << 18, []
    for opaque in range(most + 1):
        one[12:16] = opaque.to_bytes(4, "big")
        pieces.append(bytes(one))
    decoder = dcp.Decoder()
    decoder.feed(b"".join(pieces))
    decoder.advance()
    assert (len(decoder.new_controls), decoder.flow_bytes) == (most, most * len(one))
    decoder.take()
    with pytest.raises(dcp.FrameError, match=f"opaque: expected no more than {most} streams on one connection"):
        decoder.take()


# ----------------------------------------------------------------------------------- size and memory


@pytest.mark.parametrize("views", [False, True])
def test_a_document_of_20_mib_arrives_in_pieces(views: bool) -> None:
    value = bytes(range(256)) * (80 << 10)
    data = encoded(marker(1, 9), mutation(1, value=value), mutation(2))
    decoder, found = dcp.Decoder(views=views), Answer()
    for begin in range(0, len(data), 1 << 16):
        decoder.feed(data[begin : begin + (1 << 16)])
        decoder.advance()
    drain(decoder, found)
    assert [(row["value"] == value, row["seqno"]) for row in found.rows] == [(True, 1), (False, 2)]


def test_room_to_receive_grows_with_a_frame_and_not_with_each_piece_of_it() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy says where memory is")
    data = encoded(mutation(1, value=bytes(4 << 20)))
    decoder, places = dcp.Decoder(), set()
    for begin in range(0, len(data), 1 << 12):
        piece = data[begin : begin + (1 << 12)]
        room = decoder.buffer()
        places.add(numpy.frombuffer(room, numpy.uint8).ctypes.data - begin)
        room[: len(piece)] = piece
        del room
        decoder.received(len(piece))
        decoder.advance()
    assert len(decoder.take()) == 1
    assert len(places) < 10


class Packet(bytes):
    """Buffer that is not `bytes`, as some libraries deliver."""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, Packet])
def test_bytes_of_any_kind_are_fed(kind: Callable[[bytes], Any]) -> None:
    decoder, found = dcp.Decoder(), Answer()
    decoder.feed(kind(b""))
    decoder.feed(kind(SOUND))
    drain(decoder, found)
    assert_same(found, answer(SOUND))


@pytest.mark.parametrize("thing", ["text", None, 7, memoryview(b"abcd")[::2]])
def test_what_are_no_bytes_is_refused(thing: Any) -> None:
    with pytest.raises((TypeError, ValueError, BufferError)):
        dcp.Decoder().feed(thing)


def run_memory(name: str) -> None:
    pytest.importorskip("resource", reason="only POSIX can limit and measure the memory of a process")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.memory", name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the address space is measured in /proc")
@pytest.mark.parametrize("name", ["announced", "announced_on_sockets", "large"])
def test_memory_follows_what_was_fed_not_what_is_announced(name: str) -> None:
    run_memory(name)


# --------------------------------------------------------------------------------------------- threads

FEED_AND_TAKE = """
import socket, sys, threading, dcp
from dcp.wire.frame import encode
sys.setswitchinterval(1e-6)
numbers = dict.fromkeys(["seqno", "rev_seqno", "flags", "expiry", "lock_time", "nru"], 0)
frame = encode(dcp.Frame("mutation", 0x80, fields=numbers, key=b"key", value=b"v" * 50))
data = frame * 20_000
decoder, unexpected = dcp.Decoder(), []
steps = {"feed": lambda: decoder.pending < 1 << 23 and decoder.feed(data), "take": lambda: decoder.take(),
         "room": lambda: decoder.buffer(), "receive": lambda: decoder.received(0), "advance": lambda: decoder.advance(),
         "socket": lambda: (node.send(frame), decoder.receive(ours.fileno(), ear.fileno(), 0))}
(ours, node), (ear, bell) = socket.socketpair(), socket.socketpair()
node.setblocking(False)
def work(step):
    for _ in range(400):
        try:
            step()
        except (dcp.LocalProtocolError, BlockingIOError):
            pass
        except BaseException as error:
            unexpected.append(error)
threads = [threading.Thread(target=work, args=(steps[name],)) for name in sys.argv[1:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not unexpected, unexpected[0]
"""


@pytest.mark.parametrize(
    "steps",
    [
        ("feed", "take"),
        ("take", "take", "feed"),
        ("feed", "feed", "advance"),
        ("feed", "take", "room", "receive"),
        pytest.param(("socket", "take", "room"), marks=pytest.mark.skipif(not CAN_RECEIVE, reason="not on Windows")),
    ],
)
def test_a_decoder_in_two_hands_is_refused_but_does_not_crash(steps: tuple[str, ...]) -> None:
    ran = subprocess.run([sys.executable, "-c", FEED_AND_TAKE, *steps], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_two_decoders_in_two_threads_are_right() -> None:
    data = encoded(marker(0, 2000), *plain(1500))
    expected = answer(data)
    found = [Answer() for _ in range(4)]
    threads = [threading.Thread(target=_decode_often, args=(data, one, n % 2 == 0)) for n, one in enumerate(found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        assert_same(one, expected)


def _decode_often(data: bytes, into: Answer, views: bool) -> None:
    for _ in range(5):
        found = decode(data, views=views)
    into.rows, into.controls, into.flow_bytes, into.error = found.rows, found.controls, found.flow_bytes, found.error


# ------------------------------------------------------------------------------ what had been stored

CHANGES = frozenset(["mutation", "deletion", "expiration", "prepare"])
CHANGED = (
    "event", "vbucket", "seqno", "cas", "flags", "expiry", "datatype", "collection_id", "key", "value", "xattrs",
)  # fmt: skip


def changes(talk: Transcript, **more: Any) -> Iterator[Change]:
    """Yield the rows as Change, for the comparison with stored documents."""
    tap = talk.dialect == "tap"
    # With this open flag the datatype is that of the stored value; what is sent is not compressed.
    underlying = open_flags(talk) & NO_VALUE_WITH_UNDERLYING_DATATYPE
    options = Options((*CHANGED, "tap_flags") if tap else CHANGED, has_collections(talk), inflate=not underlying)
    found = decode(talk.main.server, talk.dialect, options, **more)
    assert found.error is None
    for row in found.rows:
        if row["event"] in CHANGES:
            yield _change(row, tap)


def _change(row: dict[str, Any], tap: bool) -> Change:
    flags, deleted = row["flags"], row["event"] in ("deletion", "expiration")
    pairs, value = split_xattrs(row["xattrs"] or b"")[0], row["value"]
    if row["datatype"] & (both := Datatype.XATTR | Datatype.SNAPPY) == both and row["xattrs"] is None:
        pairs, value = split_xattrs(value)
    if tap and not row["tap_flags"] & TapFlag.NETWORK_BYTE_ORDER:
        flags = int.from_bytes(flags.to_bytes(4, "big"), "little")
    return Change(
        row["event"],
        row["vbucket"],
        row["collection_id"] or 0,
        row["key"],
        row["cas"],
        None if tap else row["seqno"],
        None if deleted else flags,
        None if deleted else row["expiry"],
        value,
        False,
        {name.decode(): text.decode() for name, text in pairs},
    )


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_rows_of_a_recording_are_what_had_been_stored(path: Path) -> None:
    talk = transcript(path)
    counts = compare_with_documents(talk, changes(talk))
    assert sum(counts[name] for name in ("sent", "superseded", "unsent")) >= len(talk.documents)
    assert compare_with_documents(talk, changes(talk, views=True)) == counts


def test_the_comparison_with_what_had_been_stored_was_not_empty() -> None:
    total: Counter[str] = Counter()
    for path in TRANSCRIPTS:
        total += compare_with_documents(transcript(path), changes(transcript(path)))
    # The same number as frame by frame, with compressed values among them.
    assert total == {
        "sent": 2834,
        "superseded": 42,
        "unsent": 338,
        "seqno": 1673,
        "flags": 2550,
        "expiry": 2550,
        "values": 2834,
        "xattrs": 200,
    }


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recording_decodes_as_the_tables_say_frame_by_frame(path: Path) -> None:
    talk = transcript(path)
    table = dialect_of(talk.dialect)
    events = frozenset(message.name for message in table.messages if message.role is Role.ROW)
    inflate = not open_flags(talk) & NO_VALUE_WITH_UNDERLYING_DATATYPE
    options = Options(collections=has_collections(talk), events=events, inflate=inflate)
    for connection in talk.connections:
        expected = answer(connection.server, talk.dialect, options)
        assert expected.error is None
        assert_same(decode(connection.server, talk.dialect, options), expected)


# ----------------------------------------------------------------------- frames that servers were seen to send

# TAP_DELETE of an expired document that a backfill met, from 3.1.6: key e1, value gone1.
EXPIRED_IN_BACKFILL = bytes.fromhex(
    "8042000208000000000000170000000518e975a9ae3b547b00080000ff00000000000000000000016531676f6e6531"
)


def test_a_tap_deletion_keeps_the_value_that_arrived() -> None:
    (frame,) = dcp.decode(EXPIRED_IN_BACKFILL, "tap")
    assert (frame.name, frame.key, frame.value, frame.fields["rev_seqno"]) == ("deletion", b"e1", b"gone1", 1)
    assert encode(frame, "tap") == EXPIRED_IN_BACKFILL
    decoder = dcp.Decoder("tap", ["event", "key", "value", "cas"])
    decoder.feed(EXPIRED_IN_BACKFILL)
    expected = {"event": "deletion", "key": b"e1", "value": b"gone1", "cas": 0x18E975A9AE3B547B}
    assert decoder.take().to_arrow().to_pylist() == [expected]


def test_a_tap_checkpoint_begins_without_an_engine_section_before_2_0() -> None:
    # ep-engine 1.8.1, ep_engine.cc, walkTapQueue: the engine section stays empty for items.
    extras = bytes.fromhex("00000000ff000000") + bytes(8)
    body = extras + b"checkpoint_start" + (7).to_bytes(8, "big")
    header = bytes.fromhex("80460010100000030000") + len(body).to_bytes(2, "big") + bytes(12)
    (frame,) = dcp.decode(header + body, "tap")
    assert (frame.name, frame.vbucket, frame.fields["checkpoint"]) == ("tap_checkpoint_start", 3, 7)
    assert encode(frame, "tap") == header + body
