"""Reading of vbuckets for TAP and UPR: existing items (backfill), and the position among later changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from dcp.embedded.bucket import ServerNode
from dcp.embedded.item_view import visible_items
from dcp.embedded.negotiated import Negotiated
from dcp.embedded.store import StoredItem, VbucketStore

# The old dialects negotiate nothing: values are neither compressed nor do they have xattrs.
_NOTHING = Negotiated()
# A CAS is a time in nanoseconds whose lowest bits are a counter.
_NANOSECONDS, _LOGICAL_BITS = 10**9, 16


@dataclass
class ItemRun:
    """Items of a vbucket that are being sent, in order, and the index of the next one."""

    vbucket: int
    items: list[StoredItem]
    next: int = 0

    @property
    def done(self) -> bool:
        return self.next == len(self.items)


def items_of(vbucket: VbucketStore, after: int, until: int) -> list[StoredItem]:
    """Return the documents with seqnos above `after` and up to `until`, as they are sent."""
    rows = vbucket.since(after)
    found = [item for item in rows if isinstance(item, StoredItem) and not item.collection_id and item.seqno <= until]
    visible = visible_items([*found], vbucket.datatypes, _NOTHING)
    return [item for item in visible if isinstance(item, StoredItem)]


def _without_expired(items: list[StoredItem], now: int) -> list[StoredItem]:
    """Return the items with deletions in place of expired documents: with their values, seen in 3.1.6."""
    return [item._replace(event="deletion") if item.alive and 0 < item.expiry <= now else item for item in items]


class TapPosition(NamedTuple):
    """Seqno that a client has reached in a vbucket, and whether its backfill is complete."""

    seqno: int
    backfilled: bool


@dataclass
class Cursor:
    """Position of a connection among the changes of a vbucket."""

    seqno: int
    # Checkpoint that was announced; 0 for none.
    checkpoint: int = 0
    run: ItemRun = field(default_factory=lambda: ItemRun(0, []))

    def advance(self, vbucket: VbucketStore, until: int) -> None:
        """Read the changes up to a seqno."""
        self.run = ItemRun(vbucket.number, items_of(vbucket, self.seqno, until))
        self.seqno = until


class Backfill:
    """Existing items of some vbuckets as they are on disk, one vbucket after the other.

    Items that are not persisted yet are left to the changes that follow, as 3.1.6 does. `date` (Unix seconds) leaves
    older items out. `now` returns Unix seconds: documents that have expired by then are sent as deletions.
    """

    def __init__(self, node: ServerNode, date: int, now: Callable[[], int]) -> None:
        self._node = node
        self._now = now
        # Compared without the logical bits.
        self._oldest = date * _NANOSECONDS >> _LOGICAL_BITS
        # Vbuckets that were not read yet, with the seqno after which to begin.
        self._waiting: deque[tuple[int, int]] = deque()
        self._run = ItemRun(0, [])
        # Vbuckets whose backfill is not complete.
        self.vbuckets: list[int] = []

    def add(self, vbucket: int, after: int) -> None:
        """Add a vbucket, from above a seqno on."""
        self.vbuckets.append(vbucket)
        self._waiting.append((vbucket, after))

    def drop(self, vbucket: int) -> None:
        """Remove a vbucket, and what is left of its items."""
        self.vbuckets = [number for number in self.vbuckets if number != vbucket]
        self._waiting = deque(pair for pair in self._waiting if pair[0] != vbucket)
        if self._run.vbucket == vbucket:
            self._run = ItemRun(0, [])

    def run(self) -> ItemRun | None:
        """Return the items to send next; None if nothing is left."""
        while self._run.done and self._waiting:
            number, after = self._waiting.popleft()
            vbucket = self._node.vbucket(number)
            if vbucket is not None:
                items = items_of(vbucket, after, vbucket.persisted_seqno)
                recent = [item for item in items if item.cas >> _LOGICAL_BITS >= self._oldest]
                self._run = ItemRun(number, _without_expired(recent, self._now()))
        return None if self._run.done else self._run
