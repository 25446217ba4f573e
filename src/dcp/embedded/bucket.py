"""The bucket of a cluster: nodes, copies of vbuckets, documents, collections, and every change of them.

No sockets and no threads: callers hold the cluster's lock. The clock is an argument.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dcp.embedded.arguments import check_count
from dcp.embedded.document import tombstone_of
from dcp.embedded.durable_writes import DurableWrites
from dcp.embedded.manifest import BucketManifest, ManifestStep
from dcp.embedded.release import NEWEST_RELEASE, Release
from dcp.embedded.store import CommittedItem, StoredItem, StreamItem, SystemItem, VbucketStore
from dcp.errors import UsageError
from dcp.position import FailoverLog
from dcp.wire.dcp import SystemEvent
from dcp.wire.document import vbucket_of
from dcp.wire.memcached import VbucketState

if TYPE_CHECKING:
    from dcp.embedded.connection import ServerConnection

# Owner of a copy that no node holds.
NOBODY = -1
# A CAS is a hybrid logical clock: Unix nanoseconds, whose lowest 16 bits count changes instead.
_LOGICAL_BITS_MASK = 0xFFFF


@dataclass(eq=False)
class ServerNode:
    """One node: the copies of vbuckets that it holds, and its address."""

    number: int
    vbuckets: dict[int, VbucketStore] = field(default_factory=dict)
    alive: bool = True
    # False while the node does not persist writes.
    persists: bool = True
    # Address for clients, once the node listens.
    host: str = ""
    port: int = 0
    tls_port: int = 0
    management_port: int = 0
    tls_management_port: int = 0
    # DCP connections by the name in their open request.
    consumers: dict[str, ServerConnection] = field(default_factory=dict)

    def vbucket(self, number: int) -> VbucketStore | None:
        """Return the node's copy of a vbucket, if it has one."""
        return self.vbuckets.get(number)


@dataclass(eq=False)
class RangeScan:
    """Documents that a client reads in pieces. `left` are those to come, the next one last."""

    vbucket: VbucketStore
    collection_id: int
    keys_only: bool
    xattrs: bool
    left: list[StoredItem]
    # On the clock of `ServerConnection.now`.
    expires_at: float


class BucketStore:
    """All vbuckets of a bucket, on all nodes, with their replicas.

    `clock` returns Unix seconds. `seed` makes uuids reproducible. With `history`, all versions of documents are
    retained for change streams; with `record`, every version is recorded with its vbucket and vbuuid, including those
    that a failover loses.
    """

    def __init__(
        self,
        name: str,
        *,
        nodes: int = 1,
        vbuckets: int = 1024,
        replicas: int = 0,
        release: Release = NEWEST_RELEASE,
        clock: Callable[[], float],
        seed: int | None = None,
        history: bool = False,
        record: bool = False,
    ) -> None:
        self.name = name
        self.release = release
        self.random = random.Random(seed)
        self.uuid = f"{self.random.getrandbits(128):032x}"
        self.manifest = BucketManifest()
        self.replicas = replicas
        self.retains_history = history
        # Number of writes by which replicas lag behind the active copy, for each vbucket.
        self.replica_lag = 0
        self.epoch, self.revision = 1, 1
        self.nodes = [ServerNode(number) for number in range(nodes)]
        # For each vbucket the node with the active copy, then those with replicas; NOBODY where a copy is missing.
        self.owners: list[list[int]] = []
        # Vbucket, vbuuid and item of every version; None unless versions are recorded.
        self.recorded: list[tuple[int, int, StoredItem]] | None = [] if record else None
        self.clock = clock
        self.durable_writes = DurableWrites(self)
        # By the uuid that the client got.
        self.range_scans: dict[bytes, RangeScan] = {}
        self._last_cas = 0
        # Writes that a replica has not received yet, by node and vbucket.
        self._unreplicated: dict[tuple[int, int], list[StreamItem]] = {}
        for number in range(vbuckets):
            self._distribute(number, [(number + copy) % nodes for copy in range(min(replicas, nodes - 1) + 1)])

    # Reading.

    @property
    def now(self) -> int:
        """Present time in Unix seconds."""
        return int(self.clock())

    def vbucket_of(self, key: bytes) -> int:
        """Return the vbucket of a key."""
        return vbucket_of(key, len(self.owners))

    def active(self, number: int) -> VbucketStore:
        """Return the active copy of a vbucket; raise UsageError if no node that is up has one."""
        owner = self.owner_of(number)
        if owner is None or not owner.alive:
            raise UsageError(
                f"vbucket {number}: no node that is up has an active copy: recover its node, or fail it over"
            )
        return owner.vbuckets[number]

    def _active_for(self, key: bytes, number: int | None) -> VbucketStore:
        return self.active(self.vbucket_of(key) if number is None else number)

    def owner_of(self, number: int) -> ServerNode | None:
        """Return the node that the map names for a vbucket, up or down; None if there is none."""
        owner = self.owners[number][0]
        return None if owner == NOBODY else self.nodes[owner]

    def live_replicas(self, number: int) -> list[VbucketStore]:
        """Return the replicas of a vbucket on nodes that are up."""
        nodes = [self.nodes[owner] for owner in self.owners[number][1:] if owner != NOBODY]
        return [node.vbuckets[number] for node in nodes if node.alive]

    def actives(self) -> Iterator[VbucketStore]:
        """Iterate over the active copies, including those of crashed nodes."""
        for number, owners in enumerate(self.owners):
            if owners[0] != NOBODY:
                yield self.nodes[owners[0]].vbuckets[number]

    def orphans(self) -> Iterator[VbucketStore]:
        """Iterate over copies of vbuckets without owner, on nodes that may recover."""
        for node in self.nodes:
            yield from (copy for number, copy in node.vbuckets.items() if self.owners[number][0] == NOBODY)

    def get(self, key: bytes, collection_id: int = 0, number: int | None = None) -> StoredItem | None:
        """Return a document unless it is missing, deleted or expired.

        `number` is the vbucket, if it is not the one of the key. As on servers, reading a document whose expiry has
        passed makes it expire.
        """
        item = self._active_for(key, number).get(collection_id, key)
        if item is None or not item.alive:
            return None
        if item.expiry and item.expiry <= self.now:
            if item.identity not in self._active_for(key, number).prepared:
                self.remove(key, collection_id, event="expiration", number=number)
            return None
        return item

    # Documents.

    def store(self, key: bytes, value: bytes, *, number: int | None = None, **parts: Any) -> StoredItem:
        """Write a document and return its new version. The arguments are those of `new_version`."""
        vbucket = self._active_for(key, number)
        return self.add(vbucket, self.new_version(vbucket, key, value, **parts))

    def new_version(
        self,
        vbucket: VbucketStore,
        key: bytes,
        value: bytes,
        *,
        event: str = "mutation",
        collection_id: int = 0,
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
        cas: int | None = None,
    ) -> StoredItem:
        """Return a new version of a document, with the next seqno of its vbucket.

        `event` "deletion" makes a tombstone with this value, which consists of xattrs. `expiry` is in Unix seconds, 0
        for none. `cas` is one that `next_cas` has returned; None for a new one.
        """
        old = vbucket.get(collection_id, key)
        collection = self.manifest.collections()[collection_id]
        if collection.max_ttl:
            latest = self.now + collection.max_ttl
            expiry = min(expiry, latest) if expiry else latest
        alive = event == "mutation"
        return StoredItem(
            event,
            vbucket.high_seqno + 1,
            key,
            value,
            1 if old is None else old.rev_seqno + 1,
            self.next_cas() if cas is None else cas,
            flags,
            expiry if alive else 0,
            0 if alive else self.now,
            datatype,
            collection_id,
        )

    def remove(
        self, key: bytes, collection_id: int = 0, *, event: str = "deletion", number: int | None = None
    ) -> StoredItem | None:
        """Delete a document (or expire it, by `event`) and return its tombstone; None if there is no document."""
        vbucket = self._active_for(key, number)
        old = vbucket.get(collection_id, key)
        if old is None or not old.alive:
            return None
        return self.add(vbucket, self.new_tombstone(vbucket, old, event))

    def new_tombstone(self, vbucket: VbucketStore, old: StoredItem, event: str = "deletion") -> StoredItem:
        """Return the tombstone of a document, with the next seqno of its vbucket."""
        return old._replace(
            event=event,
            seqno=vbucket.high_seqno + 1,
            rev_seqno=old.rev_seqno + 1,
            cas=self.next_cas(),
            flags=0,
            expiry=0,
            delete_time=self.now,
            **tombstone_of(old),
        )

    def add(self, vbucket: VbucketStore, version: StoredItem) -> StoredItem:
        """Add a new version to the vbucket, and return it."""
        if vbucket.prepared and version.identity in vbucket.prepared:
            raise UsageError(
                f"key {version.key!r}: a durable write of it is pending; it has to be committed or time out"
            )
        self.put(vbucket, version)
        return version

    def put(self, vbucket: VbucketStore, item: StreamItem) -> None:
        """Add an item to the active copy of a vbucket, and to its replicas as far as they do not lag."""
        vbucket.put(item)
        if self.recorded is not None:
            version = item.document if isinstance(item, CommittedItem) else item
            if isinstance(version, StoredItem):
                self.recorded.append((vbucket.number, vbucket.log.newest.vbuuid, version))
        for owner in self.owners[vbucket.number][1:]:
            if owner == NOBODY or not self.nodes[owner].alive:
                continue
            self._unreplicated.setdefault((owner, vbucket.number), []).append(item)
            self._replicate(owner, vbucket.number, self.replica_lag)

    def load(self, vbucket: int, items: list[StoredItem]) -> None:
        """Add many items to all copies of a vbucket at once."""
        if self.recorded is not None:
            vbuuid = self.active(vbucket).log.newest.vbuuid
            self.recorded += [(vbucket, vbuuid, item) for item in items]
        for owner in self.owners[vbucket]:
            if owner != NOBODY and self.nodes[owner].alive:
                self._replicate(owner, vbucket, 0)
                self.nodes[owner].vbuckets[vbucket].extend(items)

    def next_cas(self, count: int = 1) -> int:
        """Return a CAS above all earlier ones. With `count`, reserve as many consecutive ones and return the first."""
        cas = max(int(self.clock() * 1e9) & ~_LOGICAL_BITS_MASK, self._last_cas + 1)
        self._last_cas = cas + count - 1
        return cas

    def expire_due(self) -> int:
        """Expire all documents whose expiry has passed; return how many."""
        now = self.now
        due = [
            item
            for number, (owner, *_) in enumerate(self.owners)
            if owner != NOBODY and self.nodes[owner].alive
            for item in self.active(number)
            if isinstance(item, StoredItem) and item.alive and 0 < item.expiry <= now
            if item.identity not in self.active(number).prepared
        ]
        for item in due:
            self.remove(item.key, item.collection_id, event="expiration")
        return len(due)

    def purge(self, before: int | None = None) -> int:
        """Purge tombstones (created before a Unix time, if given) in all copies; return how many in active ones."""
        count = 0
        for node in self.nodes:
            for number, copy in node.vbuckets.items():
                purged = copy.purge(before)
                count += purged if self.owners[number][0] == node.number else 0
        return count

    def evict_checkpoints(self) -> None:
        """Let all streams read the present items from disk."""
        for node in self.nodes:
            for copy in node.vbuckets.values():
                copy.evict_checkpoint()

    def set_persistence(self, node: ServerNode, at_once: bool) -> None:
        """Let a node persist writes at once, or not at all."""
        node.persists = at_once
        for copy in node.vbuckets.values():
            copy.set_persistence(at_once)

    def set_replica_lag(self, writes: int) -> None:
        """Let replicas lag by a number of writes for each vbucket."""
        check_count("lag", writes, "writes")
        self.replica_lag = writes
        for owner, vbucket in list(self._unreplicated):
            self._replicate(owner, vbucket, writes)

    def _replicate(self, owner: int, vbucket: int, lag: int) -> None:
        """Pass writes to a replica until it lags by no more than `lag` writes."""
        waiting = self._unreplicated.get((owner, vbucket), [])
        while len(waiting) > lag:
            self.nodes[owner].vbuckets[vbucket].put(waiting.pop(0))

    # Collections.

    def change_manifest(self, manifest: BucketManifest, steps: list[ManifestStep]) -> None:
        """Set a new manifest, and add its steps to every vbucket as system events."""
        self.manifest = manifest
        for orphan in self.orphans():
            # Another copy may have used the same seqnos for writes that were lost. A history of its own keeps
            # consumers from resuming on this one as if it were the same.
            orphan.log = orphan.log.begin(self.new_vbuuid(), orphan.high_seqno)
        for vbucket in [*self.actives(), *self.orphans()]:
            for step in steps:
                self.put(vbucket, _system_item(step, vbucket.high_seqno + 1))
                if step.event is SystemEvent.COLLECTION_END:
                    self._drop_collection(vbucket.number, step.collection_id or 0)

    def _drop_collection(self, number: int, collection_id: int) -> None:
        for node in self.nodes:
            if (copy := node.vbuckets.get(number)) is not None:
                copy.drop_collection(collection_id)

    # Histories and copies.

    def new_map(self) -> None:
        """Raise the revision of the cluster map after a change of owners or nodes."""
        self.revision += 1

    def new_vbuuid(self) -> int:
        """Return a random uuid for a history. Servers' uuids have 48 bits."""
        return self.random.getrandbits(47) | 1 << 47

    def install(self, number: int, owner: int, copy: VbucketStore | None) -> None:
        """Replace a node's copy of a vbucket, or remove it (None). Streams of the old copy end."""
        old = self.nodes[owner].vbuckets.pop(number, None)
        if old is not None:
            old.state = VbucketState.DEAD
        if copy is not None:
            self.nodes[owner].vbuckets[number] = copy
            copy.persists = self.nodes[owner].persists
        self._unreplicated.pop((owner, number), None)

    def replace_copy(self, number: int, owner: int, copy: VbucketStore) -> None:
        """Replace a node's copy of a vbucket by one with the same items. A replica lags as far as it did before."""
        waiting = self._unreplicated.get((owner, number))
        self.install(number, owner, copy)
        if waiting:
            self._unreplicated[owner, number] = waiting

    def create(self, number: int, owner: int) -> None:
        """Create a vbucket that is empty but for the system events of the manifest."""
        vbucket = self._new_copy(number, VbucketState.ACTIVE, FailoverLog.of([(self.new_vbuuid(), 0)]))
        for step in self.manifest.steps():
            vbucket.put(_system_item(step, vbucket.high_seqno + 1))
        self.install(number, owner, vbucket)

    def _new_copy(self, number: int, state: VbucketState, log: FailoverLog) -> VbucketStore:
        vbucket = VbucketStore(number, state, log)
        vbucket.history = [] if self.retains_history else None
        return vbucket

    def _distribute(self, number: int, owners: list[int]) -> None:
        """Create the first copies of a vbucket, the active one on the first owner."""
        log = FailoverLog.of([(self.new_vbuuid(), 0)])
        for index, owner in enumerate(owners):
            state = VbucketState.REPLICA if index else VbucketState.ACTIVE
            self.nodes[owner].vbuckets[number] = self._new_copy(number, state, log)
        self.owners.append(owners)


def _system_item(step: ManifestStep, seqno: int) -> SystemItem:
    key = step.name.encode()
    return SystemItem(seqno, int(step.event), key, step.manifest_uid, step.scope_id, step.collection_id, step.max_ttl)
