"""Message numbers of a TAP connection, and its messages that are not acknowledged yet."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import NamedTuple

from dcp.embedded.store import StoredItem

OPAQUE, VBUCKET_SET = "tap_opaque", "tap_vbucket_set"
CHECKPOINT_START, CHECKPOINT_END = "tap_checkpoint_start", "tap_checkpoint_end"

# Each message whose number is a multiple of this requests an acknowledgement.
INTERVAL = 1000
# Largest number of messages in flight.
WINDOW = 10 * INTERVAL


class TapMessage(NamedTuple):
    """One message: the change of an item, or a control message with a number: its code, state or checkpoint."""

    name: str
    vbucket: int
    number: int = 0
    item: StoredItem | None = None


class AckLog:
    """Messages in flight, if the client supports acknowledgements.

    Without acknowledgements nothing is kept, and all messages have the same number.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        # Numbers of opaque messages, and of messages about checkpoints, in flight.
        self.opaques = 0
        self.checkpoints = 0
        # Number of changes in flight, by vbucket.
        self.changes: Counter[int] = Counter()
        self._next = 1
        self._in_flight: OrderedDict[int, TapMessage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def room(self) -> int:
        """Number of messages that may be sent before one is acknowledged."""
        return WINDOW - len(self._in_flight)

    def add(self, message: TapMessage) -> int:
        """Return the number of a message that is about to be sent, and keep the message."""
        if message.name in (OPAQUE, VBUCKET_SET):
            # Servers take two numbers for each of these (seen in 3.x).
            self._step()
        number = self._next
        if self.enabled:
            self._in_flight[number] = message
            self._count(message, 1)
            self._step()
        return number

    def settle(self, number: int) -> TapMessage | None:
        """Remove a message and all before it. Return the message, or None if no such message is in flight."""
        found = self._in_flight.get(number)
        while found is not None and number in self._in_flight:
            self._count(self._in_flight.popitem(last=False)[1], -1)
        return found

    def oldest(self) -> dict[int, int]:
        """Return the lowest seqno in flight of each vbucket that has one."""
        lowest: dict[int, int] = {}
        for message in self._in_flight.values():
            if message.item is not None:
                seqno = message.item.seqno
                lowest[message.vbucket] = min(seqno, lowest.get(message.vbucket, seqno))
        return lowest

    def _count(self, message: TapMessage, step: int) -> None:
        self.changes[message.vbucket] += step * (message.item is not None)
        self.opaques += step * (message.name == OPAQUE)
        self.checkpoints += step * (message.name in (CHECKPOINT_START, CHECKPOINT_END))

    def _step(self) -> None:
        # Numbers are the opaques of messages: 32 bits, and 0 is not used.
        self._next = self._next % 0xFFFF_FFFF + 1
