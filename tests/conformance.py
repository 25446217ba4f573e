"""Inputs of the conformance tests: vectors, recorded conversations, captured packets.

Nothing here uses the package under test: frames are split by their length field alone.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VECTOR_FILES = ("seeds", "examples", "server_docs")
HEADER_SIZE = 24


@dataclass(frozen=True)
class Vector:
    """One frame drawn in a document.

    fields: its labels in order. Their texts are those of the table under the drawing or, in `examples`, bytes in hex.
    drawn: the bytes in the document.
    sound: the bytes of a correct encoder.
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
        """Return the id without what follows its number."""
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
    """All bytes of one connection, and the summary of the program that recorded it, a line per frame."""

    client: bytes
    server: bytes
    summary: tuple[str, ...]

    @property
    def directions(self) -> tuple[tuple[str, bytes], ...]:
        return ("client", self.client), ("server", self.server)


@dataclass(frozen=True)
class Document:
    """Document stored or deleted before or during a conversation; None for what is not known."""

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
class Turn:
    """Bytes of one side of the main connection: how many, and how many seconds after the beginning.

    side: client, server, or server_close where the server closed the connection.
    """

    side: str
    size: int
    when: float


@dataclass(frozen=True)
class Transcript:
    """Recorded conversation. `main` is the connection that its scenario is about."""

    version: str
    scenario: str
    connections: tuple[Connection, ...]
    documents: tuple[Document, ...]
    timeline: tuple[Turn, ...]

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
        """Yield every direction of every connection."""
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
        tuple(Turn(side, size, when / 1000) for side, size, when in recorded["timeline"]),
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
    """Split `data` into frames by their body lengths alone."""
    frames, position = [], 0
    while position < len(data):
        end = position + HEADER_SIZE + int.from_bytes(data[position + 8 : position + 12], "big")
        assert end <= len(data), f"{len(data) - position} bytes are left"
        frames.append(data[position:end])
        position = end
    return frames


# ------------------------------------------------------------------------- what had been stored

INCLUDE_XATTRS, NO_VALUE, NO_VALUE_WITH_UNDERLYING_DATATYPE = 0x04, 0x08, 0x40
_OPEN, _HELLO, _COLLECTIONS = 0x50, 0x1F, 0x12

# Documents that a conversation correctly does not send, with the reason.
UNSENT = {
    "collections_after_drop": "in collections that were dropped",
    "collections_disk_oso": "in other collections",
    "collections_disk_oso_default": "in other collections",
    "collections_filter_nojson": "the stream was refused",
    "collections_filter_one": "in other collections",
    "collections_filter_scope": "in other collections",
    "collections_stream_ids": "in other collections",
    "crash_rollback": "before the seqno from which the stream goes on",
    "snappy_passive_hello": "stored last, not yet sent when the recording ends",
    "stream_disk_flow_control": "stored last, behind the end that was asked for",
    "stream_disk_resume_mid_snapshot": "before the seqno from which the stream goes on",
    "tap_future_only": "stored before the connection",
    "tap_nack_einternal": "the server gives up after the negative answers",
}


@dataclass(frozen=True)
class Change:
    """A change that a server sent, as the package read it; None for what the message does not have.

    `value` is the body of the document, compressed if that was not undone.
    """

    name: str
    vbucket: int
    collection: int
    key: bytes
    cas: int
    seqno: int | None
    flags: int | None
    expiry: int | None
    value: bytes
    compressed: bool
    xattrs: dict[str, str]


def open_flags(talk: Transcript) -> int:
    """Return the flags with which the client opened its DCP connection."""
    opens = [raw for raw in cut(talk.main.client) if raw[1] == _OPEN and raw[4] == 8 and raw[2:4] != b"\0\0"]
    return int.from_bytes(opens[0][28:32], "big") if opens else 0


def has_collections(talk: Transcript) -> bool:
    """Return whether the server granted HELLO Collections, so that keys carry a prefix."""
    answers = [raw for raw in cut(talk.main.server) if raw[1] == _HELLO and raw[0] == 0x81]
    return any((_COLLECTIONS,) in struct.iter_unpack(">H", raw[HEADER_SIZE:]) for raw in answers)


def compare_with_documents(talk: Transcript, changes: Iterable[Change]) -> Counter[str]:
    """Compare the stored documents with what the server sent. Return how much was compared."""
    sent: dict[tuple[int, int, bytes], list[Change]] = {}
    for change in changes:
        sent.setdefault((change.vbucket, change.collection, change.key), []).append(change)
    counts: Counter[str] = Counter()
    for document in talk.documents:
        found = sent.get((document.vbucket, document.collection, document.key), [])
        every = [change for same in sent.values() for change in same]
        counts += _check_document(document, found, open_flags(talk)) if found else _check_unsent(document, talk, every)
    return counts


def _check_document(document: Document, changes: list[Change], flags: int) -> Counter[str]:
    same = [change for change in changes if change.cas == document.cas]
    if not same:
        return _check_superseded(document, changes)
    counts: Counter[str] = Counter()
    for change in same:
        counts += _check_numbers(document, change) + _check_value(document, change, flags)
    return counts


def _check_superseded(document: Document, changes: list[Change]) -> Counter[str]:
    """Check a change that was not sent: the server sends only the last change of a key."""
    for change in changes:
        assert change.name in ("deletion", "expiration")
        assert change.cas > (document.cas or 0)
        assert change.seqno is not None
        assert change.seqno > (document.seqno or 0)
    return Counter(superseded=1)


def _check_unsent(document: Document, talk: Transcript, changes: list[Change]) -> Counter[str]:
    assert talk.scenario in UNSENT
    if talk.scenario.startswith("collections"):
        assert document.collection not in {change.collection for change in changes}
    elif document.seqno is not None:
        sent = {change.seqno for change in changes if change.seqno is not None}
        assert not min(sent) < document.seqno < max(sent)
    return Counter(unsent=1)


def _check_numbers(document: Document, change: Change) -> Counter[str]:
    assert (change.name in ("deletion", "expiration")) == document.deleted
    counts = Counter(sent=1)
    for name in ("seqno", "flags", "expiry"):
        stored, found = getattr(document, name), getattr(change, name)
        if stored is not None and found is not None:
            assert found == stored
            counts[name] += 1
    return counts


def _check_value(document: Document, change: Change, flags: int) -> Counter[str]:
    if document.value is None:
        return Counter()
    if change.compressed:
        assert document.compressed in (None, change.value)
        return Counter(compressed=1) if document.compressed else Counter(incomparable=1)
    no_value = flags & (NO_VALUE | NO_VALUE_WITH_UNDERLYING_DATATYPE)
    assert change.value == (b"" if no_value else document.value)
    if not flags & INCLUDE_XATTRS:
        assert not change.xattrs
        return Counter(values=1)
    assert change.xattrs == document.xattrs
    return Counter(values=1, xattrs=bool(change.xattrs))


# ------------------------------------------------------------------------- captured packets

_INTERFACE, _PACKET, _TCP, _LOOPBACK = 1, 6, 6, 0


def tcp_streams(capture: Path) -> dict[tuple[int, int], list[bytes]]:
    """Return the bytes of each direction in a pcapng of loopback TCP over IPv4, by (source port, destination port).

    A direction is one run of bytes; each segment that the capture lacks begins another.
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


# Requests that the recording client malformed on purpose, once in each recording of the scenario.
MALFORMED = {
    "error_open_bad_extras": (0x50, "open: extras length: expected 8, found 4"),
    "error_open_noname": (0x50, "open: key length: expected at least 1, found 0"),
    "error_stream_bad_extras": (0x53, "stream_request: extras length: expected 48, found 40"),
}
