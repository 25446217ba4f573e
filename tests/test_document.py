"""Collection prefixes, vbuckets and xattr sections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.wire.document import join_collection, join_xattrs, split_collection, split_xattrs, vbucket_of

NAMES = st.binary(max_size=15).filter(lambda b: b"\0" not in b)


@pytest.mark.parametrize(
    ("collection_id", "prefix"),
    [
        (0, "00"),
        (8, "08"),
        (0x7F, "7f"),
        (0x80, "8001"),
        (0x555, "d50a"),
        (0xCAFEF00D, "8de0fbd70c"),
        (0xFFFFFFFF, "ffffffff0f"),
    ],
)
def test_a_collection_id_is_the_shortest_leb128(collection_id: int, prefix: str) -> None:
    assert join_collection(collection_id, b"key") == bytes.fromhex(prefix) + b"key"
    assert split_collection(bytes.fromhex(prefix) + b"key") == (collection_id, b"key")


@given(st.integers(0, 0xFFFFFFFF), st.binary(max_size=20))
def test_any_collection_id_comes_back(collection_id: int, key: bytes) -> None:
    assert split_collection(join_collection(collection_id, key)) == (collection_id, key)


@given(st.binary(max_size=8))
def test_any_prefix_is_the_only_form_of_its_id_or_refused(key: bytes) -> None:
    try:
        collection_id, rest = split_collection(key)
    except dcp.RemoteProtocolError:
        return
    assert join_collection(collection_id, rest) == key


@pytest.mark.parametrize("prefix", ["", "80", "8000", "808080808000", "ffffffff10", "ffffffffff01"])
def test_an_id_that_is_cut_too_long_or_too_large_is_refused(prefix: str) -> None:
    with pytest.raises(dcp.RemoteProtocolError, match="collection id: expected at most 32 bits"):
        split_collection(bytes.fromhex(prefix))


def test_an_id_that_no_collection_can_have_is_refused() -> None:
    with pytest.raises(dcp.LocalProtocolError, match="collection id: expected 32 bits"):
        join_collection(1 << 32, b"")


@pytest.mark.parametrize(
    ("key", "of_1024", "of_64"), [(b"hello", 528, 16), (b"foo", 115, 51), (b"airline_10", 361, 41)]
)
def test_a_key_lives_where_servers_put_it(key: bytes, of_1024: int, of_64: int) -> None:
    assert (vbucket_of(key), vbucket_of(key, 64)) == (of_1024, of_64)


@given(st.lists(st.tuples(NAMES, NAMES), max_size=4), st.binary(max_size=20))
def test_xattrs_and_body_come_back(pairs: list[tuple[bytes, bytes]], body: bytes) -> None:
    assert split_xattrs(join_xattrs(pairs, body)) == (tuple(pairs), body)


@given(st.binary(max_size=40))
def test_any_value_is_split_or_refused(value: bytes) -> None:
    try:
        pairs, body = split_xattrs(value)
    except dcp.RemoteProtocolError as error:
        assert "xattrs: " in str(error)
    else:
        assert not value or join_xattrs(pairs, body) == value


def test_an_empty_value_has_no_xattrs() -> None:
    assert split_xattrs(b"") == ((), b"")


def test_a_section_of_a_real_document_is_split() -> None:
    section = bytes.fromhex("0000001e0000000e5f73796e63007b2272223a317d00000000087461670022782200")
    assert split_xattrs(section + b'{"n":2}') == (((b"_sync", b'{"r":1}'), (b"tag", b'"x"')), b'{"n":2}')


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("000000", "length at byte 0: expected 4 bytes, found 3"),
        ("00000001", "length at byte 0: expected at most 0, found 1"),
        ("0000000200ff", "length at byte 4: expected 4 bytes, found 2"),
        ("00000004ffffffff", "length at byte 4: expected at most 0, found 4294967295"),
        ("00000006000000026100", "pair at byte 4: expected a name, 00, a value and 00"),
        ("0000000800000004610062ff", "pair at byte 4: expected a name, 00, a value and 00"),
    ],
)
def test_a_section_that_does_not_add_up_is_refused(value: str, problem: str) -> None:
    with pytest.raises(dcp.RemoteProtocolError, match=problem):
        split_xattrs(bytes.fromhex(value))


def test_a_zero_byte_in_a_pair_is_refused() -> None:
    with pytest.raises(dcp.LocalProtocolError, match="without 00"):
        join_xattrs([(b"a\0", b"1")])
