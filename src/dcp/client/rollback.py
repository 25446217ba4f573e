"""A rollback as a row: what no producer sends, in the columns of what it does."""

from __future__ import annotations

from collections.abc import Callable

from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.wire.field import u64
from dcp.wire.frame import Frame, dialect_of, encode
from dcp.wire.layout import Dialect, Layout, Magic, Message, Role, Side

EVENT = "rollback"


def with_rollback(dialect: str) -> Dialect:
    """A dialect with one message more, which only we send, and to ourselves. No producer has this opcode."""
    message = Message(EVENT, 0x68, (Layout(extras=(u64("seqno"),)),), Side.PRODUCER, "this module", role=Role.ROW)
    return dialect_of(dialect).extend(f"{dialect} with rollback", "with rollbacks as messages", message)


def rollback_rows(decoder: Decoder) -> Callable[[int, int, int], Batch]:
    """What makes a batch of one row of vbucket, from and to. The decoder is one of `with_rollback`.

    `seqno` is where to go back to; everything above it, up to `snapshot_end`, is undone. Dialects whose snapshots
    have no numbers leave that null.
    """
    dialect = decoder._dialect

    def make(vbucket: int, seqno: int, rollback_seqno: int) -> Batch:
        window = {"snapshot_start": rollback_seqno, "snapshot_end": seqno, "flags": 0}
        for name, fields in (("snapshot_marker", window), (EVENT, {"seqno": rollback_seqno})):
            if name in dialect.by_name:
                decoder.feed(encode(Frame(name, Magic.REQUEST, vbucket=vbucket, fields=fields), dialect))
        return decoder.take()

    return make
