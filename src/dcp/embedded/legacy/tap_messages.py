"""How the messages of a TAP connection look."""

from __future__ import annotations

from typing import NamedTuple

from dcp.columns.rows import RowEncoder
from dcp.embedded.bucket import ServerNode
from dcp.embedded.legacy.ack_log import CHECKPOINT_END, CHECKPOINT_START, OPAQUE, VBUCKET_SET, Sent
from dcp.embedded.store import StoredItem
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.tap import TapConnectFlag, TapFlag

DIALECT = "tap"
# It goes down by one wherever a message is forwarded, and is never 0.
_TTL = 255
# How recently an item was used, which nobody keeps: that of one just written.
_NRU = 2
_KEYS = {CHECKPOINT_START: b"checkpoint_start", CHECKPOINT_END: b"checkpoint_end"}


class Row(NamedTuple):
    """A change as it is sent."""

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


ENCODER = RowEncoder(DIALECT, Row._fields)


class Messages:
    """may_leave_out: values are left out for a client that would like that."""

    def __init__(self, node: ServerNode, flags: TapConnectFlag, may_leave_out: bool) -> None:
        self._node = node
        self._in_order = TapConnectFlag.FIX_FLAG_BYTEORDER in flags
        self._keys_only = may_leave_out and TapConnectFlag.KEYS_ONLY in flags
        self._mutation_flags = TapFlag.NETWORK_BYTE_ORDER if self._in_order else TapFlag(0)
        self._mutation_flags |= TapFlag.NO_VALUE if self._keys_only else TapFlag(0)

    def row(self, item: StoredItem, asks: bool = False) -> Row:
        """asks: for an acknowledgement."""
        tap_flags, flags = int(asks and TapFlag.ACK), item.flags
        if item.alive:
            tap_flags |= self._mutation_flags
        if not self._in_order:
            # As the hosts of all servers had it.
            flags = int.from_bytes(flags.to_bytes(4, "little"), "big")
        # Nothing is said of expirations.
        event = "mutation" if item.alive else "deletion"
        value = b"" if self._keys_only else item.value
        return Row(event, tap_flags, _TTL, flags, item.expiry, item.rev_seqno, _NRU, item.cas, item.key, value)

    def control(self, sent: Sent, number: int, asks: bool) -> bytes:
        fields = {"tap_flags": int(asks and TapFlag.ACK), "ttl": _TTL} | self._fields(sent)
        key = _KEYS.get(sent.name, b"")
        frame = Frame(sent.name, Magic.REQUEST, number, vbucket=sent.vbucket, fields=fields, key=key)
        return encode(frame, DIALECT)

    def _fields(self, sent: Sent) -> dict[str, int]:
        if sent.name == OPAQUE:
            return {"code": sent.number}
        if sent.name == VBUCKET_SET:
            return {"state": sent.number}
        fields = {"flags": 0, "expiry": 0, "checkpoint": sent.number}
        if sent.name == CHECKPOINT_START:
            items = (item for item in self._node.vbucket(sent.vbucket) or () if isinstance(item, StoredItem))
            fields["rev_seqno"] = max((item.rev_seqno for item in items if not item.alive), default=0)
        return fields
