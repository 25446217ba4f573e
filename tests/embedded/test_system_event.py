"""System events as FlatBuffers, read with the library of FlatBuffers."""

from __future__ import annotations

from typing import Any

import pytest
from flatbuffers import encode as reading
from flatbuffers import number_types as numbers
from flatbuffers import packer
from flatbuffers.table import Table
from hypothesis import example, given
from hypothesis import strategies as st

from dcp.embedded.store import SystemItem
from dcp.embedded.system_event import flatbuffer, system_event
from dcp.wire.dcp import SystemEvent
from tests.embedded.raw_client import DcpClient, make_bucket

_TYPES: dict[str, Any] = {
    "Q": numbers.Uint64Flags,
    "I": numbers.Uint32Flags,
    "?": numbers.BoolFlags,
}
SLOTS = st.one_of(
    st.tuples(st.just("s"), st.none() | st.binary(max_size=20)),
    st.tuples(st.just("Q"), st.none() | st.integers(0, 2**64 - 1)),
    st.tuples(st.just("I"), st.none() | st.integers(0, 2**32 - 1)),
    st.tuples(st.just("?"), st.none() | st.booleans()),
)


_EMPTY = {"s": b""}
_SIZES = {"Q": 8, "I": 4, "s": 4, "?": 1}


def read(data: bytes, codes: list[str]) -> list[Any]:
    """Read the slots of the root table as generated code does; check that each is aligned."""
    table = Table(data, reading.Get(packer.uoffset, data, 0))
    found: list[Any] = []
    for slot, code in enumerate(codes):
        offset = table.Offset(4 + 2 * slot)
        assert not offset or (table.Pos + offset) % _SIZES[code] == 0
        if code == "s":
            found.append(table.String(table.Pos + offset) if offset else b"")
        else:
            found.append(table.Get(_TYPES[code], table.Pos + offset) if offset else 0)
    return found


@given(st.lists(SLOTS, max_size=12))
@example([("?", True), ("s", b"aligned")])
def test_a_table_is_read_as_it_was_written(slots: list[tuple[str, Any]]) -> None:
    data = flatbuffer(slots)
    assert read(data, [code for code, _ in slots]) == [
        content or (b"" if code == "s" else 0) for code, content in slots
    ]
    table = reading.Get(packer.uoffset, data, 0)
    vtable = table - reading.Get(packer.soffset, data, table)
    assert reading.Get(packer.voffset, data, vtable) == 4 + 2 * len(slots)


COLLECTION, DROPPED, SCOPE, DROPPED_SCOPE = "QII?Is", "QII", "QIs", "QI"


@pytest.mark.parametrize(
    ("event", "codes", "content"),
    [
        (SystemEvent.COLLECTION_BEGIN, COLLECTION, [5, 8, 9, 1, 60, b"hotel"]),
        (SystemEvent.COLLECTION_END, DROPPED, [5, 8, 9]),
        (SystemEvent.SCOPE_CREATE, SCOPE, [5, 8, b"hotel"]),
        (SystemEvent.SCOPE_DROP, DROPPED_SCOPE, [5, 8]),
    ],
)
def test_an_event_has_its_slots(event: SystemEvent, codes: str, content: list[Any]) -> None:
    collection = 9 if "COLLECTION" in event.name else None
    item = SystemItem(3, int(event), b"hotel", 5, 8, collection, 60)
    fields, key, value = system_event(item, flatbuffers=True)
    assert fields == {"seqno": 3, "event_id": int(event), "version": 2}
    assert key == (b"hotel" if b"hotel" in content else b"")
    assert read(value, list(codes)) == content


@pytest.mark.parametrize(("max_ttl", "version"), [(None, 0), (0, 1), (60, 1)])
def test_a_packed_event_has_the_version_of_its_fields(max_ttl: int | None, version: int) -> None:
    item = SystemItem(3, int(SystemEvent.COLLECTION_BEGIN), b"hotel", 5, 8, 9, max_ttl)
    fields, key, value = system_event(item, flatbuffers=False)
    ids = {"seqno": 3, "event_id": 0, "manifest_uid": 5, "scope_id": 8, "collection_id": 9}
    assert fields == ids | {"version": version} | ({} if max_ttl is None else {"max_ttl": max_ttl})
    assert (key, value) == (b"hotel", b"")


def test_a_connection_gets_flatbuffers_for_all_events_once_enabled() -> None:
    bucket = make_bucket()
    bucket.change_manifest(*bucket.manifest.create_scope("s"))
    bucket.change_manifest(*bucket.manifest.create_collection("s", "c"))
    bucket.change_manifest(*bucket.manifest.drop_scope("s"))
    frames = DcpClient(bucket, controls={"flatbuffers_system_events": "true"}).stream()
    plain = DcpClient(bucket, name=b"other").stream()
    assert [frame.fields.get("version") for frame in frames[1:]] == [2, 2]
    assert [frame.body()["manifest_uid"] for frame in frames[1:]] == [2, 3]
    assert [frame.fields.get("version") for frame in plain[1:]] == [0, 0]
