"""Messages of the first draft of UPR, which was never deployed.

Byte 5 of the header is a type (a sub-opcode) instead of a datatype. Bytes 6 and 7 are the vbucket in responses, too:
there is no status. Its five opcodes are those of SET to INCREMENT in other dialects.
"""

from __future__ import annotations

from dataclasses import replace

from dcp.wire.body import FAILOVER_LOG
from dcp.wire.field import u64
from dcp.wire.layout import MAY, MUST, Effect, Kind, Layout, Message, Role, Side
from dcp.wire.memcached import DOCUMENT, MEMCACHED

_SOURCE = "UPR Transport Specification, first draft"
_CHANGED = Layout(extras=DOCUMENT, key=MUST)


def _request(name: str, type: int, *sent: Layout) -> Message:
    return Message(name, 1, sent, Side.CONSUMER, _SOURCE, type=type, since="draft")


def _stream(
    name: str,
    opcode: int,
    type: int,
    *sent: Layout,
    role: Role = Role.CONTROL,
    effect: Effect = Effect.NONE,
    note: str = "",
) -> Message:
    return Message(
        name,
        opcode,
        sent or (Layout(),),
        Side.PRODUCER,
        _SOURCE,
        kind=Kind.RESPONSE,
        type=type,
        role=role,
        effect=effect,
        since="draft",
        note=note,
    )


UPR1 = MEMCACHED.extend(
    "upr1",
    "UPR draft 1",
    _request(
        "stream_request",
        1,
        Layout(extras=(u64("start_seqno"), u64("end_seqno"), u64("vbuuid"), u64("high_seqno")), key=MAY),
    ),
    _request("failover_log_request", 2, Layout()),
    _stream("stream_ok", 2, 1),
    _stream("not_my_vbucket", 2, 2, note="differs from a failover log by its empty body"),
    _stream("failover_log", 2, 2, Layout(value=MUST, body=FAILOVER_LOG)),
    _stream(
        "rollback",
        2,
        3,
        Layout(content=(u64("rollback_seqno"),)),
        Layout(extras=(u64("rollback_seqno_in_extras"),), note="the draft can also be read so"),
    ),
    _stream("stream_start", 3, 0),
    _stream("snapshot_start", 4, 1, effect=Effect.SNAPSHOT),
    _stream("snapshot_end", 4, 2),
    _stream("mutation", 4, 3, replace(_CHANGED, value=MAY), role=Role.ROW),
    _stream("deletion", 4, 4, _CHANGED, role=Role.ROW),
    _stream("expiration", 4, 5, _CHANGED, role=Role.ROW),
    _stream("stream_flush", 4, 6),
    _stream("stream_end_ok", 5, 1, effect=Effect.STREAM_END),
    _stream("stream_end_state_changed", 5, 2, effect=Effect.STREAM_END),
)
