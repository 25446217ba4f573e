"""A rollback as a row, and deletions that are lost: what no producer sends, in the columns of what it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.wire.field import u64
from dcp.wire.frame import Frame, dialect_of, encode
from dcp.wire.layout import Dialect, Layout, Magic, Message, Role, Side

EVENT, PURGED = "rollback", "purged"


@cache
def with_rollback(dialect: str) -> Dialect:
    """A dialect with two messages more, which only we send, and to ourselves. No producer has these opcodes."""
    messages = (
        Message(name, opcode, (Layout(extras=(u64("seqno"),)),), Side.PRODUCER, "this module", role=Role.ROW)
        for name, opcode in ((EVENT, 0x68), (PURGED, 0x69))
    )
    return dialect_of(dialect).extend(f"{dialect} with rollback", "with rollbacks as messages", *messages)


def rollback_rows(decoder: Decoder) -> Callable[[int, int, int, str], Batch]:
    """What makes a batch of one row of vbucket, from, to, and event. The decoder is one of `with_rollback`.

    Of a rollback, `seqno` is where to go back to; everything above it, up to `snapshot_end`, is undone. Of
    purged deletions, some above `seqno`, up to `snapshot_end`, may never come. Dialects whose snapshots
    have no numbers leave that null.
    """
    dialect = decoder._dialect

    def make(vbucket: int, end: int, seqno: int, event: str) -> Batch:
        window = {"snapshot_start": seqno, "snapshot_end": end, "flags": 0}
        for name, fields in (("snapshot_marker", window), (event, {"seqno": seqno})):
            if name in dialect.by_name:
                decoder.feed(encode(Frame(name, Magic.REQUEST, vbucket=vbucket, fields=fields), dialect))
        return decoder.take()

    return make
