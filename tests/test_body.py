"""Structured values: decoding, refusals, and encoding back to the same bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.wire.body import FAILOVER_LOG, JSON, TEXT, TEXT_OR_JSON, Body, CountedRecords
from dcp.wire.dcp_body import CACHED_DOCUMENTS, STREAM_FILTER, SYSTEM_EVENT_TABLE, CachedDocument, StreamFilter
from dcp.wire.memcached import FEATURES, SEQNOS
from dcp.wire.tap import CHECKPOINTS, TAP_CONNECT, VBUCKETS, TapConnect, TapConnectFlag

u8, u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
BODIES = [
    FAILOVER_LOG,
    JSON,
    TEXT,
    TEXT_OR_JSON,
    FEATURES,
    SEQNOS,
    CACHED_DOCUMENTS,
    STREAM_FILTER,
    CountedRecords(CHECKPOINTS),
]

DOCUMENTS = st.builds(CachedDocument, u64, u64, u64, u32, u32, u8, u8, st.binary(max_size=20), st.binary(max_size=20))
FILTERS = st.builds(
    StreamFilter,
    collections=st.none() | st.lists(u32).map(tuple),
    sid=st.none() | u16,
    uid=st.none() | u64,
    purge_seqno=st.none() | u64,
    cts=st.none() | st.just({"all_keys": True, "free_memory": 1}),
)
CONNECTS = st.builds(
    TapConnect,
    st.none() | u64,
    st.none() | st.lists(u16).map(tuple),
    st.none() | st.lists(st.tuples(u16, u64)).map(tuple),
)


@pytest.mark.parametrize(
    ("body", "contents"),
    [
        (FAILOVER_LOG, st.lists(st.tuples(u64, u64)).map(tuple)),
        (SEQNOS, st.lists(st.tuples(u16, u64)).map(tuple)),
        (FEATURES, st.lists(u16).map(tuple)),
        (CACHED_DOCUMENTS, st.lists(DOCUMENTS, max_size=4).map(tuple)),
        (STREAM_FILTER, FILTERS),
        (STREAM_FILTER, st.builds(StreamFilter, scope=u32)),
        (CountedRecords(CHECKPOINTS), st.lists(st.tuples(u16, u64)).map(tuple)),
        (TEXT, st.text()),
        (JSON, st.dictionaries(st.text(), st.integers() | st.text() | st.none())),
        (TEXT_OR_JSON, st.dictionaries(st.text(), st.integers()) | st.text().filter(lambda text: text[:1] != "{")),
    ],
)
def test_a_content_comes_back(body: Body, contents: st.SearchStrategy[Any]) -> None:
    @given(contents)
    def comes_back(content: Any) -> None:
        assert body.decode(body.encode(content), {}) == content

    comes_back()


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.about)
def test_any_value_is_read_or_refused(body: Body) -> None:
    @given(st.binary(max_size=100) | st.text().map(lambda text: f'{{"sid":{text}}}'.encode()))
    def read_or_refused(value: bytes) -> None:
        try:
            body.decode(value, {})
        except dcp.RemoteProtocolError as error:
            assert "expected" in str(error)

    read_or_refused()


@given(CONNECTS)
def test_a_tap_connect_comes_back_under_the_flags_of_its_pieces(content: TapConnect) -> None:
    pieces = {
        TapConnectFlag.BACKFILL: content.backfill,
        TapConnectFlag.LIST_VBUCKETS: content.vbuckets,
        TapConnectFlag.CHECKPOINT: content.checkpoints,
    }
    flags = sum(flag for flag, piece in pieces.items() if piece is not None)
    assert TAP_CONNECT.decode(TAP_CONNECT.encode(content), {"flags": flags}) == content


@given(st.binary(max_size=60), u32)
def test_any_tap_connect_is_read_or_refused(value: bytes, flags: int) -> None:
    try:
        content = TAP_CONNECT.decode(value, {"flags": flags})
    except dcp.RemoteProtocolError:
        return
    assert TAP_CONNECT.encode(content) == value


def test_a_list_of_records_has_names() -> None:
    log = FAILOVER_LOG.decode(bytes.fromhex("0000a1b2c3d4e5f600000000000004b0000000778899aabb0000000000000000"), {})
    assert [entry._asdict() for entry in log] == [
        {"vbuuid": 0xA1B2C3D4E5F6, "seqno": 1200},
        {"vbuuid": 0x778899AABB, "seqno": 0},
    ]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ('{"sid":1', "value: expected JSON, found"),
        ("[1]", "expected an object with any of collections, cts, purge_seqno, scope, sid, uid, found [1]"),
        ('{"other":1}', "expected an object with any of"),
        ('{"scope":"8","collections":["8"]}', "expected a scope or collections, found both"),
        ('{"scope":"0x8"}', "scope: expected text of hexadecimal digits that fits 32 bits, found '0x8'"),
        ('{"scope":"100000000"}', "scope: expected text of hexadecimal digits that fits 32 bits"),
        ('{"scope":""}', "scope: expected text of hexadecimal digits"),
        ('{"uid":7}', "uid: expected text of hexadecimal digits that fits 64 bits, found 7"),
        ('{"collections":"8"}', "collections: expected a list of hexadecimal ids, found '8'"),
        ('{"collections":[null]}', "collections: expected text of hexadecimal digits that fits 32 bits, found ''"),
        ('{"sid":true}', "sid: expected an integer of 16 bits, found True"),
        ('{"sid":65536}', "sid: expected an integer of 16 bits, found 65536"),
        ('{"purge_seqno":"9f"}', "purge_seqno: expected text of decimal digits that fits 64 bits, found '9f'"),
        ('{"cts":1}', "cts: expected an object, found 1"),
    ],
)
def test_a_stream_filter_that_a_server_refuses_is_refused(value: str, problem: str) -> None:
    with pytest.raises(dcp.RemoteProtocolError) as refused:
        STREAM_FILTER.decode(value.encode(), {})
    assert problem in str(refused.value)


def test_a_stream_filter_is_written_as_servers_read_it() -> None:
    content = StreamFilter(collections=(0x8F,), sid=71, purge_seqno=180)
    assert STREAM_FILTER.encode(content) == b'{"collections":["8f"],"sid":71,"purge_seqno":"180"}'
    assert STREAM_FILTER.encode(StreamFilter()) == b""


# One encoding of the modification of collection `room`: see the frame `modify, version 2` of the vectors.
MODIFIED = bytes.fromhex(
    "18000000120020000800040010001c00140018001d000000140000000c000000200000000000000091000000"
    "80510100080000000101000004000000726f6f6d00000000"
)


def test_a_flatbuffers_event_is_read_through_its_table() -> None:
    assert SYSTEM_EVENT_TABLE.decode(MODIFIED, {"event_id": 5}) == {
        "manifest_uid": 0x20,
        "scope_id": 0x0C,
        "collection_id": 0x91,
        "ttl_valid": True,
        "max_ttl": 86400,
        "name": "room",
        "history": True,
        "default_collection_mvs": 0,
        "metered": False,
        "flush_uid": 0,
    }


def test_a_flatbuffers_event_may_lack_its_name() -> None:
    # The entry of slot 5 of the table, whose entries begin at byte 8.
    nameless = MODIFIED[:18] + bytes(2) + MODIFIED[20:]
    found = SYSTEM_EVENT_TABLE.decode(nameless, {"event_id": 5})
    assert (found["name"], found["max_ttl"]) == ("", 86400)


def test_cached_documents_that_are_cut_short_are_refused_with_what_is_there() -> None:
    document = CACHED_DOCUMENTS.encode([CachedDocument(1, 2, 3, 4, 5, 6, 7, b"key", b"value")])
    two = document * 2
    for cut in {*range(1, len(two))} - {len(document)}:
        with pytest.raises(dcp.RemoteProtocolError) as refused:
            CACHED_DOCUMENTS.decode(two[:-cut], {})
        numbers = re.findall(r"byte (\d+): expected (\d+) bytes, found (\d+)", str(refused.value))
        [(position, expected, found)] = [map(int, each) for each in numbers]
        assert position + found == len(two) - cut < position + expected


def test_an_event_without_a_table_says_nothing() -> None:
    assert SYSTEM_EVENT_TABLE.decode(MODIFIED, {"event_id": 77}) == {}


@given(st.integers(0, len(MODIFIED) - 1), u8, st.sampled_from([0, 1, 3, 4, 5]))
def test_a_corrupted_flatbuffers_event_is_read_or_refused(position: int, byte: int, event: int) -> None:
    value = bytearray(MODIFIED)
    value[position] = byte
    for cut in (bytes(value), bytes(value[:position])):
        try:
            SYSTEM_EVENT_TABLE.decode(cut, {"event_id": event})
        except dcp.RemoteProtocolError as error:
            assert "points outside" in str(error)


def test_a_flatbuffers_event_is_not_written_from_its_fields() -> None:
    with pytest.raises(dcp.LocalProtocolError, match="given as the bytes of its value"):
        SYSTEM_EVENT_TABLE.encode({})


@pytest.mark.parametrize(
    ("flags", "value", "problem"),
    [
        (TapConnectFlag.BACKFILL, "00", "expected a date of 8 bytes, found 1"),
        (TapConnectFlag.LIST_VBUCKETS, "", "vbuckets: expected a count of 2 bytes, found 0"),
        (TapConnectFlag.LIST_VBUCKETS, "00020001", "vbuckets: expected 4 bytes, found 2"),
        (TapConnectFlag.CHECKPOINT, "0001", "checkpoints: expected 10 bytes, found 0"),
        (TapConnectFlag.DUMP, "00", "take 0 bytes, found 1"),
    ],
)
def test_a_tap_connect_that_does_not_add_up_is_refused(flags: TapConnectFlag, value: str, problem: str) -> None:
    with pytest.raises(dcp.RemoteProtocolError) as refused:
        TAP_CONNECT.decode(bytes.fromhex(value), {"flags": flags})
    assert problem in str(refused.value)


def test_vbuckets_are_plain_numbers() -> None:
    assert VBUCKETS.decode(bytes.fromhex("00010002"), {}) == (1, 2)
