"""What a TAP connection reads of vbuckets: what exists, and where it is in what changes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from dcp.embedded.bucket import ServerNode
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.embedded.view import View

# Plain values without attributes: nothing newer was there.
_VIEW = View()
# The clock of a CAS counts nanoseconds, but for its lowest bits.
_NANOSECONDS, _LOGICAL_BITS = 10**9, 16


@dataclass
class Run:
    """Items of a vbucket that are being sent, in order, and which of them is next."""

    vbucket: int
    items: list[StoredItem]
    next: int = 0

    @property
    def done(self) -> bool:
        return self.next == len(self.items)


def items_of(vbucket: VbucketStore, after: int, until: int) -> list[StoredItem]:
    """The documents above one seqno and up to another, as they are sent."""
    rows = vbucket.since(after)
    found = [item for item in rows if isinstance(item, StoredItem) and not item.collection_id and item.seqno <= until]
    return [item for item in _VIEW.show([*found], vbucket.datatypes) if isinstance(item, StoredItem)]


class Position(NamedTuple):
    """How far a client is in a vbucket, and whether it has all that existed when it first came."""

    seqno: int
    backfilled: bool


@dataclass
class Cursor:
    """Where a connection is in the changes of a vbucket."""

    seqno: int
    # The checkpoint that was announced, if any.
    checkpoint: int = 0
    run: Run = field(default_factory=lambda: Run(0, []))

    def advance(self, vbucket: VbucketStore, until: int) -> None:
        """Read the changes up to a seqno."""
        self.run = Run(vbucket.number, items_of(vbucket, self.seqno, until))
        self.seqno = until


class Backfill:
    """What exists in some vbuckets, one after the other: only what has changed since a date, in Unix seconds."""

    def __init__(self, node: ServerNode, date: int) -> None:
        self._node = node
        self._oldest = date * _NANOSECONDS >> _LOGICAL_BITS
        self._waiting: deque[tuple[int, int]] = deque()
        self._run = Run(0, [])
        # The vbuckets whose backfill is not over.
        self.vbuckets: list[int] = []

    def add(self, vbucket: int, after: int) -> None:
        """One vbucket more, from above a seqno on."""
        self.vbuckets.append(vbucket)
        self._waiting.append((vbucket, after))

    def drop(self, vbucket: int) -> None:
        """This vbucket is not wanted any more."""
        self.vbuckets = [number for number in self.vbuckets if number != vbucket]
        self._waiting = deque(pair for pair in self._waiting if pair[0] != vbucket)
        if self._run.vbucket == vbucket:
            self._run = Run(0, [])

    def run(self) -> Run | None:
        """What is to be sent next, if anything is left."""
        while self._run.done and self._waiting:
            number, after = self._waiting.popleft()
            vbucket = self._node.vbucket(number)
            if vbucket is not None:
                items = items_of(vbucket, after, vbucket.high_seqno)
                self._run = Run(number, [item for item in items if item.cas >> _LOGICAL_BITS >= self._oldest])
        return None if self._run.done else self._run
