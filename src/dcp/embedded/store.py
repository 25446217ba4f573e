"""What a node keeps of one vbucket: the latest version of every key, in the order of seqnos.

A vbucket is not for two threads at once: whoever holds the cluster's lock may use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dcp.position import FailoverLog
from dcp.wire.memcached import VbucketState

# How many writes can be taken back: those that a failover can lose.
JOURNAL = 256
# How many items a checkpoint in memory has at most. What is older comes from disk.
CHECKPOINT = 10_000

Identity = tuple[object, ...]


class StoredItem(NamedTuple):
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
    def identity(self) -> Identity:
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
    def identity(self) -> Identity:
        """A drop replaces the creation."""
        return "system", self.scope_id, self.collection_id


AnyItem = StoredItem | SystemItem


class VbucketStore:
    """The items of a vbucket, its histories, and how far it is."""

    def __init__(self, number: int, state: VbucketState, log: FailoverLog) -> None:
        self.number = number
        self.state = state
        self.log = log
        self.high_seqno = 0
        self.persisted_seqno = 0
        # Whether what is written gets to disk at once.
        self.persists = True
        self.purge_seqno = 0
        # Where the items that are still in memory begin, and the number of the checkpoint that they make.
        self.checkpoint_start = 1
        self.checkpoint = 1
        # Every datatype bit that any item ever had.
        self.datatypes = 0
        # Whether anything but documents of the default collection was ever in it.
        self.mixed = False
        # The last seqno of each collection, whatever was purged since.
        self.highs: dict[int, int] = {}
        # Every version ever written, where a bucket retains them.
        self.history: list[AnyItem] | None = None
        # By identity, but in the order of seqnos: what is written again moves to the end.
        self._items: dict[Identity, AnyItem] = {}
        # The last writes, and what each of them replaced.
        self._journal: deque[tuple[StoredItem, AnyItem | None]] = deque(maxlen=JOURNAL)

    def __len__(self) -> int:
        """How many items there are, tombstones among them."""
        return len(self._items)

    def __iter__(self) -> Iterator[AnyItem]:
        return iter(self._items.values())

    def __reversed__(self) -> Iterator[AnyItem]:
        return reversed(self._items.values())

    def put(self, item: AnyItem) -> None:
        """Add an item, which must have a seqno of its own above all others; it replaces that of the same identity."""
        seqno = item.seqno
        if seqno <= self.high_seqno:
            raise ValueError(f"vbucket {self.number}: expected a seqno above {self.high_seqno}, found {seqno}")
        identity = item.identity
        replaced = self._items.pop(identity, None)
        self._items[identity] = item
        self.high_seqno = seqno
        if self.persists:
            self.persisted_seqno = seqno
        if seqno - self.checkpoint_start >= CHECKPOINT or self._retains(replaced):
            self.checkpoint_start = seqno
            self.checkpoint += 1
        if isinstance(item, StoredItem):
            self._journal.append((item, replaced))
            self.datatypes |= item.datatype
            self.highs[item.collection_id] = seqno
        else:
            # What the whole bucket agreed on is not for one node to lose.
            self._journal.clear()
        self.mixed = self.mixed or not isinstance(item, StoredItem) or item.collection_id != 0
        if self.history is not None:
            self.history.append(item)

    def _retains(self, replaced: AnyItem | None) -> bool:
        """Whether both versions are kept: a checkpoint has each key once, so the newer one begins another."""
        return self.history is not None and replaced is not None and replaced.seqno >= self.checkpoint_start

    def extend(self, items: Sequence[StoredItem]) -> None:
        """`put` for many items at once, which must be in order. They are on disk afterwards."""
        ours, datatypes = self._items, self.datatypes
        early = max(0, len(items) - JOURNAL)
        for item in items[:early]:
            identity = (item[10], item[2])
            if identity in ours:
                del ours[identity]
            ours[identity] = item
            datatypes |= item[9]
            if item[10]:
                self.mixed = True
            self.highs[item[10]] = item[1]
        self.datatypes = datatypes
        if self.history is not None:
            self.history.extend(items[:early])
        for item in items[early:]:
            self.put(item)
        self.leave_memory()

    def persist(self, at_once: bool) -> None:
        """Whether what is written gets to disk at once from now on; if so, what is in memory only does too."""
        self.persists = at_once
        if at_once:
            self.persisted_seqno = self.high_seqno

    def leave_memory(self) -> None:
        """What there is comes from disk from now on, as after a restart."""
        self.checkpoint_start = self.high_seqno + 1
        self.checkpoint += 1

    def get(self, collection_id: int, key: bytes) -> StoredItem | None:
        """The latest version of a key, which may be a tombstone."""
        found = self._items.get((collection_id, key))
        return found if isinstance(found, StoredItem) else None

    def high_seqno_of(self, collection_id: int) -> int | None:
        """That of the latest change of a collection; None if the vbucket has never heard of it."""
        for item in reversed(self):
            if item.collection_id == collection_id:
                return item.seqno
        return None if collection_id else 0

    def since(self, seqno: int) -> list[AnyItem]:
        """The items above `seqno`, in order; each key once."""
        if seqno <= 0:
            return list(self._items.values())
        found: list[AnyItem] = []
        for item in reversed(self._items.values()):
            if item.seqno <= seqno:
                break
            found.append(item)
        found.reverse()
        return found

    def purge(self, before: int | None = None) -> int:
        """Forget the tombstones (made before a time); says how many. The last item stays, dead or not."""
        gone = [
            (identity, item.seqno)
            for identity, item in self._items.items()
            if isinstance(item, StoredItem)
            and not item.alive
            and item.seqno < self.high_seqno
            and (before is None or item.delete_time < before)
        ]
        for identity, seqno in gone:
            del self._items[identity]
            self.purge_seqno = max(self.purge_seqno, seqno)
        if gone:
            self._journal.clear()
        return len(gone)

    def drop(self, collection_id: int) -> None:
        """Forget the items of a collection that is no more, for good."""
        self._journal.clear()
        for identity in [identity for identity in self._items if identity[0] == collection_id]:
            del self._items[identity]

    def take_back(self, count: int) -> None:
        """Undo the last writes, as if they had never come; at most as many as the journal has."""
        for _ in range(min(count, len(self._journal))):
            lost, replaced = self._journal.pop()
            del self._items[lost.identity]
            if replaced is not None:
                self._items[lost.identity] = replaced
            self.high_seqno = lost.seqno - 1
            if self.history:
                self.history.pop()
        self._items = dict(sorted(self._items.items(), key=lambda pair: pair[1].seqno))
        self.highs = {collection: min(seqno, self.high_seqno) for collection, seqno in self.highs.items()}
        self.persisted_seqno = min(self.persisted_seqno, self.high_seqno)
        self.checkpoint_start = min(self.checkpoint_start, self.high_seqno + 1)

    @property
    def last_writes(self) -> list[StoredItem]:
        """Those that can be taken back, the last one at the end."""
        return [item for item, _ in self._journal]

    @property
    def last_cas(self) -> int:
        """The version of the document that was written last."""
        return next((item.cas for item in reversed(self) if isinstance(item, StoredItem)), 0)

    def copy(self, state: VbucketState) -> VbucketStore:
        """The same items in another place: what a replica that has everything holds."""
        other = VbucketStore(self.number, state, self.log)
        other._items, other._journal = dict(self._items), self._journal.copy()
        other.history = None if self.history is None else list(self.history)
        other.high_seqno, other.persisted_seqno = self.high_seqno, self.persisted_seqno
        other.purge_seqno, other.datatypes = self.purge_seqno, self.datatypes
        other.checkpoint_start, other.checkpoint = self.checkpoint_start, self.checkpoint
        other.mixed = self.mixed
        other.highs = dict(self.highs)
        return other
