"""Storage of one vbucket on one node: the latest version of each key, in order of seqnos.

A vbucket is not thread-safe: callers hold the cluster's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dcp.position import FailoverLog
from dcp.wire.dcp import DurabilityLevel
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


class PreparedItem(NamedTuple):
    """Prepare of a durable write: the version of the document that it would commit, with the seqno of the prepare."""

    document: StoredItem
    level: DurabilityLevel

    @property
    def seqno(self) -> int:
        return self.document.seqno

    @property
    def identity(self) -> Identity:
        """Key of the document: each has at most one prepare."""
        return self.document.identity

    @property
    def collection_id(self) -> int:
        return self.document.collection_id


class CommittedItem(NamedTuple):
    """Commit of a durable write: the version of the document, with the seqno of the commit."""

    document: StoredItem
    prepared_seqno: int

    @property
    def seqno(self) -> int:
        return self.document.seqno

    @property
    def collection_id(self) -> int:
        return self.document.collection_id


class AbortedItem(NamedTuple):
    """Abort of a durable write."""

    seqno: int
    key: bytes
    prepared_seqno: int
    collection_id: int = 0

    @property
    def identity(self) -> Identity:
        """Key of the document: the abort replaces its prepare."""
        return self.collection_id, self.key


# Change of a vbucket that belongs to a durable write. Only consumers with sync writes see it as such; for others a
# commit is an ordinary version, and the rest is not there.
SyncItem = PreparedItem | CommittedItem | AbortedItem
StreamItem = AnyItem | SyncItem


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
        # Documents that a durable write is about to change, in the order of their prepares.
        self.prepared: dict[Identity, PreparedItem] = {}
        # Seqnos of the latest prepare, and of the latest one that was committed or aborted.
        self.high_prepared_seqno = 0
        self._completed_seqno = 0
        # By document: the latest abort, or the prepare if it is pending or still in memory.
        self._prepares: dict[Identity, PreparedItem | AbortedItem] = {}
        # Seqnos of the prepares of the commits in the checkpoint in memory, by the seqno of the commit.
        self._commits: dict[int, int] = {}
        # All versions, in a bucket that retains history; otherwise None.
        self.history: list[AnyItem] | None = None
        # By identity, in order of seqnos: a replaced item is removed first, so that the new one is the last.
        self._items: dict[Identity, AnyItem] = {}
        # Seqno of each collection's latest change, and the state of the vbucket in which that was true.
        self._collection_highs: tuple[tuple[int, ...], dict[int | None, int]] = (), {}
        # Last writes, each with the item that it replaced, and its first seqno: that of the prepare if it was durable.
        self._journal: deque[tuple[StoredItem, AnyItem | None, int]] = deque(maxlen=JOURNAL)

    def __len__(self) -> int:
        """Number of items, including tombstones."""
        return len(self._items)

    def __iter__(self) -> Iterator[AnyItem]:
        return iter(self._items.values())

    def __reversed__(self) -> Iterator[AnyItem]:
        return reversed(self._items.values())

    def put(self, item: StreamItem) -> None:
        """Add an item, which replaces the one of the same identity. Its seqno must be above the high seqno."""
        if item.seqno <= self.high_seqno:
            raise ValueError(f"vbucket {self.number}: expected a seqno above {self.high_seqno}, found {item.seqno}")
        if isinstance(item, StoredItem):
            self._put(item, item.seqno)
        elif isinstance(item, CommittedItem):
            self._put(item.document, item.prepared_seqno)
            self._complete(item.document.identity, item.prepared_seqno)
            self._commits[item.seqno] = item.prepared_seqno
        elif isinstance(item, PreparedItem | AbortedItem):
            self._put_prepare(item)
        else:
            self._put(item, item.seqno)

    def _put(self, item: AnyItem, first_seqno: int) -> None:
        seqno, identity = item.seqno, item.identity
        replaced = self._items.pop(identity, None)
        self._items[identity] = item
        self.locks.pop(identity, None)
        self._raise_seqno(seqno)
        if seqno - self.checkpoint_start >= CHECKPOINT or self._needs_checkpoint(identity, replaced):
            self._begin_checkpoint(seqno)
        if isinstance(item, StoredItem):
            self._journal.append((item, replaced, first_seqno))
            self.datatypes |= item.datatype
            self.highs[item.collection_id] = seqno
        else:
            # The manifest belongs to the whole bucket, so a failover of one node must not undo a change of it.
            self._journal.clear()
        self.mixed = self.mixed or not isinstance(item, StoredItem) or item.collection_id != 0
        if self.history is not None:
            self.history.append(item)

    def _put_prepare(self, item: PreparedItem | AbortedItem) -> None:
        identity = item.identity
        self._raise_seqno(item.seqno)
        # The checkpoint may not hold the present version either: the commit that follows is not to replace it.
        present = self._items.get(identity)
        if self._prepares_in_memory(identity) or (present is not None and present.seqno >= self.checkpoint_start):
            self._begin_checkpoint(item.seqno)
        self._prepares[identity] = item
        self.mixed = self.mixed or item.collection_id != 0
        if isinstance(item, PreparedItem):
            self.prepared[identity] = item
            self.high_prepared_seqno = item.seqno
            self.datatypes |= item.document.datatype
        else:
            self._complete(identity, item.prepared_seqno)

    def _raise_seqno(self, seqno: int) -> None:
        self.high_seqno = seqno
        if self.persists:
            self.persisted_seqno = seqno

    def _complete(self, identity: Identity, prepared_seqno: int) -> None:
        self.prepared.pop(identity, None)
        self._completed_seqno = max(self._completed_seqno, prepared_seqno)

    def _begin_checkpoint(self, seqno: int) -> None:
        self.checkpoint_start = seqno
        self.checkpoint += 1
        self._commits.clear()
        completed = [identity for identity, item in self._prepares.items() if isinstance(item, PreparedItem)]
        for identity in completed:
            if identity not in self.prepared:
                del self._prepares[identity]

    def _prepares_in_memory(self, identity: Identity) -> bool:
        """Return whether the checkpoint in memory has a prepare or an abort of this document."""
        found = self._prepares.get(identity)
        return found is not None and found.seqno >= self.checkpoint_start

    def _needs_checkpoint(self, identity: Identity, replaced: AnyItem | None) -> bool:
        """Return whether a new version needs a new checkpoint.

        One checkpoint has each key once. With history it has all versions, and nothing replaces a prepare, an abort or
        a commit: Checkpoint::canDedup of kv_engine.
        """
        if replaced is None or (self.history is None and not self._prepares):
            return False
        once = self.history is None and not self._prepares_in_memory(identity)
        return not once and replaced.seqno >= self.checkpoint_start

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
        # Clients ask for one collection after the other, and each answer would traverse all items.
        state = self.high_seqno, self.log.newest.vbuuid, len(self._items)
        if self._collection_highs[0] != state:
            self._collection_highs = state, {item.collection_id: item.seqno for item in self}
        return self._collection_highs[1].get(collection_id, None if collection_id else 0)

    def since(self, seqno: int) -> list[StreamItem]:
        """Return the items above `seqno`, in order; each key once."""
        if seqno <= 0:
            return list(self._items.values())
        # From the end, since streams that keep up ask for a few of many items.
        found: list[StreamItem] = []
        for item in reversed(self._items.values()):
            if item.seqno <= seqno:
                break
            found.append(item)
        found.reverse()
        return found

    def with_sync_writes(self, items: list[StreamItem], seqno: int, *, disk: bool) -> list[StreamItem]:
        """Return items above `seqno` with the prepares, commits and aborts of durable writes among them.

        On disk a commit is an ordinary version, and completed prepares are skipped: ActiveStream::makeResponseFromItem
        and BySeqnoDiskCallback::skipItem of kv_engine.
        """
        found = items if disk else [self._as_committed(item) for item in items]
        found += [
            item
            for identity, item in self._prepares.items()
            if item.seqno > seqno and not (disk and isinstance(item, PreparedItem) and identity not in self.prepared)
        ]
        return sorted(found, key=lambda item: item.seqno)

    def _as_committed(self, item: StreamItem) -> StreamItem:
        if isinstance(item, StoredItem) and item.seqno in self._commits:
            return CommittedItem(item, self._commits[item.seqno])
        return item

    @property
    def high_completed_seqno(self) -> int:
        """Seqno of the latest prepare up to which all were committed or aborted."""
        pending = next(iter(self.prepared.values()), None)
        return self._completed_seqno if pending is None else min(self._completed_seqno, pending.seqno - 1)

    @property
    def visible_seqno(self) -> int:
        """Highest seqno that is not one of a prepare or an abort."""
        return next((item.seqno for item in reversed(self)), 0)

    def persisted_documents(self) -> list[StoredItem]:
        """Return the documents as they are on disk: without the changes, up to `JOURNAL`, that are not persisted."""
        found = {identity: item for identity, item in self._items.items() if item.seqno <= self.persisted_seqno}
        for item, replaced, _ in self._journal:
            if item.seqno > self.persisted_seqno and replaced is not None and replaced.seqno <= self.persisted_seqno:
                found[item.identity] = replaced
        return [item for item in found.values() if isinstance(item, StoredItem) and item.alive]

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
        for identity in [identity for identity in self._prepares if identity[0] == collection_id]:
            del self._prepares[identity]
            self.prepared.pop(identity, None)

    def undo_writes(self, count: int) -> None:
        """Undo the last writes, no more than the journal has."""
        for _ in range(min(count, len(self._journal))):
            lost, replaced, first_seqno = self._journal.pop()
            del self._items[lost.identity]
            if replaced is not None:
                self._items[lost.identity] = replaced
            self.high_seqno = first_seqno - 1
            if self.history:
                self.history.pop()
        # Restored items were added at the end; put them back in order.
        self._items = dict(sorted(self._items.items(), key=lambda pair: pair[1].seqno))
        self.highs = {collection: min(seqno, self.high_seqno) for collection, seqno in self.highs.items()}
        self._undo_prepares()
        self.persisted_seqno = min(self.persisted_seqno, self.high_seqno)
        self.checkpoint_start = min(self.checkpoint_start, self.high_seqno + 1)

    def _undo_prepares(self) -> None:
        high = self.high_seqno
        self._prepares = {identity: item for identity, item in self._prepares.items() if item.seqno <= high}
        self.prepared = {identity: item for identity, item in self.prepared.items() if item.seqno <= high}
        self._commits = {seqno: prepared for seqno, prepared in self._commits.items() if seqno <= high}
        self.high_prepared_seqno = min(self.high_prepared_seqno, high)
        self._completed_seqno = min(self._completed_seqno, high)

    @property
    def last_writes(self) -> list[StoredItem]:
        """Writes that `undo_writes` can undo, the latest one last."""
        return [item for item, _, _ in self._journal]

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
        other.prepared, other._prepares, other._commits = dict(self.prepared), dict(self._prepares), dict(self._commits)
        other.high_prepared_seqno, other._completed_seqno = self.high_prepared_seqno, self._completed_seqno
        return other
