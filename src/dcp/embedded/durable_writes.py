"""Durable writes that are pending: prepared, and waiting for as many copies as their level asks for.

They belong to the vbucket, not to the connection that asked for them: a client that leaves takes nothing along. No
sockets and no threads: callers hold the cluster's lock. The clock is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcp.embedded.store import AbortedItem, CommittedItem, Identity, PreparedItem, StoredItem, VbucketStore
from dcp.wire.dcp import DurabilityLevel

if TYPE_CHECKING:
    from dcp.embedded.bucket import BucketStore

# Receives the committed version; None if the write was aborted, or if its outcome is unknown.
Report = Callable[["StoredItem | None"], None]


@dataclass(eq=False)
class PendingWrite:
    """Durable write that waits for copies: meanwhile the document cannot be changed."""

    # Active copy that has the prepare.
    vbucket: VbucketStore
    prepare: PreparedItem
    # On the clock of `DurableWrites.tick`; infinite once another copy has become active.
    timeout_at: float
    report: Report


class DurableWrites:
    """Pending durable writes of a bucket, in the order of their prepares."""

    def __init__(self, bucket: BucketStore) -> None:
        self._bucket = bucket
        self._pending: list[PendingWrite] = []

    @property
    def majority(self) -> int:
        """Number of copies that a durable write needs."""
        return (self._bucket.replicas + 1) // 2 + 1

    def begin(
        self, vbucket: VbucketStore, version: StoredItem, level: DurabilityLevel, timeout_at: float, report: Report
    ) -> StoredItem | None:
        """Prepare a write, and commit it if there are enough copies already.

        Return the committed version; None if the write is pending, and `report` gets its outcome later.
        """
        prepare = PreparedItem(version, level)
        write = PendingWrite(vbucket, prepare, timeout_at, report)
        waits = bool(vbucket.prepared)
        self._bucket.put(vbucket, prepare)
        if not waits and self._reached(write):
            return self._commit(write)
        self._pending.append(write)
        return None

    def recommits(self, vbucket: VbucketStore, identity: Identity) -> bool:
        """Return whether a document has a write that another copy has prepared: clients may have seen it already."""
        return any(
            write.prepare.identity == identity and (write.timeout_at == math.inf or write.vbucket is not vbucket)
            for write in self._pending
            if write.vbucket.number == vbucket.number
        )

    def due(self) -> float | None:
        """Return when the next write times out; None if there is none."""
        return min((write.timeout_at for write in self._pending if write.timeout_at < math.inf), default=None)

    def tick(self, now: float) -> None:
        """Commit the writes that have enough copies, and abort those whose timeout has passed."""
        waiting: set[int] = set()
        writes, self._pending = self._pending, []
        for write in writes:
            number = write.vbucket.number
            if self._is_down(number):
                # The prepare is on disk, and the write goes on when the node or another copy is back.
                self._pending.append(write)
            elif not self._is_prepared(write):
                write.report(None)
            # As on servers, the writes of a vbucket are committed in the order of their prepares.
            elif number not in waiting and self._reached(write):
                write.report(self._commit(write))
            elif now >= write.timeout_at:
                self._abort(write)
                write.report(None)
            else:
                waiting.add(number)
                self._pending.append(write)

    def _is_down(self, number: int) -> bool:
        owner = self._bucket.owner_of(number)
        return owner is None or not owner.alive

    def _is_prepared(self, write: PendingWrite) -> bool:
        """Return whether the active copy, which may be another one by now, still has the prepare."""
        active = self._bucket.active(write.vbucket.number)
        if active is not write.vbucket:
            # Servers tell the client that the outcome is ambiguous, and let the new active copy complete the write
            # however long that takes: VBucket::setState and ActiveDurabilityMonitor of kv_engine.
            write.report(None)
            write.vbucket, write.timeout_at, write.report = active, math.inf, _ignore
        return active.prepared.get(write.prepare.identity) == write.prepare

    def _reached(self, write: PendingWrite) -> bool:
        """Return whether enough copies have the prepare, the active one among them."""
        number, seqno, level = write.vbucket.number, write.prepare.seqno, write.prepare.level
        if level is not DurabilityLevel.MAJORITY and write.vbucket.persisted_seqno < seqno:
            return False
        persisted = level is DurabilityLevel.PERSIST_TO_MAJORITY
        replicas = self._bucket.live_replicas(number)
        have = [copy for copy in replicas if (copy.persisted_seqno if persisted else copy.high_seqno) >= seqno]
        return len(have) + 1 >= self.majority

    def _commit(self, write: PendingWrite) -> StoredItem:
        version = write.prepare.document._replace(seqno=write.vbucket.high_seqno + 1)
        self._bucket.put(write.vbucket, CommittedItem(version, write.prepare.seqno))
        return version

    def _abort(self, write: PendingWrite) -> None:
        document, seqno = write.prepare.document, write.vbucket.high_seqno + 1
        self._bucket.put(write.vbucket, AbortedItem(seqno, document.key, write.prepare.seqno, document.collection_id))


def _ignore(version: StoredItem | None) -> None:
    """Report to nobody: the client has its answer."""
