"""Messages of the second draft of UPR, a prototype of 2013 just before DCP.

It has DCP's header and most of its messages, under other opcodes and with explicit starts and ends of streams and
snapshots. Only its two requests are answered.
"""

from __future__ import annotations

from enum import IntEnum

from dcp.wire.body import FAILOVER_LOG
from dcp.wire.field import reserved, u8, u32, u64
from dcp.wire.layout import MAY, MUST, Effect, Layout, Message, Role, Side
from dcp.wire.memcached import DOCUMENT, MEMCACHED, Status

_SOURCE = "UPR Transport Specification, second draft"


class UprStreamEnd(IntEnum):
    """Reason of the end of a stream."""

    OK = 0
    STATE_CHANGED = 1


class UprVbucketState(IntEnum):
    """State of a vbucket. PENDING and REPLICA have swapped numbers in every other dialect."""

    ACTIVE = 1
    PENDING = 2
    REPLICA = 3
    DEAD = 4


_DELETED = Layout(extras=(u64("seqno"), u64("rev_seqno")), key=MUST)


def _request(name: str, opcode: int, sent: Layout, *answer: Layout) -> Message:
    return Message(name, opcode, (sent,), Side.CONSUMER, _SOURCE, answer, since="draft")


def _stream(name: str, opcode: int, sent: Layout, role: Role = Role.CONTROL, effect: Effect = Effect.NONE) -> Message:
    return Message(name, opcode, (sent,), Side.PRODUCER, _SOURCE, role=role, effect=effect, since="draft")


UPR2 = MEMCACHED.extend(
    "upr2",
    "UPR draft 2",
    _request(
        "stream_request",
        0x50,
        Layout(
            extras=(
                u32("flags"),
                reserved(4),
                u64("start_seqno"),
                u64("end_seqno"),
                u64("vbuuid"),
                u64("high_seqno"),
            ),
            key=MAY,
        ),
        Layout(),
        Layout(status=Status.ROLLBACK, content=(u64("rollback_seqno"),)),
        Layout(status=Status.ROLLBACK, extras=(u64("rollback_seqno_in_extras"),), note="as the draft draws it"),
    ),
    _request("get_failover_log", 0x51, Layout(), Layout(value=MAY, body=FAILOVER_LOG)),
    _stream("stream_start", 0x52, Layout()),
    _stream("stream_end", 0x53, Layout(extras=(u32("reason", UprStreamEnd),)), effect=Effect.STREAM_END),
    _stream("snapshot_start", 0x54, Layout(), effect=Effect.SNAPSHOT),
    _stream("snapshot_end", 0x55, Layout()),
    _stream("mutation", 0x56, Layout(extras=DOCUMENT, key=MUST, value=MAY), Role.ROW),
    _stream("deletion", 0x57, _DELETED, Role.ROW),
    _stream("expiration", 0x58, _DELETED, Role.ROW),
    _stream("stream_flush", 0x59, Layout()),
    _stream("set_vbucket_state", 0x5A, Layout(extras=(u8("state", UprVbucketState),))),
)
