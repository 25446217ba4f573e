"""Offsets of a stream: checkpoints as the JSON that Spark keeps. Equal checkpoints give equal text."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dcp.checkpoint import Checkpoint, filter_of
from dcp.cluster_map import format_vbuckets
from dcp.errors import CheckpointError
from dcp.position import StreamPosition

_VERSION = 1


def to_offset(here: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as an offset of Spark."""
    # 64-bit values are text: a JSON parser that reads numbers as doubles would round them above 2^53.
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
    """Return the checkpoint of an offset. Raises CheckpointError unless this source wrote it."""
    try:
        if offset["version"] != _VERSION:
            raise ValueError
        # Spark may return the keys sorted as text, where "10" is before "2".
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
        raise CheckpointError("offset: expected one that this source wrote, found something else") from None


def check_resumable(here: Checkpoint, identity: Checkpoint, vbuckets: Collection[int]) -> None:
    """Raise CheckpointError unless a stream can resume from an offset.

    identity: a checkpoint without positions, of the bucket and collections that the stream reads now.
    vbuckets: those that it reads now.
    """
    if here.bucket_uuid != identity.bucket_uuid:
        raise CheckpointError(
            f"bucket {identity.bucket!r} was deleted and recreated, so no offset is valid any more: start with another "
            "checkpointLocation"
        )
    if (here.scope, here.collections) != (identity.scope, identity.collections):
        raise CheckpointError(
            f"scope, collections: expected those that the query started with, {filter_of(here)}, found "
            f"{filter_of(identity)}: one was dropped and recreated, or the options changed; start with another "
            "checkpointLocation"
        )
    here.check(identity)
    if more := set(vbuckets) - here.by_vbucket().keys():
        raise CheckpointError(
            f"option vbuckets: expected only those that the query started with, found {format_vbuckets(more)}; start "
            "with another checkpointLocation"
        )


def _text(position: StreamPosition) -> str:
    """Return seqno, uuid in hexadecimal, snapshot window and marks, separated by spaces."""
    window = f"{position.snapshot_start} {position.snapshot_end}"
    return f"{position.seqno} {position.vbuuid:x} {window} {','.join(map(str, position.marks))}"


def _position(vbucket: int, text: str) -> StreamPosition:
    """Return the position that `_text` wrote."""
    seqno, uuid, start, end, marks = text.split(" ")
    numbers = tuple(int(mark) for mark in marks.split(",") if mark)
    return StreamPosition(vbucket, int(uuid, 16), int(seqno), int(start), int(end), marks=numbers)
