"""What a node keeps of one vbucket: the latest version of every key, in the order of seqnos.

A vbucket is not for two threads at once: whoever holds the cluster's lock may use it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dcp.position import FailoverLog
from dcp.wire.memcached import VbucketState

_FEWEST_STALE = 1024


class Item(NamedTuple):
    """One version of a document, or its tombstone. `value` has the xattrs in front, as `datatype` says."""

    event: str
    seqno: int
    key: bytes
    value: bytes = b""
    rev_seqno: int = 1
    cas: int = 0
    flags: int = 0
    expiry: int = 0
    delete_time: int = 0
    datatype: int = 0
    collection_id: int = 0

    @property
    def identity(self) -> tuple[int, bytes]:
        """What only one item of a vbucket has at a time."""
        return self.collection_id, self.key

    @property
    def alive(self) -> bool:
        return self.event == "mutation"


class SystemItem(NamedTuple):
    """A change of the manifest, which has its place among the changes of documents."""

    seqno: int
    event_id: int
    key: bytes
    manifest_uid: int
    scope_id: int
    collection_id: int | None = None
    max_ttl: int | None = None

    @property
    def identity(self) -> tuple[str, int, int | None]:
        """A drop replaces the creation."""
        return "system", self.scope_id, self.collection_id


AnyItem = Item | SystemItem


class Vbucket:
    """The items of a vbucket, its histories, and how far it is."""

    def __init__(self, number: int, state: VbucketState, log: FailoverLog) -> None:
        self.number = number
        self.state = state
        self.log = log
        self.high_seqno = 0
        self.persisted_seqno = 0
        self.purge_seqno = 0
        self.max_cas = 0
        self._items: list[AnyItem | None] = []
        self._seqnos = array("Q")
        self._places: dict[tuple[object, ...], int] = {}
        self._stale = 0

    def __len__(self) -> int:
        """How many items there are, tombstones among them."""
        return len(self._items) - self._stale

    def __iter__(self) -> Iterator[AnyItem]:
        return (item for item in self._items if item is not None)

    def put(self, item: AnyItem) -> None:
        """Add an item, which must have a seqno of its own above all others; it replaces that of the same identity."""
        if item.seqno <= self.high_seqno:
            raise ValueError(f"vbucket {self.number}: expected a seqno above {self.high_seqno}, found {item.seqno}")
        stale = self._places.get(item.identity)
        if stale is not None:
            self._items[stale] = None
            self._stale += 1
        self._places[item.identity] = len(self._items)
        self._items.append(item)
        self._seqnos.append(item.seqno)
        self.high_seqno = item.seqno
        if isinstance(item, Item):
            self.max_cas = max(self.max_cas, item.cas)
        if self._stale > max(_FEWEST_STALE, len(self._items) // 2):
            self._rebuild(self)

    def get(self, collection_id: int, key: bytes) -> Item | None:
        """The latest version of a key, which may be a tombstone."""
        place = self._places.get((collection_id, key))
        found = None if place is None else self._items[place]
        return found if isinstance(found, Item) else None

    def since(self, seqno: int, until: int | None = None) -> list[AnyItem]:
        """The items above `seqno` and not above `until`, in order; each key once."""
        first = bisect_right(self._seqnos, seqno)
        last = len(self._seqnos) if until is None else bisect_right(self._seqnos, until)
        return [item for item in self._items[first:last] if item is not None]

    def purge(self, before: int | None = None) -> int:
        """Forget the tombstones (made before a time); says how many. The last item stays, dead or not."""
        gone = {
            item.seqno
            for item in self
            if isinstance(item, Item)
            and not item.alive
            and item.seqno < self.high_seqno
            and (before is None or item.delete_time < before)
        }
        if gone:
            self.purge_seqno = max(self.purge_seqno, *gone)
            self._rebuild(item for item in self if item.seqno not in gone)
        return len(gone)

    def copy(self, number: int, state: VbucketState) -> Vbucket:
        """The same items in another place: what a replica that has everything holds."""
        other = Vbucket(number, state, self.log)
        other._rebuild(self)
        other.high_seqno, other.persisted_seqno = self.high_seqno, self.persisted_seqno
        other.purge_seqno, other.max_cas = self.purge_seqno, self.max_cas
        return other

    def _rebuild(self, items: Iterable[AnyItem]) -> None:
        kept = list(items)
        self._items = list(kept)
        self._seqnos = array("Q", (item.seqno for item in kept))
        self._places = {item.identity: place for place, item in enumerate(kept)}
        self._stale = 0
