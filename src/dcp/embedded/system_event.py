"""System events on the wire: packed numbers, or FlatBuffers."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from dcp.embedded.store import SystemItem
from dcp.wire.dcp import SystemEvent
from dcp.wire.dcp_body import SYSTEM_EVENT_FIELDS

_NAMED = (SystemEvent.COLLECTION_BEGIN, SystemEvent.SCOPE_CREATE, SystemEvent.COLLECTION_MODIFY)
_SCOPES = (SystemEvent.SCOPE_CREATE, SystemEvent.SCOPE_DROP)


def system_event(item: SystemItem, flatbuffers: bool) -> tuple[dict[str, int], bytes, bytes]:
    """Return fields, key and value of the message; `flatbuffers` selects version 2."""
    key = item.key if item.event_id in _NAMED else b""
    fields = {"seqno": item.seqno, "event_id": item.event_id}
    if flatbuffers:
        return fields | {"version": 2}, key, _table(item)
    begins = item.event_id == SystemEvent.COLLECTION_BEGIN
    with_ttl = {"max_ttl": item.max_ttl} if begins and item.max_ttl is not None else {}
    ids = {"manifest_uid": item.manifest_uid, "scope_id": item.scope_id}
    if item.event_id not in _SCOPES:
        ids["collection_id"] = item.collection_id or 0
    return fields | {"version": 1 if with_ttl else 0} | ids | with_ttl, key, b""


def _table(item: SystemItem) -> bytes:
    values = {
        "manifest_uid": item.manifest_uid,
        "scope_id": item.scope_id,
        "collection_id": item.collection_id,
        "name": item.key,
        "ttl_valid": item.max_ttl is not None,
        "max_ttl": item.max_ttl,
    }
    return flatbuffer([(code, values.get(name)) for name, code in SYSTEM_EVENT_FIELDS[item.event_id]])


def flatbuffer(slots: Sequence[tuple[str, int | bytes | None]]) -> bytes:
    """Encode one FlatBuffers table.

    A slot is a struct code (or s for a string) and a value. Values that are 0, false or empty are left out, since they
    are the defaults. The layout is: offset of the table, vtable, scalars, strings, each at a multiple of its size.
    """
    vtable_size = 4 + 2 * len(slots)
    table = _aligned(4 + vtable_size, 8)
    offsets, data, strings = [], bytearray(struct.pack("<i", table - 4)), []
    for code, content in slots:
        width = 4 if code == "s" else struct.calcsize(code)
        data += bytes(_aligned(len(data), width) - len(data))
        offsets.append(len(data) if content else 0)
        if isinstance(content, bytes) and content:
            strings.append((len(data), content))
            data += bytes(4)
        elif content:
            data += struct.pack("<" + code, content)
    inline = len(data)
    for offset, text in strings:
        data += bytes(_aligned(len(data), 4) - len(data))
        # Offsets of strings are relative to the field that holds them.
        struct.pack_into("<I", data, offset, len(data) - offset)
        data += struct.pack("<I", len(text)) + text + b"\0"
    head = struct.pack(f"<IHH{len(slots)}H", table, vtable_size, inline, *offsets)
    return head + bytes(table - len(head)) + bytes(data)


def _aligned(position: int, width: int) -> int:
    return -(-position // width) * width
