"""What the tests of conformance read: vectors, recorded conversations, captured packets.

Nothing here knows the package under test: frames are cut by their length field alone.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VECTOR_FILES = ("seeds", "examples", "server_docs")
HEADER_SIZE = 24


@dataclass(frozen=True)
class Vector:
    """One frame that a document draws.

    `fields` are its labels in order; their texts are what the table under the drawing says, or, in
    `examples`, the bytes as hex. `drawn` are the bytes as they stand there, `sound` those of a correct
    encoder.
    """

    file: str
    id: str
    dialect: str
    drawn: bytes
    sound: bytes
    fields: tuple[tuple[str, str], ...]
    lengths_add_up: bool
    consistent: bool

    @property
    def short(self) -> str:
        """The id up to its number."""
        found = re.match(r".+?-\d\d(?=-)", self.id)
        return found.group() if found else self.id


@cache
def vectors() -> tuple[Vector, ...]:
    return tuple(_vector(name, row) for name in VECTOR_FILES for row in _load(HERE / "vectors" / f"{name}.json"))


def _vector(file: str, row: dict[str, Any]) -> Vector:
    fields = row["fields"].items() if isinstance(row["fields"], dict) else row["fields"]
    return Vector(
        file,
        row["id"],
        row.get("dialect", "dcp"),
        bytes.fromhex(row["hex"]),
        bytes.fromhex(row.get("corrected_hex", row["hex"])),
        tuple((label, text) for label, text in fields),
        row.get("lengths_add_up", True),
        row.get("consistent", True),
    )


def _load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Connection:
    """All bytes of one connection, and a line a frame from the program that recorded it."""

    client: bytes
    server: bytes
    summary: tuple[str, ...]

    @property
    def directions(self) -> tuple[tuple[str, bytes], ...]:
        return ("client", self.client), ("server", self.server)


@dataclass(frozen=True)
class Document:
    """What had been stored, or deleted, before or during a conversation; None where that is not known."""

    vbucket: int
    collection: int
    key: bytes
    value: bytes | None
    compressed: bytes | None
    flags: int | None
    expiry: int | None
    cas: int | None
    seqno: int | None
    deleted: bool
    xattrs: dict[str, str]


@dataclass(frozen=True)
class Transcript:
    """A recorded conversation; `main` is the connection that its scenario is about."""

    version: str
    scenario: str
    connections: tuple[Connection, ...]
    documents: tuple[Document, ...]

    @property
    def id(self) -> str:
        return f"{self.version}/{self.scenario}"

    @property
    def main(self) -> Connection:
        return self.connections[0]

    @cached_property
    def dialect(self) -> str:
        return "tap" if self.scenario.startswith("tap") else "dcp"

    @property
    def streams(self) -> Iterator[tuple[str, bytes]]:
        """Every direction of every connection."""
        for connection in self.connections:
            yield from connection.directions


TRANSCRIPTS = sorted((HERE / "transcripts").glob("*/*.json"))


@cache
def transcript(path: Path) -> Transcript:
    recorded = _load(path)
    return Transcript(
        path.parent.name,
        path.stem,
        tuple(_connection(one) for one in (recorded, *recorded["other_connections"])),
        tuple(_document(row) for row in recorded["documents"]),
    )


def _connection(row: dict[str, Any]) -> Connection:
    return Connection(bytes.fromhex(row["client_hex"]), bytes.fromhex(row["server_hex"]), tuple(row["summary"]))


def _document(row: dict[str, Any]) -> Document:
    return Document(
        row["vb"],
        int(row.get("collection", "0"), 16),
        row["key"].encode(),
        _bytes(row.get("value_hex")),
        _bytes(row.get("stored_value_hex")),
        row.get("flags"),
        row.get("expiry"),
        int(row["cas"], 16) if "cas" in row else None,
        row.get("seqno"),
        row.get("deleted", False),
        row.get("xattrs", {}),
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def cut(data: bytes) -> list[bytes]:
    """The frames in `data` by their total body lengths, whatever they are."""
    frames, position = [], 0
    while position < len(data):
        end = position + HEADER_SIZE + int.from_bytes(data[position + 8 : position + 12], "big")
        assert end <= len(data), f"{len(data) - position} bytes are left"
        frames.append(data[position:end])
        position = end
    return frames


_INTERFACE, _PACKET, _TCP, _LOOPBACK = 1, 6, 6, 0


def tcp_streams(capture: Path) -> dict[tuple[int, int], list[bytes]]:
    """The bytes of each direction in a pcapng of loopback TCP over IPv4, by (source port, destination port).

    A direction is one run of bytes, and one more behind each segment that the capture lacks.
    """
    segments: dict[tuple[int, int], dict[int, bytes]] = {}
    for packet in _packets(capture.read_bytes()):
        ports, sequence, payload = _segment(packet[4:])
        if payload:
            segments.setdefault(ports, {})[sequence] = payload
    return {ports: _runs(pieces) for ports, pieces in segments.items()}


def _packets(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        kind, length = struct.unpack_from("<II", data, position)
        if kind == _INTERFACE:
            assert struct.unpack_from("<H", data, position + 8) == (_LOOPBACK,)
        if kind == _PACKET:
            (captured,) = struct.unpack_from("<I", data, position + 20)
            yield data[position + 28 : position + 28 + captured]
        position += length


def _segment(packet: bytes) -> tuple[tuple[int, int], int, bytes]:
    assert (packet[0] >> 4, packet[9]) == (4, _TCP)
    segment = packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4], "big")]
    source, destination, sequence = struct.unpack_from(">HHI", segment)
    return (source, destination), sequence, segment[(segment[12] >> 4) * 4 :]


def _runs(pieces: dict[int, bytes]) -> list[bytes]:
    runs: list[bytes] = []
    expected = None
    for sequence, payload in sorted(pieces.items()):
        if sequence == expected:
            runs[-1] += payload
        else:
            runs.append(payload)
        expected = sequence + len(payload)
    return runs
