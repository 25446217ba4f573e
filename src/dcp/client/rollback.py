"""A rollback as a row: what no producer sends, in the columns of what it does."""

from __future__ import annotations

from collections.abc import Callable

from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.wire.dcp import DCP
from dcp.wire.field import u64
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Layout, Magic, Message, Role, Side

EVENT = "rollback"

# The protocol with one message more, which only we send, and to ourselves. No producer has this opcode.
WITH_ROLLBACK = DCP.extend(
    "dcp with rollback",
    "DCP, and rollbacks as messages",
    Message(EVENT, 0x68, (Layout(extras=(u64("seqno"),)),), Side.PRODUCER, "this module", role=Role.ROW),
)


def rollback_rows(decoder: Decoder) -> Callable[[int, int, int], Batch]:
    """What makes a batch of one row of vbucket, from and to. The decoder is one of `WITH_ROLLBACK`.

    `seqno` is where to go back to; everything above it, up to `snapshot_end`, is undone.
    """

    def make(vbucket: int, seqno: int, rollback_seqno: int) -> Batch:
        window = {"snapshot_start": rollback_seqno, "snapshot_end": seqno, "flags": 0}
        for name, fields in (("snapshot_marker", window), (EVENT, {"seqno": rollback_seqno})):
            frame = Frame(name, Magic.REQUEST, vbucket=vbucket, fields=fields)
            decoder.feed(encode(frame, WITH_ROLLBACK))
        return decoder.take()

    return make
