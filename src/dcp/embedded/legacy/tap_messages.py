"""Messages of a TAP connection as frames."""

from __future__ import annotations

from typing import NamedTuple

from dcp.columns.rows import RowEncoder
from dcp.embedded.bucket import ServerNode
from dcp.embedded.legacy.ack_log import CHECKPOINT_END, CHECKPOINT_START, OPAQUE, VBUCKET_SET, TapMessage
from dcp.embedded.store import StoredItem
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.tap import TapConnectFlag, TapFlag

DIALECT = "tap"
# Each server that forwards a message lowers its TTL by one, and receivers refuse 0.
_TTL = 255
# How recently an item was used: not tracked here, so always the value of an item that was just written.
_NRU = 2
_KEYS = {CHECKPOINT_START: b"checkpoint_start", CHECKPOINT_END: b"checkpoint_end"}


class TapRow(NamedTuple):
    """Change of an item, with the fields of its message."""

    event: str
    tap_flags: int
    ttl: int
    flags: int
    expiry: int
    rev_seqno: int
    nru: int
    cas: int
    key: bytes
    value: bytes


ENCODER = RowEncoder(DIALECT, TapRow._fields)


class TapMessages:
    """Builds the messages of one connection by its connect flags.

    `may_leave_out` says whether the node honours KEYS_ONLY, which servers since 3.0 ignore.
    """

    def __init__(self, node: ServerNode, flags: TapConnectFlag, may_leave_out: bool) -> None:
        self._node = node
        self._network_order = TapConnectFlag.FIX_FLAG_BYTEORDER in flags
        self._keys_only = may_leave_out and TapConnectFlag.KEYS_ONLY in flags
        self._mutation_flags = TapFlag.NETWORK_BYTE_ORDER if self._network_order else TapFlag(0)
        self._mutation_flags |= TapFlag.NO_VALUE if self._keys_only else TapFlag(0)

    def row(self, item: StoredItem, acknowledge: bool = False) -> TapRow:
        """Return the message of a change; `acknowledge` requests an acknowledgement."""
        tap_flags, flags = int(acknowledge and TapFlag.ACK), item.flags
        if item.alive:
            tap_flags |= self._mutation_flags
        if not self._network_order:
            # Servers send the flags of items in their own order, which is little-endian (seen in 3.x).
            flags = int.from_bytes(flags.to_bytes(4, "little"), "big")
        # TAP has no message for expirations.
        event = "mutation" if item.alive else "deletion"
        # A deletion has a value if a backfill found the document expired.
        value = b"" if self._keys_only else item.value
        return TapRow(event, tap_flags, _TTL, flags, item.expiry, item.rev_seqno, _NRU, item.cas, item.key, value)

    def control(self, message: TapMessage, number: int, acknowledge: bool) -> bytes:
        """Return the frame of a control message."""
        fields = {"tap_flags": int(acknowledge and TapFlag.ACK), "ttl": _TTL} | self._fields(message)
        key = _KEYS.get(message.name, b"")
        frame = Frame(message.name, Magic.REQUEST, number, vbucket=message.vbucket, fields=fields, key=key)
        return encode(frame, DIALECT)

    def _fields(self, message: TapMessage) -> dict[str, int]:
        if message.name == OPAQUE:
            return {"code": message.number}
        if message.name == VBUCKET_SET:
            return {"state": message.number}
        fields = {"flags": 0, "expiry": 0, "checkpoint": message.number}
        if message.name == CHECKPOINT_START:
            # Servers send the highest rev_seqno of a deleted item, from which a receiver continues counting.
            items = (item for item in self._node.vbucket(message.vbucket) or () if isinstance(item, StoredItem))
            fields["rev_seqno"] = max((item.rev_seqno for item in items if not item.alive), default=0)
        return fields
