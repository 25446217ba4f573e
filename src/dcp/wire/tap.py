"""Messages of TAP, the predecessor of DCP in servers up to 4.6.

A message has an engine-specific section between extras and key. The body length includes it, the extras length does
not; its own length is the first field of the extras.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

from dcp.errors import RemoteProtocolError
from dcp.wire.body import Body, CountedRecords, Records
from dcp.wire.field import Field, reserved, u8, u16, u32, u64
from dcp.wire.layout import MAY, MUST, Layout, Message, Role, Side
from dcp.wire.memcached import MEMCACHED, VbucketState

VBUCKETS = Records("vbuckets", u16("vbucket"))
CHECKPOINTS = Records("checkpoints", u16("vbucket"), u64("checkpoint"))


class TapConnectFlag(IntFlag):
    """Flags of TAP_CONNECT. Some of them add a section to the value."""

    BACKFILL = 0x01
    DUMP = 0x02
    LIST_VBUCKETS = 0x04
    TAKEOVER_VBUCKETS = 0x08
    SUPPORT_ACK = 0x10
    KEYS_ONLY = 0x20
    CHECKPOINT = 0x40
    REGISTERED_CLIENT = 0x80
    FIX_FLAG_BYTEORDER = 0x100


@dataclass(frozen=True, slots=True)
class TapConnect:
    """Sections of the value of TAP_CONNECT; None where the flag is not set.

    backfill: Unix seconds; documents that changed since are sent first.
    vbuckets: vbuckets to stream.
    checkpoints: (vbucket, checkpoint id) pairs to resume from.
    """

    backfill: int | None = None
    vbuckets: tuple[int, ...] | None = None
    checkpoints: tuple[tuple[int, int], ...] | None = None


class TapConnectBody(Body):
    """Value of TAP_CONNECT: the sections that its flags add, lowest flag first."""

    about = "TAP connect"

    def decode(self, value: bytes, fields: Mapping[str, int | bytes]) -> TapConnect:
        flags = TapConnectFlag(int(fields.get("flags", 0)))
        position, backfill, vbuckets, checkpoints = 0, None, None, None
        if TapConnectFlag.BACKFILL in flags:
            position = 8
            if len(value) < position:
                raise RemoteProtocolError(f"TAP connect: expected a date of 8 bytes, found {len(value)}")
            backfill = int.from_bytes(value[:position], "big")
        if TapConnectFlag.LIST_VBUCKETS in flags:
            vbuckets, position = VBUCKETS.take(value, position)
        if TapConnectFlag.CHECKPOINT in flags:
            checkpoints, position = CHECKPOINTS.take(value, position)
        if position != len(value):
            raise RemoteProtocolError(f"TAP connect: flags {flags!r} take {position} bytes, found {len(value)}")
        return TapConnect(backfill, vbuckets, checkpoints)

    def encode(self, content: TapConnect) -> bytes:
        value = b"" if content.backfill is None else content.backfill.to_bytes(8, "big")
        value += b"" if content.vbuckets is None else VBUCKETS.put(content.vbuckets)
        return value + (b"" if content.checkpoints is None else CHECKPOINTS.put(content.checkpoints))


TAP_CONNECT = TapConnectBody()


class TapFlag(IntFlag):
    """Flags of a message: acknowledgement requested, no value, byte order of `flags`."""

    ACK = 0x01
    NO_VALUE = 0x02
    NETWORK_BYTE_ORDER = 0x04


class TapOpaque(IntEnum):
    """Code of an opaque message. Servers since 3.0 reuse 4 for the end of a filter change."""

    ENABLE_AUTO_NACK = 0
    INITIAL_VBUCKET_STREAM = 1
    ENABLE_CHECKPOINT_SYNC = 2
    OPEN_CHECKPOINT = 3
    START_ONLINEUPDATE = 4
    STOP_ONLINEUPDATE = 5
    REVERT_ONLINEUPDATE = 6
    CLOSE_TAP_STREAM = 7
    CLOSE_BACKFILL = 8


_SOURCE = "TAP protocol specification"
_DEPLOYED = "ep-engine 3.0 src/tapconnection.cc"

_COMMON = (u16("engine_length", measures="engine"), u16("tap_flags", TapFlag), u8("ttl"), reserved(3))
_ITEM = (*_COMMON, u32("flags"), u32("expiry"))


def _message(
    name: str,
    opcode: int,
    *sent: Layout,
    role: Role = Role.CONTROL,
    source: str = _SOURCE,
) -> Message:
    """Return a message of the server. The client answers it if its flags request an acknowledgement."""
    return Message(name, opcode, sent, Side.PRODUCER, source, (Layout(),), role=role, since="1.x", until="4.6")


def _forms(extras: tuple[Field, ...], engine: tuple[Field, ...]) -> tuple[Layout, ...]:
    """Return the forms of a change: as servers since 2.0 send it, and with an engine section of any length."""
    return (
        Layout(extras=extras, engine=engine, key=MUST, value=MAY, since="2.0"),
        Layout(extras=extras, key=MUST, value=MAY, note="the engine section, if any, stays bytes"),
    )


def _checkpoint(name: str, opcode: int, *engine: Field) -> Message:
    """Return a checkpoint message: specified with the common extras alone, deployed like a mutation with a key."""
    checkpoint = (u64("checkpoint"),)
    deployed = Layout(extras=_ITEM, engine=engine, key=MUST, content=checkpoint, note="deployed")
    # Servers before 2.0 send no engine section (ep-engine 1.8.1 ep_engine.cc, walkTapQueue).
    older = (replace(deployed, engine=(), note="deployed before 2.0"),) if engine else ()
    return _message(
        name,
        opcode,
        deployed,
        *older,
        Layout(extras=_COMMON, content=checkpoint, note="as specified"),
        source=_DEPLOYED,
    )


TAP = MEMCACHED.extend(
    "tap",
    "TAP",
    Message(
        "tap_connect",
        0x40,
        (
            Layout(extras=(u32("flags", TapConnectFlag),), key=MAY, value=MAY, body=TAP_CONNECT),
            Layout(key=MAY, note="no flags"),
        ),
        Side.CONSUMER,
        _SOURCE,
        since="1.x",
        until="4.6",
        note="answered only if it is refused",
    ),
    _message("mutation", 0x41, *_forms(_ITEM, (u64("rev_seqno"), u8("nru"))), role=Role.ROW),
    # An expired document that a backfill meets has its last value (seen in 3.1.6). memcached.c sends what the item has.
    _message("deletion", 0x42, *_forms(_COMMON, (u64("rev_seqno"),)), role=Role.ROW),
    _message("tap_flush", 0x43, Layout(extras=_COMMON)),
    _message("tap_opaque", 0x44, Layout(extras=_COMMON, engine=(u32("code", TapOpaque),))),
    _message("tap_vbucket_set", 0x45, Layout(extras=_COMMON, engine=(u32("state", VbucketState),))),
    _checkpoint("tap_checkpoint_start", 0x46, u64("rev_seqno")),
    _checkpoint("tap_checkpoint_end", 0x47),
    Message(
        "deregister_tap_client",
        0x9E,
        (Layout(key=MUST),),
        Side.CONSUMER,
        _DEPLOYED,
        (Layout(),),
        since="1.x",
        until="4.6",
    ),
    Message(
        "change_vb_filter",
        0xB0,
        (Layout(key=MUST, value=MUST, body=CountedRecords(CHECKPOINTS)),),
        Side.CONSUMER,
        _DEPLOYED,
        (Layout(),),
        since="1.x",
        until="4.6",
    ),
)
