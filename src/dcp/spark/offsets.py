"""Offsets of a stream: a checkpoint as the JSON that Spark keeps. Equal checkpoints are equal text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dcp.checkpoint import Checkpoint, filter_of
from dcp.cluster_map import format_vbuckets
from dcp.errors import CheckpointError
from dcp.position import StreamPosition

_VERSION = 1


def to_offset(here: Checkpoint) -> dict[str, Any]:
    """Numbers of 64 bits are text: seqno, uuid, the window, and the marks."""
    rows = {str(position.vbucket): _text(position) for position in here}
    return {
        "version": _VERSION,
        "bucket": here.bucket,
        "uuid": here.bucket_uuid,
        "vbuckets": here.num_vbuckets,
        "scope": here.scope,
        "collections": list(here.collections),
        "positions": rows,
    }


def from_offset(offset: Mapping[str, Any]) -> Checkpoint:
    try:
        if offset["version"] != _VERSION:
            raise ValueError
        # Whoever sorts keys has 10 before 2.
        positions = sorted((int(vbucket), text) for vbucket, text in offset["positions"].items())
        return Checkpoint(
            tuple(_position(vbucket, text) for vbucket, text in positions),
            offset["vbuckets"],
            offset["bucket"],
            offset["uuid"],
            offset["scope"],
            tuple(offset["collections"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError("offset: expected what this source wrote, found something else") from None


def check(here: Checkpoint, asked: Checkpoint, vbuckets: Collection[int]) -> None:
    """Raise unless a stream can go on from an offset.

    asked: an empty checkpoint of what it is to read now, of these vbuckets.
    """
    if here.bucket_uuid != asked.bucket_uuid:
        raise CheckpointError(
            f"bucket {asked.bucket!r} was deleted and made anew, so no offset holds any more: start with another "
            "checkpointLocation"
        )
    if (here.scope, here.collections) != (asked.scope, asked.collections):
        raise CheckpointError(
            f"scope, collections: expected those that the query began with, {filter_of(here)}, found "
            f"{filter_of(asked)}: one was dropped and made anew, or the options changed; start with another "
            "checkpointLocation"
        )
    here.check(asked)
    if more := set(vbuckets) - here.by_vbucket().keys():
        raise CheckpointError(
            f"option vbuckets: expected none but those that the query began with, found {format_vbuckets(more)}; "
            "start with another checkpointLocation"
        )


def _text(position: StreamPosition) -> str:
    window = f"{position.snapshot_start} {position.snapshot_end}"
    return f"{position.seqno} {position.vbuuid:x} {window} {','.join(map(str, position.marks))}"


def _position(vbucket: int, text: str) -> StreamPosition:
    seqno, uuid, start, end, marks = text.split(" ")
    numbers = tuple(int(mark) for mark in marks.split(",") if mark)
    return StreamPosition(vbucket, int(uuid, 16), int(seqno), int(start), int(end), marks=numbers)
