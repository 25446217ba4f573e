"""Structured values of frames: lists, texts, JSON, and those of the legacy dialects.

A `Body` decodes the value of a frame to an object, and encodes it. A `Frame` keeps its value as bytes, so that a
received frame can be sent again byte for byte; `Frame.body()` decodes it on request.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dcp.errors import RemoteProtocolError
from dcp.wire.field import Field, struct_of, u64


class Body:
    """One kind of value."""

    about = "bytes"

    def problem(self, length: int) -> str:
        """Return what a length should be instead, or "" if a value can have it."""
        return ""

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> Any:
        """Return the object that a value holds. Raises RemoteProtocolError if it is malformed.

        fields: fields of the frame, which decide how some values are read.
        """
        raise NotImplementedError

    def encode(self, content: Any) -> bytes:
        """Return the value that holds an object."""
        raise NotImplementedError


class Text(Body):
    """UTF-8 text. Bytes that are not UTF-8 become surrogate escapes, so that encoding restores them."""

    about = "text"

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> str:
        return value.decode(errors="surrogateescape")

    def encode(self, content: str) -> bytes:
        return content.encode(errors="surrogateescape")


class Json(Body):
    """Any JSON; None for an empty value."""

    about = "JSON"

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> Any:
        if not value:
            return None
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RemoteProtocolError(f"value: expected JSON, found {value[:40]!r} ({error})") from None

    def encode(self, content: Any) -> bytes:
        return b"" if content is None else json.dumps(content, separators=(",", ":")).encode()


class TextOrJson(Body):
    """Value of an error: JSON from newer servers, plain text from older ones."""

    about = "text or JSON"

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> Any:
        return JSON.decode(value, fields) if value[:1] == b"{" else TEXT.decode(value, fields)

    def encode(self, content: Any) -> bytes:
        return TEXT.encode(content) if isinstance(content, str) else JSON.encode(content)


def _record(about: str, names: list[str]) -> Any:
    return namedtuple(about.title().replace(" ", ""), names)


class Records(Body):
    """Records of fixed width, as a tuple of named tuples; records with one field as a tuple of numbers."""

    def __init__(self, about: str, *fields: Field) -> None:
        self.about = about
        self.struct = struct_of(fields)
        self.record = _record(about, [f.name for f in fields])

    def problem(self, length: int) -> str:
        size = self.struct.size
        return f"a multiple of {size}" if length % size else ""

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> tuple[Any, ...]:
        if wrong := self.problem(len(value)):
            raise RemoteProtocolError(f"{self.about}: expected {wrong} bytes, found {len(value)}")
        # Records of one field, such as feature codes, are plain numbers.
        rows = self.struct.iter_unpack(value)
        return tuple(row[0] for row in rows) if len(self.record._fields) == 1 else tuple(map(self.record._make, rows))

    def encode(self, content: Iterable[Any]) -> bytes:
        return b"".join(self.struct.pack(*(row if isinstance(row, tuple) else (row,))) for row in content)

    def take(self, value: bytes, position: int) -> tuple[tuple[Any, ...], int]:
        """Read records with a u16 count before them. Return them, and the position after the last."""
        start = position + 2
        if len(value) < start:
            raise RemoteProtocolError(f"{self.about}: expected a count of 2 bytes, found {len(value) - position}")
        end = start + int.from_bytes(value[position:start], "big") * self.struct.size
        if len(value) < end:
            raise RemoteProtocolError(f"{self.about}: expected {end - start} bytes, found {len(value) - start}")
        return self.decode(value[start:end], {}), end

    def put(self, content: Sequence[Any]) -> bytes:
        """Return records with their u16 count before them, as `take` reads them."""
        return len(content).to_bytes(2, "big") + self.encode(content)


class CountedRecords(Body):
    """Records with a u16 count before them."""

    def __init__(self, records: Records) -> None:
        self.about = records.about
        self.records = records

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> tuple[Any, ...]:
        content, end = self.records.take(value, 0)
        if end != len(value):
            raise RemoteProtocolError(f"{self.about}: expected {end} bytes, found {len(value)}")
        return content

    def encode(self, content: Sequence[Any]) -> bytes:
        return self.records.put(content)


TEXT = Text()
JSON = Json()
TEXT_OR_JSON = TextOrJson()
FAILOVER_LOG = Records("failover log", u64("vbuuid"), u64("seqno"))
