"""Structured values that only DCP has: stream filters, cached documents, system events as FlatBuffers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dcp.errors import RemoteProtocolError, UsageError
from dcp.wire.body import JSON, Body
from dcp.wire.field import struct_of, u8, u16, u32, u64


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """Optional value of a stream request.

    collections: ids of the collections to stream; None for all.
    scope: id of the scope to stream; None for all. Not together with `collections`.
    sid: stream id. It is not checked here: nodes refuse a bad one with a status of its own.
    uid: manifest uid that the client knows; a node with an older manifest refuses the stream.
    purge_seqno: purge seqno that the client knows.
    cts: settings of a cache transfer.

    Ids are numbers here, and hexadecimal text on the wire.
    """

    collections: tuple[int, ...] | None = None
    scope: int | None = None
    sid: int | None = None
    uid: int | None = None
    purge_seqno: int | None = None
    cts: Mapping[str, Any] | None = None


class StreamFilterBody(Body):
    """Value of a stream request, as JSON."""

    about = "stream filter"

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> StreamFilter:
        members = JSON.decode(value, fields)
        if members is None:
            return StreamFilter()
        if not isinstance(members, dict) or not _FILTER_MEMBERS & members.keys():
            raise RemoteProtocolError(
                f"stream filter: expected an object with any of {', '.join(sorted(_FILTER_MEMBERS))}, "
                f"found {value[:80].decode(errors='replace')}"
            )
        if "scope" in members and "collections" in members:
            raise RemoteProtocolError("stream filter: expected a scope or collections, found both")
        return StreamFilter(
            collections=_ids(members.get("collections")),
            scope=_hex("scope", members.get("scope"), 32),
            sid=_sid(members.get("sid")),
            uid=_hex("uid", members.get("uid"), 64),
            purge_seqno=_decimal("purge_seqno", members.get("purge_seqno")),
            cts=_object("cts", members.get("cts")),
        )

    def encode(self, content: StreamFilter) -> bytes:
        members: dict[str, Any] = {}
        if content.collections is not None:
            members["collections"] = [f"{collection:x}" for collection in content.collections]
        for name in ("scope", "uid"):
            if (number := getattr(content, name)) is not None:
                members[name] = f"{number:x}"
        if content.sid is not None:
            members["sid"] = content.sid
        if content.purge_seqno is not None:
            members["purge_seqno"] = str(content.purge_seqno)
        if content.cts is not None:
            members["cts"] = dict(content.cts)
        return JSON.encode(members or None)


_FILTER_MEMBERS = frozenset(f.name for f in fields(StreamFilter))


def _refuse(name: str, expected: str, found: object) -> RemoteProtocolError:
    return RemoteProtocolError(f"stream filter: {name}: expected {expected}, found {found!r}")


def _number(name: str, text: object, digits: str, base: int, bits: int) -> int | None:
    if text is None:
        return None
    expected = f"text of {'hexadecimal' if base == 16 else 'decimal'} digits that fits {bits} bits"
    if not isinstance(text, str) or not text or len(text) > 20 or not set(text.lower()) <= set(digits):
        raise _refuse(name, expected, text)
    number = int(text, base)
    if number >> bits:
        raise _refuse(name, expected, text)
    return number


def _hex(name: str, text: object, bits: int) -> int | None:
    return _number(name, text, "0123456789abcdef", 16, bits)


def _decimal(name: str, text: object) -> int | None:
    return _number(name, text, "0123456789", 10, 64)


def _ids(listed: object) -> tuple[int, ...] | None:
    if listed is None:
        return None
    if not isinstance(listed, list):
        raise _refuse("collections", "a list of hexadecimal ids", listed)
    ids = (_hex("collections", "" if text is None else text, 32) for text in listed)
    return tuple(number for number in ids if number is not None)


def _sid(number: object) -> int | None:
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 16):
        raise _refuse("sid", "an integer of 16 bits", number)
    return number


def _object(name: str, members: object) -> Mapping[str, Any] | None:
    if members is not None and not isinstance(members, dict):
        raise _refuse(name, "an object", members)
    return members


STREAM_FILTER = StreamFilterBody()


@dataclass(frozen=True, slots=True)
class CachedDocument:
    """One document of a cache transfer. `key` has its collection prefix."""

    cas: int
    seqno: int
    rev_seqno: int
    flags: int
    expiry: int
    datatype: int
    nru: int
    key: bytes
    value: bytes


class CachedDocuments(Body):
    """Value of a cache transfer: documents of any length, without a count."""

    about = "cached documents"
    _fields = (
        u64("cas"),
        u64("seqno"),
        u64("rev_seqno"),
        u32("value_length"),
        u32("flags"),
        u32("expiry"),
        u16("key_length"),
        u8("datatype"),
        u8("nru"),
    )
    _head = struct_of(_fields)

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> tuple[CachedDocument, ...]:
        documents, position, size = [], 0, self._head.size
        while position < len(value):
            if len(value) - position < size:
                raise self._short(position, size, len(value))
            head = dict(zip((f.name for f in self._fields), self._head.unpack_from(value, position), strict=True))
            key_length, value_length = head.pop("key_length"), head.pop("value_length")
            position += size
            if len(value) - position < key_length + value_length:
                raise self._short(position, key_length + value_length, len(value))
            key = value[position : position + key_length]
            position += key_length + value_length
            documents.append(CachedDocument(**head, key=key, value=value[position - value_length : position]))
        return tuple(documents)

    def encode(self, content: Iterable[CachedDocument]) -> bytes:
        return b"".join(self._encode(document) for document in content)

    def _encode(self, document: CachedDocument) -> bytes:
        lengths = {"key_length": len(document.key), "value_length": len(document.value)}
        head = (lengths[f.name] if f.name in lengths else getattr(document, f.name) for f in self._fields)
        return self._head.pack(*head) + document.key + document.value

    @staticmethod
    def _short(position: int, expected: int, length: int) -> RemoteProtocolError:
        found = length - position
        return RemoteProtocolError(f"cached documents: byte {position}: expected {expected} bytes, found {found}")


CACHED_DOCUMENTS = CachedDocuments()

_COLLECTION = (
    "manifest_uid:Q scope_id:I collection_id:I ttl_valid:? max_ttl:I name:s history:? "
    "default_collection_mvs:Q metered:? flush_uid:Q"
)
_DROPPED_COLLECTION = "manifest_uid:Q scope_id:I collection_id:I system_collection:?"
_SCOPE = "manifest_uid:Q scope_id:I name:s"
_DROPPED_SCOPE = "manifest_uid:Q scope_id:I system_scope:?"
# Slots of each event's table, in order: name, and struct code of the type (s for a string).
SYSTEM_EVENT_FIELDS = {
    event: tuple((name, code) for name, _, code in (slot.partition(":") for slot in slots.split()))
    for event, slots in (
        (0, _COLLECTION),
        (1, _DROPPED_COLLECTION),
        (3, _SCOPE),
        (4, _DROPPED_SCOPE),
        (5, _COLLECTION),
    )
}


class SystemEventTable(Body):
    """Value of a system event as a FlatBuffers table, read through the table's offsets.

    It can only be decoded: FlatBuffers has many encodings of one table, so encoding could not restore the bytes.
    """

    about = "FlatBuffers system event"

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> dict[str, int | bool | str]:
        try:
            return dict(self._slots(value, SYSTEM_EVENT_FIELDS.get(int(fields["event_id"]), ())))
        except struct.error:
            raise RemoteProtocolError(
                f"{self.about}: an offset points outside its {len(value)} bytes: {value[:40].hex()}"
            ) from None

    def encode(self, content: Any) -> bytes:
        raise UsageError("a FlatBuffers system event is given as the bytes of its value")

    def _slots(self, value: bytes, slots: Iterable[tuple[str, str]]) -> Iterable[tuple[str, int | bool | str]]:
        root = _unpack("I", value, 0)
        vtable = root - _unpack("i", value, root)
        size = _unpack("H", value, vtable)
        for slot, (name, code) in enumerate(slots):
            entry = 4 + 2 * slot
            offset = _unpack("H", value, vtable + entry) if entry < size else 0
            if code == "s":
                yield name, _string(value, root + offset) if offset else ""
            else:
                yield name, _unpack(code, value, root + offset) if offset else (False if code == "?" else 0)


def _unpack(code: str, value: bytes, position: int) -> int:
    if not 0 <= position < len(value):
        raise struct.error
    number: int = struct.unpack_from("<" + code, value, position)[0]
    return number


def _string(value: bytes, position: int) -> str:
    position += _unpack("I", value, position)
    length = _unpack("I", value, position)
    text = value[position + 4 : position + 4 + length]
    if len(text) != length:
        raise struct.error
    return text.decode(errors="surrogateescape")


SYSTEM_EVENT_TABLE = SystemEventTable()
