"""Offsets of a stream: positions as the JSON that Spark keeps. Equal positions are equal text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dcp.errors import CheckpointError
from dcp.position import StreamPosition

_VERSION = 1
Positions = dict[int, StreamPosition]


def to_offset(positions: Iterable[StreamPosition]) -> dict[str, Any]:
    """Numbers of 64 bits are text: seqno, uuid, the window, and the marks."""
    rows = {
        str(here.vbucket): f"{here.seqno} {here.vbuuid:x} {here.snapshot_start} {here.snapshot_end} "
        + ",".join(map(str, here.marks))
        for here in sorted(positions, key=lambda position: position.vbucket)
    }
    return {"version": _VERSION, "positions": rows}


def from_offset(offset: Mapping[str, Any]) -> Positions:
    try:
        if offset["version"] != _VERSION:
            raise ValueError
        return {int(vbucket): _position(int(vbucket), text) for vbucket, text in offset["positions"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError("offset: expected what this source wrote, found something else") from None


def _position(vbucket: int, text: str) -> StreamPosition:
    seqno, uuid, start, end, marks = text.split(" ")
    numbers = tuple(int(mark) for mark in marks.split(",") if mark)
    return StreamPosition(vbucket, int(uuid, 16), int(seqno), int(start), int(end), marks=numbers)
