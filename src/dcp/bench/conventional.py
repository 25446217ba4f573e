"""Baseline in plain Python: DCP decoded and encoded with `struct`, lists and pyarrow."""

from __future__ import annotations

import struct
from typing import Any

_HEADER = struct.Struct(">BBHBxHIIQ")
_MUTATION = struct.Struct(">QQIIIHB")
_DELETION = struct.Struct(">QQIx")
_MARKER = struct.Struct(">QQI")
_COLUMNS = {
    "event": "string",
    "vbucket": "uint16",
    "seqno": "uint64",
    "rev_seqno": "uint64",
    "cas": "uint64",
    "flags": "uint32",
    "expiry": "uint32",
    "lock_time": "uint32",
    "delete_time": "uint32",
    "datatype": "uint8",
    "key": "binary",
    "value": "binary",
    "snapshot_start": "uint64",
    "snapshot_end": "uint64",
}


def decode(data: bytes) -> Any:
    """Return a record batch of the mutations and deletions in `data`, which holds complete frames."""
    import pyarrow as pa

    # Written as a user would write it: clear, and without tricks.
    rows = []
    windows = {}
    at = 0
    while at < len(data):
        _, opcode, key_length, extras_length, vbucket, body_length, opaque, cas = _HEADER.unpack_from(data, at)
        extras_at = at + 24
        key_at = extras_at + extras_length
        value_at = key_at + key_length
        end = extras_at + body_length
        if opcode == 0x57:
            seqno, rev_seqno, flags, expiry, lock_time, _, _ = _MUTATION.unpack_from(data, extras_at)
            change: tuple[Any, ...] = ("mutation", vbucket, seqno, rev_seqno, cas, flags, expiry, lock_time, None)
        elif opcode == 0x58:
            seqno, rev_seqno, delete_time = _DELETION.unpack_from(data, extras_at)
            change = ("deletion", vbucket, seqno, rev_seqno, cas, 0, 0, 0, delete_time)
        else:
            # A marker gives the following changes of its stream their snapshot. All other messages are skipped.
            if opcode == 0x56:
                windows[opaque] = _MARKER.unpack_from(data, extras_at)[:2]
            at = end
            continue
        rows.append((*change, data[at + 5], data[key_at:value_at], data[value_at:end], *windows[opaque]))
        at = end
    arrays = [pa.array(cells, type) for cells, type in zip(zip(*rows, strict=True), _COLUMNS.values(), strict=True)]
    return pa.record_batch(arrays, list(_COLUMNS))


def encode(batch: Any, opaque: int) -> bytes:
    """Return the frames of a record batch of mutations and deletions, the latter in the form with a delete time."""
    frames = []
    for row in batch.to_pylist():
        key, value = row["key"], row["value"]
        if row["event"] == "mutation":
            opcode, extras = 0x57, _MUTATION.pack(*(row[name] for name in _FIELDS), 0, 0)
        else:
            opcode, extras = 0x58, _DELETION.pack(row["seqno"], row["rev_seqno"], row["delete_time"])
        body_length = len(extras) + len(key) + len(value)
        header = struct.pack(
            ">BBHBBHIIQ",
            0x80,
            opcode,
            len(key),
            len(extras),
            row["datatype"],
            row["vbucket"],
            body_length,
            opaque,
            row["cas"],
        )
        frames += [header, extras, key, value]
    return b"".join(frames)


_FIELDS = ("seqno", "rev_seqno", "flags", "expiry", "lock_time")
