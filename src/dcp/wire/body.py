"""Values with a structure of their own: lists, texts, JSON, and the legacy bodies.

A `Body` turns the value of a frame into an object and back. A `Frame` keeps its value as bytes, so
that what was received can be sent again byte for byte; `Frame.body()` calls the decoder here.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dcp.errors import RemoteProtocolError
from dcp.wire.field import Field, struct_of, u64


class Body:
    """One kind of value. `fields` are those of the frame that carries it: some values need them."""

    about = "bytes"

    def problem(self, length: int) -> str:
        """What a value of `length` bytes should be instead, or nothing if the length can be right."""
        return ""

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> Any:
        raise NotImplementedError

    def encode(self, content: Any) -> bytes:
        raise NotImplementedError


class Text(Body):
    """UTF-8 text; what is not UTF-8 is kept as escapes."""

    about = "text"

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> str:
        return value.decode(errors="surrogateescape")

    def encode(self, content: str) -> bytes:
        return content.encode(errors="surrogateescape")


class Json(Body):
    """A JSON object; None where the value is empty."""

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
    """What an error carries: JSON from newer servers, plain words from older ones."""

    about = "text or JSON"

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> Any:
        return JSON.decode(value, fields) if value[:1] == b"{" else TEXT.decode(value, fields)

    def encode(self, content: Any) -> bytes:
        return TEXT.encode(content) if isinstance(content, str) else JSON.encode(content)


def _record(about: str, names: list[str]) -> Any:
    return namedtuple(about.title().replace(" ", ""), names)


class Records(Body):
    """A list of records of fixed width, in a tuple; records of one number are that number."""

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
        rows = self.struct.iter_unpack(value)
        return tuple(row[0] for row in rows) if len(self.record._fields) == 1 else tuple(map(self.record._make, rows))

    def encode(self, content: Iterable[Any]) -> bytes:
        return b"".join(self.struct.pack(*(row if isinstance(row, tuple) else (row,))) for row in content)

    def take(self, value: bytes, position: int) -> tuple[tuple[Any, ...], int]:
        """A list that a u16 count precedes, and the position behind it."""
        start = position + 2
        if len(value) < start:
            raise RemoteProtocolError(f"{self.about}: expected a count of 2 bytes, found {len(value) - position}")
        end = start + int.from_bytes(value[position:start], "big") * self.struct.size
        if len(value) < end:
            raise RemoteProtocolError(f"{self.about}: expected {end - start} bytes, found {len(value) - start}")
        return self.decode(value[start:end], {}), end

    def put(self, content: Sequence[Any]) -> bytes:
        """The inverse of `take`."""
        return len(content).to_bytes(2, "big") + self.encode(content)


class Counted(Body):
    """Records behind a u16 that counts them."""

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
