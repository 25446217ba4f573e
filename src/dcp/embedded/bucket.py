"""The documents of a cluster: its nodes, what each of them holds, and every way in which that changes.

No sockets and no threads: whoever holds the cluster's lock may use it. The clock is an argument.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dcp.embedded.manifest import BucketManifest, ManifestStep
from dcp.embedded.release import NEWEST_RELEASE, Release
from dcp.embedded.store import AnyItem, StoredItem, SystemItem, VbucketStore
from dcp.embedded.tombstone import tombstone
from dcp.errors import LocalProtocolError
from dcp.position import FailoverLog
from dcp.wire.dcp import SystemEvent
from dcp.wire.document import vbucket_of
from dcp.wire.memcached import VbucketState

if TYPE_CHECKING:
    from dcp.embedded.connection import ServerConnection

NOBODY = -1
# The clock of a CAS counts nanoseconds, whose lowest bits count changes instead.
_LOGICAL = 0xFFFF


@dataclass(eq=False)
class ServerNode:
    """A server of the cluster: which vbuckets it holds, and whether it is there."""

    number: int
    vbuckets: dict[int, VbucketStore] = field(default_factory=dict)
    alive: bool = True
    # Whether its disks keep up.
    persists: bool = True
    # Where clients find it, once it listens.
    host: str = ""
    port: int = 0
    tls_port: int = 0
    # The DCP connections to it, by the names that they were opened with.
    consumers: dict[str, ServerConnection] = field(default_factory=dict)

    def vbucket(self, number: int) -> VbucketStore | None:
        return self.vbuckets.get(number)


class BucketStore:
    """All vbuckets of a bucket, on all nodes, with their replicas.

    lag: how many writes of a vbucket its replicas are behind.
    record: every version that was ever written, with its vbucket and vbuuid; None where nobody asked for it.
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
        self.lag = 0
        self.epoch, self.revision = 1, 1
        self.nodes = [ServerNode(number) for number in range(nodes)]
        # For each vbucket the node with the active copy, then those with replicas; NOBODY where there is none.
        self.owners: list[list[int]] = []
        self.record: list[tuple[int, int, StoredItem]] | None = [] if record else None
        self._clock = clock
        self._history = history
        self._last_cas = 0
        self._behind: dict[tuple[int, int], list[AnyItem]] = {}
        for number in range(vbuckets):
            self._place(number, [(number + copy) % nodes for copy in range(min(replicas, nodes - 1) + 1)])

    # What there is.

    @property
    def now(self) -> int:
        """Unix seconds."""
        return int(self._clock())

    def vbucket_of(self, key: bytes) -> int:
        return vbucket_of(key, len(self.owners))

    def active(self, number: int) -> VbucketStore:
        """The copy that takes writes."""
        owner = self.owners[number][0]
        if owner == NOBODY or not self.nodes[owner].alive:
            raise LocalProtocolError(f"vbucket {number}: no node that is there has an active copy")
        return self.nodes[owner].vbuckets[number]

    def _home(self, key: bytes, number: int | None) -> VbucketStore:
        return self.active(self.vbucket_of(key) if number is None else number)

    def actives(self) -> Iterator[VbucketStore]:
        for number, owners in enumerate(self.owners):
            if owners[0] != NOBODY:
                yield self.nodes[owners[0]].vbuckets[number]

    def orphans(self) -> Iterator[VbucketStore]:
        """The copies of vbuckets without owner, on nodes that may come back."""
        for node in self.nodes:
            yield from (copy for number, copy in node.vbuckets.items() if self.owners[number][0] == NOBODY)

    def get(self, key: bytes, collection_id: int = 0, number: int | None = None) -> StoredItem | None:
        """The document, unless it is deleted, or expired whether or not somebody has noticed.

        number: the vbucket, for those who do not leave it to the key.
        """
        item = self._home(key, number).get(collection_id, key)
        if item is None or not item.alive:
            return None
        if item.expiry and item.expiry <= self.now:
            self.remove(key, collection_id, event="expiration", number=number)
            return None
        return item

    # Changes of documents.

    def store(
        self,
        key: bytes,
        value: bytes,
        *,
        collection_id: int = 0,
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
        number: int | None = None,
    ) -> StoredItem:
        """Write a document; says what was written."""
        vbucket = self._home(key, number)
        old = vbucket.get(collection_id, key)
        collection = self.manifest.collections()[collection_id]
        if collection.max_ttl:
            latest = self.now + collection.max_ttl
            expiry = min(expiry, latest) if expiry else latest
        item = StoredItem(
            "mutation",
            vbucket.high_seqno + 1,
            key,
            value,
            1 if old is None else old.rev_seqno + 1,
            self.next_cas(),
            flags,
            expiry,
            0,
            datatype,
            collection_id,
        )
        self.put(vbucket, item)
        return item

    def remove(
        self, key: bytes, collection_id: int = 0, *, event: str = "deletion", number: int | None = None
    ) -> StoredItem | None:
        """Delete a document, or let it expire; None if there is none. System xattrs stay with the tombstone."""
        vbucket = self._home(key, number)
        old = vbucket.get(collection_id, key)
        if old is None or not old.alive:
            return None
        item = old._replace(
            event=event,
            seqno=vbucket.high_seqno + 1,
            rev_seqno=old.rev_seqno + 1,
            cas=self.next_cas(),
            flags=0,
            expiry=0,
            delete_time=self.now,
            **tombstone(old),
        )
        self.put(vbucket, item)
        return item

    def put(self, vbucket: VbucketStore, item: AnyItem) -> None:
        """Add an item to the active copy of a vbucket, and to its replicas as far as they keep up."""
        vbucket.put(item)
        if self.record is not None and isinstance(item, StoredItem):
            self.record.append((vbucket.number, vbucket.log.newest.vbuuid, item))
        for owner in self.owners[vbucket.number][1:]:
            if owner == NOBODY or not self.nodes[owner].alive:
                continue
            behind = self._behind.setdefault((owner, vbucket.number), [])
            behind.append(item)
            self._catch_up(owner, vbucket.number, self.lag)

    def load(self, vbucket: int, items: list[StoredItem]) -> None:
        """Many items at once."""
        if self.record is not None:
            vbuuid = self.active(vbucket).log.newest.vbuuid
            self.record += [(vbucket, vbuuid, item) for item in items]
        for owner in self.owners[vbucket]:
            if owner != NOBODY and self.nodes[owner].alive:
                self._catch_up(owner, vbucket, 0)
                self.nodes[owner].vbuckets[vbucket].extend(items)

    def next_cas(self, count: int = 1) -> int:
        """A version above all others: a hybrid clock. With a count, the first one of so many."""
        cas = max(int(self._clock() * 1e9) & ~_LOGICAL, self._last_cas + 1)
        self._last_cas = cas + count - 1
        return cas

    def expire_due(self) -> int:
        """Let every document expire whose time has come; says how many."""
        now = self.now
        due = [
            item
            for number, (owner, *_) in enumerate(self.owners)
            if owner != NOBODY and self.nodes[owner].alive
            for item in self.active(number)
            if isinstance(item, StoredItem) and item.alive and 0 < item.expiry <= now
        ]
        for item in due:
            self.remove(item.key, item.collection_id, event="expiration")
        return len(due)

    def purge(self, before: int | None = None) -> int:
        """Let every copy forget tombstones (made before a time); says how many the active ones forgot."""
        gone = 0
        for node in self.nodes:
            for number, copy in node.vbuckets.items():
                forgotten = copy.purge(before)
                gone += forgotten if self.owners[number][0] == node.number else 0
        return gone

    def leave_memory(self) -> None:
        """Every copy comes from disk from now on."""
        for node in self.nodes:
            for copy in node.vbuckets.values():
                copy.leave_memory()

    def set_persistence(self, node: ServerNode, at_once: bool) -> None:
        """Whether a node writes to its disks."""
        node.persists = at_once
        for copy in node.vbuckets.values():
            copy.persist(at_once)

    def set_lag(self, items: int) -> None:
        """Let replicas be so many writes behind."""
        if items < 0:
            raise LocalProtocolError(f"lag: expected at least 0 writes, found {items}")
        self.lag = items
        for owner, vbucket in list(self._behind):
            self._catch_up(owner, vbucket, items)

    def _catch_up(self, owner: int, vbucket: int, lag: int) -> None:
        behind = self._behind.get((owner, vbucket), [])
        while len(behind) > lag:
            self.nodes[owner].vbuckets[vbucket].put(behind.pop(0))

    # Changes of collections.

    def change_manifest(self, manifest: BucketManifest, changes: list[ManifestStep]) -> None:
        """Every vbucket takes every step."""
        self.manifest = manifest
        for orphan in self.orphans():
            # Others may have lost what has the numbers of these steps: they are another history.
            orphan.log = orphan.log.begin(self.new_branch(), orphan.high_seqno)
        for vbucket in [*self.actives(), *self.orphans()]:
            for change in changes:
                self.put(vbucket, _system_item(change, vbucket.high_seqno + 1))
                if change.event is SystemEvent.COLLECTION_END:
                    self._drop(vbucket.number, change.collection_id or 0)

    def _drop(self, number: int, collection_id: int) -> None:
        for node in self.nodes:
            if (copy := node.vbuckets.get(number)) is not None:
                copy.drop(collection_id)

    # Histories and copies.

    def new_map(self) -> None:
        """The owners or the nodes have changed: whoever follows the map is to see a newer one."""
        self.revision += 1

    def new_branch(self) -> int:
        """A uuid for a history."""
        return self.random.getrandbits(47) | 1 << 47

    def install(self, number: int, owner: int, copy: VbucketStore | None) -> None:
        """Another copy of a vbucket, or none, instead of that on a node, whose streams end."""
        old = self.nodes[owner].vbuckets.pop(number, None)
        if old is not None:
            old.state = VbucketState.DEAD
        if copy is not None:
            self.nodes[owner].vbuckets[number] = copy
            copy.persists = self.nodes[owner].persists
        self._behind.pop((owner, number), None)

    def create(self, number: int, owner: int) -> None:
        """A vbucket that has nothing but the collections there are."""
        vbucket = self._new(number, VbucketState.ACTIVE, FailoverLog.of([(self.new_branch(), 0)]))
        for change in self.manifest.steps():
            vbucket.put(_system_item(change, vbucket.high_seqno + 1))
        self.install(number, owner, vbucket)

    def _new(self, number: int, state: VbucketState, log: FailoverLog) -> VbucketStore:
        vbucket = VbucketStore(number, state, log)
        vbucket.history = [] if self._history else None
        return vbucket

    def _place(self, number: int, owners: list[int]) -> None:
        log = FailoverLog.of([(self.new_branch(), 0)])
        for place, owner in enumerate(owners):
            state = VbucketState.REPLICA if place else VbucketState.ACTIVE
            self.nodes[owner].vbuckets[number] = self._new(number, state, log)
        self.owners.append(owners)


def _system_item(change: ManifestStep, seqno: int) -> SystemItem:
    key = change.name.encode()
    return SystemItem(
        seqno, int(change.event), key, change.manifest_uid, change.scope_id, change.collection_id, change.max_ttl
    )
