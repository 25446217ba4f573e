"""Storage of one vbucket on one node: the latest version of each key, in order of seqnos.

A vbucket is not thread-safe: callers hold the cluster's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dcp.position import FailoverLog
from dcp.wire.memcached import VbucketState

# Number of last writes that a failover can lose: `undo_writes` can restore what they replaced.
JOURNAL = 256
# Number of seqnos of a checkpoint in memory. Older items are read from disk, as streams see by their markers.
CHECKPOINT = 10_000

Identity = tuple[object, ...]


class StoredItem(NamedTuple):
    """One version of a document, or its tombstone.

    `event` is mutation, deletion or expiration. `value` begins with the xattrs if `datatype` says so. `expiry` and
    `delete_time` are Unix seconds.
    """

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
        """Key of the item within its vbucket: a newer item of the same identity replaces it."""
        return self.collection_id, self.key

    @property
    def alive(self) -> bool:
        """True if this is a document, not a tombstone."""
        return self.event == "mutation"


class SystemItem(NamedTuple):
    """Change of the collections manifest, which has a seqno of its own among those of documents."""

    seqno: int
    event_id: int
    key: bytes
    manifest_uid: int
    scope_id: int
    collection_id: int | None = None
    max_ttl: int | None = None

    @property
    def identity(self) -> Identity:
        """Key of the item within its vbucket: the drop of a collection replaces its creation."""
        return "system", self.scope_id, self.collection_id


AnyItem = StoredItem | SystemItem


class DocumentLock(NamedTuple):
    """Lock of a document: until a Unix time, only writes with its CAS are possible."""

    cas: int
    until: float


class VbucketStore:
    """Items, failover log and seqnos of one copy of a vbucket."""

    def __init__(self, number: int, state: VbucketState, log: FailoverLog) -> None:
        self.number = number
        self.state = state
        self.log = log
        self.high_seqno = 0
        self.persisted_seqno = 0
        # True if each write is persisted at once.
        self.persists = True
        self.purge_seqno = 0
        # First seqno of the checkpoint in memory, and the number of this checkpoint.
        self.checkpoint_start = 1
        self.checkpoint = 1
        # False if TAP clients are not told of the vbucket: see Release.tap_forgets_first_checkpoints.
        self.announced = True
        # All datatype bits that any item has ever had.
        self.datatypes = 0
        # True if the vbucket has ever had anything but documents of the default collection.
        self.mixed = False
        # Last seqno of each collection, including purged ones.
        self.highs: dict[int, int] = {}
        # Locks by the identity of the document. A write ends the lock; no copy of the vbucket has it.
        self.locks: dict[Identity, DocumentLock] = {}
        # Documents that a durable write is about to change; no copy of the vbucket has them.
        self.prepared: set[Identity] = set()
        # Documents with a prepare or an abort in the checkpoint in memory.
        self._prepares: set[Identity] = set()
        # All versions, in a bucket that retains history; otherwise None.
        self.history: list[AnyItem] | None = None
        # By identity, in order of seqnos: a replaced item is removed first, so that the new one is the last.
        self._items: dict[Identity, AnyItem] = {}
        # Last writes, each with the item that it replaced.
        self._journal: deque[tuple[StoredItem, AnyItem | None]] = deque(maxlen=JOURNAL)

    def __len__(self) -> int:
        """Number of items, including tombstones."""
        return len(self._items)

    def __iter__(self) -> Iterator[AnyItem]:
        return iter(self._items.values())

    def __reversed__(self) -> Iterator[AnyItem]:
        return reversed(self._items.values())

    def put(self, item: AnyItem) -> None:
        """Add an item, which replaces the one of the same identity. Its seqno must be above the high seqno."""
        seqno = item.seqno
        if seqno <= self.high_seqno:
            raise ValueError(f"vbucket {self.number}: expected a seqno above {self.high_seqno}, found {seqno}")
        identity = item.identity
        replaced = self._items.pop(identity, None)
        self._items[identity] = item
        self.locks.pop(identity, None)
        self.high_seqno = seqno
        if self.persists:
            self.persisted_seqno = seqno
        if seqno - self.checkpoint_start >= CHECKPOINT or self._needs_checkpoint(identity, replaced):
            self._begin_checkpoint(seqno)
        if isinstance(item, StoredItem):
            self._journal.append((item, replaced))
            self.datatypes |= item.datatype
            self.highs[item.collection_id] = seqno
        else:
            # The manifest belongs to the whole bucket, so a failover of one node must not undo a change of it.
            self._journal.clear()
        self.mixed = self.mixed or not isinstance(item, StoredItem) or item.collection_id != 0
        if self.history is not None:
            self.history.append(item)

    def skip_seqno(self, identity: Identity) -> None:
        """Use a seqno for something that consumers do not see: the prepare or the abort of a durable write."""
        self.high_seqno += 1
        if self.persists:
            self.persisted_seqno = self.high_seqno
        # The checkpoint may not hold the present version either: the commit that follows is not to replace it.
        present = self._items.get(identity)
        if identity in self._prepares or (present is not None and present.seqno >= self.checkpoint_start):
            self._begin_checkpoint(self.high_seqno)
        self._prepares.add(identity)

    def _begin_checkpoint(self, seqno: int) -> None:
        self.checkpoint_start = seqno
        self.checkpoint += 1
        self._prepares.clear()

    def _needs_checkpoint(self, identity: Identity, replaced: AnyItem | None) -> bool:
        """Return whether a new version needs a new checkpoint.

        One checkpoint has each key once. With history it has all versions, and nothing replaces a prepare, an abort or
        a commit: Checkpoint::canDedup of kv_engine.
        """
        once = self.history is None and identity not in self._prepares
        return not once and replaced is not None and replaced.seqno >= self.checkpoint_start

    def extend(self, items: Sequence[StoredItem]) -> None:
        """Add many items, which must be in order of seqnos, and persist them. Faster than `put` for each."""
        own_items, datatypes = self._items, self.datatypes
        # Only the last ones can ever be undone; the others need no journal. Indexes: 1 is the seqno, 2 the key, 9 the
        # datatype, 10 the collection; an attribute of a named tuple takes longer, and this loop sees millions of items.
        early = max(0, len(items) - JOURNAL)
        for item in items[:early]:
            identity = (item[10], item[2])
            if identity in own_items:
                del own_items[identity]
            own_items[identity] = item
            datatypes |= item[9]
            if item[10]:
                self.mixed = True
            self.highs[item[10]] = item[1]
        self.datatypes = datatypes
        if self.history is not None:
            self.history.extend(items[:early])
        for item in items[early:]:
            self.put(item)
        self.evict_checkpoint()

    def set_persistence(self, at_once: bool) -> None:
        """Persist writes at once from now on, beginning with those that were not; or stop persisting."""
        self.persists = at_once
        if at_once:
            self.persisted_seqno = self.high_seqno

    def evict_checkpoint(self) -> None:
        """Remove all items from memory, as a restart does: streams read them from disk."""
        self._begin_checkpoint(self.high_seqno + 1)

    def get(self, collection_id: int, key: bytes) -> StoredItem | None:
        """Return the latest version of a key, which may be a tombstone."""
        found = self._items.get((collection_id, key))
        return found if isinstance(found, StoredItem) else None

    def high_seqno_of(self, collection_id: int) -> int | None:
        """Return the seqno of a collection's latest change; None if the collection has never been in this vbucket."""
        for item in reversed(self):
            if item.collection_id == collection_id:
                return item.seqno
        return None if collection_id else 0

    def since(self, seqno: int) -> list[AnyItem]:
        """Return the items above `seqno`, in order; each key once."""
        if seqno <= 0:
            return list(self._items.values())
        # From the end, since streams that keep up ask for a few of many items.
        found: list[AnyItem] = []
        for item in reversed(self._items.values()):
            if item.seqno <= seqno:
                break
            found.append(item)
        found.reverse()
        return found

    def purge(self, before: int | None = None) -> int:
        """Remove tombstones (created before a Unix time, if given) and return how many.

        The last item stays even if it is a tombstone: a vbucket never loses the item with its high seqno.
        """
        purged = [
            (identity, item.seqno)
            for identity, item in self._items.items()
            if isinstance(item, StoredItem)
            and not item.alive
            and item.seqno < self.high_seqno
            and (before is None or item.delete_time < before)
        ]
        for identity, seqno in purged:
            del self._items[identity]
            self.purge_seqno = max(self.purge_seqno, seqno)
        if purged:
            # The journal could restore items that were purged.
            self._journal.clear()
        return len(purged)

    def drop_collection(self, collection_id: int) -> None:
        """Remove the items of a dropped collection; they leave no tombstones."""
        self._journal.clear()
        for identity in [identity for identity in self._items if identity[0] == collection_id]:
            del self._items[identity]

    def undo_writes(self, count: int) -> None:
        """Undo the last writes, no more than the journal has."""
        for _ in range(min(count, len(self._journal))):
            lost, replaced = self._journal.pop()
            del self._items[lost.identity]
            if replaced is not None:
                self._items[lost.identity] = replaced
            self.high_seqno = lost.seqno - 1
            if self.history:
                self.history.pop()
        # Restored items were added at the end; put them back in order.
        self._items = dict(sorted(self._items.items(), key=lambda pair: pair[1].seqno))
        self.highs = {collection: min(seqno, self.high_seqno) for collection, seqno in self.highs.items()}
        self.persisted_seqno = min(self.persisted_seqno, self.high_seqno)
        self.checkpoint_start = min(self.checkpoint_start, self.high_seqno + 1)

    @property
    def last_writes(self) -> list[StoredItem]:
        """Writes that `undo_writes` can undo, the latest one last."""
        return [item for item, _ in self._journal]

    @property
    def last_cas(self) -> int:
        """CAS of the document that was written last; 0 if there is none."""
        return next((item.cas for item in reversed(self) if isinstance(item, StoredItem)), 0)

    def copy(self, state: VbucketState) -> VbucketStore:
        """Return a copy with the same items and failover log, as for a replica that is up to date."""
        other = VbucketStore(self.number, state, self.log)
        other._items, other._journal = dict(self._items), self._journal.copy()
        other.history = None if self.history is None else list(self.history)
        other.high_seqno, other.persisted_seqno = self.high_seqno, self.persisted_seqno
        other.purge_seqno, other.datatypes = self.purge_seqno, self.datatypes
        other.checkpoint_start, other.checkpoint = self.checkpoint_start, self.checkpoint
        other.mixed = self.mixed
        other.highs = dict(self.highs)
        return other
