"""Durable writes, which servers call sync writes: they are done once a majority of the copies has them.

A durable write has two seqnos: that of its prepare, which consumers do not see, and that of the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dcp.embedded.bucket import NOBODY, BucketStore
from dcp.embedded.commands.documents import DocumentRef
from dcp.embedded.connection import ServerConnection, response
from dcp.embedded.refusals import Refusal
from dcp.embedded.release import Release
from dcp.embedded.store import Identity, VbucketStore
from dcp.wire.dcp import DurabilityLevel
from dcp.wire.frame import Frame
from dcp.wire.framing import RequestInfo
from dcp.wire.memcached import Status, VbucketState

_KNOWN_INFOS = frozenset(map(int, RequestInfo))
# Copies: sync_writes_max_allowed_replicas of kv_engine, and the active one.
_MOST_COPIES = 3
# Seconds, for a request without a timeout of its own.
_DEFAULT_TIMEOUT = 30.0

# Stores the new version and returns the response. Its argument says whether the prepare gets its seqno now, too.
Write = Callable[[bool], Frame]


class Durability(NamedTuple):
    """Requirement of a write; `timeout` is in seconds."""

    level: DurabilityLevel
    timeout: float


def carry_out(connection: ServerConnection, frame: Frame, ref: DocumentRef, write: Write) -> Frame | None:
    """Carry out a write whose conditions hold, and return its response; None if it waits for its durability."""
    durability = _required(frame)
    if durability is None:
        return write(False)
    if not _is_possible(connection.bucket, ref.vbucket.number):
        raise Refusal(Status.DURABILITY_IMPOSSIBLE)
    prepared = ref.vbucket.high_seqno + 1
    pending = _PendingWrite(connection, frame, ref, write, durability, prepared)
    if pending.reached:
        return _with_token(write(True), prepared, connection.bucket.release)
    pending.begin()
    return None


def check_not_pending(ref: DocumentRef) -> None:
    """Refuse a change of a document that a durable write is about to change."""
    if (ref.collection_id, ref.key) in ref.vbucket.prepared:
        raise Refusal(Status.SYNC_WRITE_IN_PROGRESS)


def _required(frame: Frame) -> Durability | None:
    """Return the durability that a request requires; refuse framing extras that are unknown or wrong."""
    found = None
    for info in frame.frame_info:
        if info.id not in _KNOWN_INFOS:
            raise Refusal(Status.UNKNOWN_FRAME_INFO)
        if info.id == RequestInfo.DURABILITY:
            if len(info.data) not in (1, 3):
                raise Refusal(Status.EINVAL, "Invalid durability requirements")
            if info.data[0] not in list(DurabilityLevel):
                raise Refusal(Status.DURABILITY_INVALID_LEVEL)
            milliseconds = int.from_bytes(info.data[1:], "big")
            found = Durability(DurabilityLevel(info.data[0]), milliseconds / 1000 or _DEFAULT_TIMEOUT)
    return found


def _with_token(answer: Frame, prepared: int, release: Release) -> Frame:
    """Return the response with the mutation token of the release, which may have the seqno of the prepare."""
    if not release.tokens_are_of_prepares or "seqno" not in answer.fields:
        return answer
    return replace(answer, fields={**answer.fields, "seqno": prepared})


def _majority(bucket: BucketStore) -> int:
    return (bucket.replicas + 1) // 2 + 1


def _is_possible(bucket: BucketStore, vbucket: int) -> bool:
    """Return whether the map has enough copies, as ReplicationChain::isDurabilityPossible of kv_engine does."""
    copies = sum(owner != NOBODY for owner in bucket.owners[vbucket])
    return _majority(bucket) <= copies <= _MOST_COPIES


@dataclass(eq=False)
class _PendingWrite:
    """Durable write that waits for copies: meanwhile the document cannot be changed."""

    connection: ServerConnection
    frame: Frame
    ref: DocumentRef
    write: Write
    durability: Durability
    prepared_seqno: int
    timeout_at: float = 0.0

    @property
    def reached(self) -> bool:
        """True once enough copies have the prepare, the active one among them."""
        bucket, number = self.connection.bucket, self.ref.vbucket.number
        active, *replicas = bucket.owners[number]
        have = [
            node
            for owner in replicas
            if owner != NOBODY and (node := bucket.nodes[owner]).alive and not bucket.replica_lag
        ]
        if self.durability.level is DurabilityLevel.PERSIST_TO_MAJORITY:
            have = [node for node in have if node.persists]
        active_has = self.durability.level is DurabilityLevel.MAJORITY or bucket.nodes[active].persists
        return active_has and len(have) + 1 >= _majority(bucket)

    @property
    def _vbucket(self) -> VbucketStore:
        return self.ref.vbucket

    @property
    def _identity(self) -> Identity:
        return self.ref.collection_id, self.ref.key

    @property
    def _lost(self) -> bool:
        """True if the node no longer has the active copy."""
        bucket, number = self.connection.bucket, self._vbucket.number
        owner = bucket.owners[number][0]
        return self._vbucket.state is not VbucketState.ACTIVE or owner != self.connection.node.number

    @property
    def _name(self) -> str:
        return f"durable write {id(self)}"

    def begin(self) -> None:
        """Prepare the write."""
        self.timeout_at = self.connection.now + self.durability.timeout
        self._vbucket.skip_seqno(self._identity)
        self._vbucket.prepared.add(self._identity)
        self.connection.notifiers[self._name] = self.notify
        self.connection.timers.append(self)
        self.connection.on_close.append(self._end)

    def due(self) -> float:
        return self.timeout_at

    def tick(self, now: float) -> None:
        """Do nothing: `notify` runs before the next send, and the timer has only to cause one."""

    def notify(self, connection: ServerConnection) -> None:
        """Commit the write once enough copies have it; abort it after the timeout."""
        if self._lost or connection.now >= self.timeout_at:
            self._end()
            connection.queue(response(self.frame, Status.SYNC_WRITE_AMBIGUOUS))
            if not self._lost:
                # The abort has a seqno, too.
                self._vbucket.skip_seqno(self._identity)
        elif self.reached:
            self._end()
            connection.queue(_with_token(self.write(False), self.prepared_seqno, connection.bucket.release))

    def _end(self) -> None:
        self._vbucket.prepared.discard(self._identity)
        self.connection.notifiers.pop(self._name, None)
        if self in self.connection.timers:
            self.connection.timers.remove(self)
        if self._end in self.connection.on_close:
            self.connection.on_close.remove(self._end)
