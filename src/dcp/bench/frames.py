"""Wire bytes for the benchmarks: the same for the same case, on every machine.

Each kind of frame is encoded once from the tables, with placeholder numbers that are unique in it. The frames of a wire
are copies of these templates with numbers filled in, which NumPy does for millions of frames in a second. `python -m
dcp.bench.frames DIR` writes the wires whose instructions `bench/compare.py` counts.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dcp
from dcp.wire.framing import FrameInfo, stream_id
from dcp.wire.layout import Dialect, Kind, Layout, Magic, Message

KIB, MIB = 1 << 10, 1 << 20
CACHED = 4 * MIB

DIALECTS = ("dcp", "upr1", "upr2", "tap")
COLLECTION = b"\xb4\x24"
XATTRS = b'_sync\x00{"rev":"3-8a81b2e2f0","sequence":1290431,"time_saved":"2026-01-31T12:00:00Z"}\x00'
JSON_BIT, SNAPPY_BIT, XATTR_BIT = 1, 2, 4

# Placeholders: numbers that no other part of a template contains.
SEQNO, START, END = 0xA1A2A3A4A5A6A7A8, 0xB1B2B3B4B5B6B7B8, 0xC1C2C3C4C5C6C7C8
VBUCKET_AT, OPAQUE_AT, CAS_AT = 6, 12, 16
FIRST_CAS = 0x17E0_0000_0000_0000
DIGITS = 8

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """Properties of wire bytes.

    value, key: sizes in bytes. Values are up to `spread` bytes shorter or longer, evenly distributed.
    mix: `plain`, or a feature that some or all frames have.
    vbuckets: their frames alternate, as from a producer with changes in each.
    chunk, total: bytes that arrive at once, and in all.
    in_cache: True for few bytes that are decoded repeatedly, since bytes from a socket are in the cache, too. Otherwise
        they exceed the cache, and the speed of the memory counts as well, with everything else that uses it.
    """

    value: int = 100
    key: int = 20
    dialect: str = "dcp"
    mix: str = "plain"
    vbuckets: int = 1
    chunk: int = MIB
    total: int = 64 * MIB
    spread: int = 8
    in_cache: bool = True

    @property
    def rows_per_snapshot(self) -> int:
        """Number of rows of a vbucket between two snapshot markers."""
        if self.mix == "markers":
            return 4
        return 10_000 if self.vbuckets == 1 else 50

    @property
    def name(self) -> str:
        """Name in reports: what differs from the default."""
        parts = [f"value {self.value}"]
        parts += [f"key {self.key}"] if self.key != 20 else []
        parts += [self.dialect] if self.dialect != "dcp" else []
        parts += [self.mix] if self.mix != "plain" else []
        parts += [f"{self.vbuckets} vbuckets"] if self.vbuckets != 1 else []
        parts += [f"chunks {size(self.chunk)}"] if self.chunk != MIB else []
        parts += [] if self.in_cache else ["in memory"]
        return ", ".join(parts)

    def sized(self, total: int) -> Case:
        """Return the case with `total` bytes, or fewer if they have to stay in the cache."""
        return replace(self, total=min(total, CACHED) if self.in_cache else total)


def size(count: int) -> str:
    """Return a number of bytes with a unit."""
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


@dataclass(frozen=True)
class Wire:
    """Bytes of a case. A decoder can read them repeatedly, since each vbucket begins with a snapshot marker."""

    case: Case
    data: bytes
    rows: int

    @cached_property
    def chunks(self) -> list[bytes]:
        """Pieces as they arrive."""
        return [self.data[at : at + self.case.chunk] for at in range(0, len(self.data), self.case.chunk)]


def options(case: Case) -> dict[str, Any]:
    """Return the options of a decoder for a case."""
    return {"dialect": case.dialect, "collections": case.mix == "collections"}


# ------------------------------------------------------------------------------------- templates


@dataclass(frozen=True)
class Template:
    """An encoded frame, and the offsets of its numbers; -1 for those that it lacks."""

    raw: bytes
    seqno_at: int
    key_end: int
    start_at: int
    end_at: int


def template(frame: dcp.Frame, case: Case) -> Template:
    """Encode a frame with placeholders, and find them."""
    raw = dcp.encode(frame, case.dialect)
    key_at = raw.index(frame.key, CAS_AT) if frame.key else -1
    offsets = [raw.find(number.to_bytes(8, "big")) for number in (SEQNO, START, END)]
    return Template(raw, offsets[0], key_at + len(frame.key), offsets[1], offsets[2])


def change(case: Case, name: str, value: bytes, datatype: int) -> Template:
    """Return the template of a mutation or deletion."""
    dialect = dcp.DIALECTS[case.dialect]
    message = dialect.by_name[name]
    layout = newest(message)
    infos = (stream_id(7),) if case.mix == "stream_ids" else ()
    prefix = COLLECTION if case.mix == "collections" else b""
    frame = dcp.Frame(
        name,
        magic(message.kind, infos),
        cas=FIRST_CAS,
        datatype=0 if message.type is not None else datatype,
        fields=fields(layout, seqno=SEQNO, rev_seqno=3, delete_time=1_700_000_000),
        key=prefix + b"user::sessions::".ljust(case.key, b"_")[: case.key - DIGITS] + b"\xff" * DIGITS,
        value=value,
        frame_info=infos,
    )
    return template(frame, case)


def newest(message: Message) -> Layout:
    """Return the layout with the most fields."""
    return max(message.sent, key=lambda layout: len(layout.required))


def magic(kind: Kind, infos: tuple[FrameInfo, ...]) -> int:
    """Return the magic byte of a frame, which depends on its frame infos."""
    return next(int(magic) for magic in Magic if magic.kind is kind and magic.framed == bool(infos))


def fields(layout: Layout, **known: int) -> dict[str, int | bytes]:
    """Return values for the required fields of a layout: 0 unless known."""
    return {name: known.get(name, 0) for name in layout.fields if name in layout.required}


def changes(case: Case) -> list[Template]:
    """Return the templates of mutations, one for each length of value."""
    spread = min(case.spread, case.value // 4)
    values = [document(case.value + extra) for extra in range(-spread, spread + 1)]
    datatype = JSON_BIT if case.value else 0
    if case.mix == "xattrs":
        values, datatype = [section(XATTRS) + value for value in values], datatype | XATTR_BIT
    if case.mix == "snappy":
        values, datatype = [compressed(value) for value in values], datatype | SNAPPY_BIT
    return [change(case, "mutation", value, datatype) for value in values]


def document(length: int) -> bytes:
    """Return JSON of a length, which snappy compresses to about half."""
    names = ("name", "city", "mail", "note", "tags", "when")
    parts = [f'"{names[i % 6]}{i}":"{i * 2654435761 % (1 << 32):08x}{"-" * (i % 13)}"' for i in range(length // 16 + 1)]
    return ("{" + ",".join(parts))[: max(length - 1, 0)].encode() + b"}" * (length > 0)


def section(pair: bytes) -> bytes:
    """Return an xattr section with one pair."""
    return (len(pair) + 4).to_bytes(4, "big") + len(pair).to_bytes(4, "big") + pair


def compressed(value: bytes) -> bytes:
    """Return a value compressed with snappy."""
    import pyarrow

    return bytes(pyarrow.Codec("snappy").compress(value, asbytes=True))


def marker(case: Case) -> Template | None:
    """Return the template of a snapshot marker; None in a dialect without one."""
    dialect: Dialect = dcp.DIALECTS[case.dialect]
    message = dialect.by_name.get("snapshot_marker") or dialect.by_name.get("snapshot_start")
    if message is None:
        return None
    infos = (stream_id(7),) if case.mix == "stream_ids" else ()
    known = fields(message.sent[0], snapshot_start=START, snapshot_end=END, flags=1)
    return template(dcp.Frame(message.name, magic(message.kind, infos), fields=known, frame_info=infos), case)


# ------------------------------------------------------------------------------------------ wires


def make_wire(case: Case) -> Wire:
    """Make the bytes of a case: complete frames, about `total` bytes."""
    rows = changes(case)
    if case.mix == "deletions":
        rows += [change(case, "deletion", b"", 0)]
    opening = marker(case)
    templates = rows + ([opening] if opening else [])
    # The index of a template is its kind: changes come first, so that kinds below len(rows) are rows.
    kinds, numbers = order(case, rows, has_markers=opening is not None)
    # As many frames as fit into `total`, but at least a marker and a change.
    frame_sizes = np.array([len(t.raw) for t in templates])
    kinds = kinds[: max(int(np.searchsorted(np.cumsum(frame_sizes[kinds]), case.total, "right")), 2)]
    numbers = numbers[: len(kinds)]
    data = np.frombuffer(bytearray(b"".join([templates[kind].raw for kind in kinds.tolist()])), np.uint8)
    starts = np.cumsum(frame_sizes[kinds]) - frame_sizes[kinds]
    for kind, one in enumerate(templates):
        chosen = kinds == kind
        fill(data, starts[chosen], numbers[chosen], one, case)
    return Wire(case, data.tobytes(), int((kinds < len(rows)).sum()))


def order(case: Case, rows: list[Template], *, has_markers: bool) -> tuple[_Ints, _Ints]:
    """Return the template of each frame, and the number of its row; a marker has that of the next row."""
    # Twice as many frames as expected: the caller cuts them off at the number of bytes.
    average = sum(len(row.raw) for row in rows) // len(rows)
    n = 2 * case.total // average + case.vbuckets
    number = np.arange(n, dtype=np.int64)
    lengths = len(rows) - (case.mix == "deletions")
    # Lengths in an order without a short period, which a branch predictor would learn.
    kind = (number * number + number // 7) % lengths
    if case.mix == "deletions":
        kind[number * 2654435761 % (1 << 32) < (1 << 32) // 10] = lengths
    if not has_markers:
        return kind, number
    turn, vbucket = number // case.vbuckets, number % case.vbuckets
    marked = np.flatnonzero(((turn + vbucket) % case.rows_per_snapshot == 0) | (turn == 0))
    return np.insert(kind, marked, len(rows)), np.insert(number, marked, number[marked])


def fill(data: npt.NDArray[np.uint8], starts: _Ints, numbers: _Ints, one: Template, case: Case) -> None:
    """Fill in the numbers of each copy of a template."""
    vbucket, seqno = numbers % case.vbuckets, numbers // case.vbuckets + 1
    put(data, starts + VBUCKET_AT, vbucket, 2)
    put(data, starts + OPAQUE_AT, 0x10000 + vbucket, 4)
    if one.seqno_at >= 0:
        put(data, starts + one.seqno_at, seqno, 8)
    if one.start_at >= 0:
        put(data, starts + one.start_at, seqno, 8)
        put(data, starts + one.end_at, seqno + case.rows_per_snapshot - 1, 8)
    if one.key_end > 0:
        put(data, starts + CAS_AT, FIRST_CAS + (numbers << 16), 8)
        for digit in range(DIGITS):
            data[starts + (one.key_end - 1 - digit)] = numbers // 10**digit % 10 + ord("0")


def put(data: npt.NDArray[np.uint8], at: _Ints, numbers: _Ints, width: int) -> None:
    """Write numbers of `width` bytes, big-endian, at some offsets."""
    for byte in range(width):
        data[at + byte] = numbers >> 8 * (width - 1 - byte) & 0xFF


# -------------------------------------------------------------------- wires for counting instructions

COUNTED = {
    "value 100": (Case(), {}),
    "value 1024": (Case(value=1024), {}),
    "value 100, views": (Case(), {"views": True}),
    "value 1024, views": (Case(value=1024), {"views": True}),
    "10 % deletions": (Case(mix="deletions"), {}),
    "snappy, value 1024": (Case(value=1024, mix="snappy"), {}),
    "xattrs": (Case(mix="xattrs"), {}),
    "collections": (Case(mix="collections"), {}),
    "stream ids": (Case(mix="stream_ids"), {}),
    "1,024 vbuckets": (Case(vbuckets=1024), {}),
    "1,024 vbuckets, many markers": (Case(vbuckets=1024, mix="markers"), {}),
    "upr2": (Case(dialect="upr2"), {}),
    "tap": (Case(dialect="tap"), {}),
}


def write_counted(folder: Path, total: int = 2 * MIB) -> None:
    """Write a file of bytes for each workload, and `workloads.json` with the decoder's options."""
    described = []
    for number, (name, (case, more)) in enumerate(COUNTED.items()):
        wire = make_wire(replace(case, total=total))
        path = folder / f"{number}.bin"
        path.write_bytes(wire.data)
        described.append({"name": name, "file": path.name, "rows": wire.rows, "options": options(case) | more})
    (folder / "workloads.json").write_text(json.dumps(described, indent=1), "utf-8")


if __name__ == "__main__":
    write_counted(Path(sys.argv[1]))
