"""The numbers of a TAP connection's messages, and the messages that are not acknowledged yet."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import NamedTuple

from dcp.embedded.store import StoredItem

OPAQUE, VBUCKET_SET = "tap_opaque", "tap_vbucket_set"
CHECKPOINT_START, CHECKPOINT_END = "tap_checkpoint_start", "tap_checkpoint_end"

# Every message whose number is a multiple of this asks for an acknowledgement.
INTERVAL = 1000
# As many messages go unacknowledged at most.
WINDOW = 10 * INTERVAL


class Sent(NamedTuple):
    """A message: a change of a document, or what else the `number` says: a code, a state, a checkpoint."""

    name: str
    vbucket: int
    number: int = 0
    item: StoredItem | None = None


class AckLog:
    """Keeps what was sent until the client has acknowledged it, if it said that it will.

    A client that does not acknowledge gets the same number again and again.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        # How many opaque messages, and how many of checkpoints, are not acknowledged.
        self.opaques = 0
        self.checkpoints = 0
        # How many changes of each vbucket are not.
        self.changes: Counter[int] = Counter()
        self._next = 1
        self._sent: OrderedDict[int, Sent] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def room(self) -> int:
        """How many messages may be sent before one is acknowledged."""
        return WINDOW - len(self._sent)

    def add(self, sent: Sent) -> int:
        """The number of a message that is about to be sent."""
        if sent.name in (OPAQUE, VBUCKET_SET):
            # As servers count: these take two numbers.
            self._step()
        number = self._next
        if self.wanted:
            self._sent[number] = sent
            self._count(sent, 1)
            self._step()
        return number

    def settle(self, number: int) -> Sent | None:
        """This message and all before it were received; what it was, or None if no such message waits."""
        found = self._sent.get(number)
        while found is not None and number in self._sent:
            self._count(self._sent.popitem(last=False)[1], -1)
        return found

    def oldest(self) -> dict[int, int]:
        """The lowest seqno that is not acknowledged, for each vbucket that has one."""
        lowest: dict[int, int] = {}
        for sent in self._sent.values():
            if sent.item is not None:
                lowest[sent.vbucket] = min(sent.item.seqno, lowest.get(sent.vbucket, sent.item.seqno))
        return lowest

    def _count(self, sent: Sent, step: int) -> None:
        self.changes[sent.vbucket] += step * (sent.item is not None)
        self.opaques += step * (sent.name == OPAQUE)
        self.checkpoints += step * (sent.name in (CHECKPOINT_START, CHECKPOINT_END))

    def _step(self) -> None:
        self._next = self._next % 0xFFFF_FFFF + 1
