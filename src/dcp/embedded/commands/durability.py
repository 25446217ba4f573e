"""Durable writes, which servers call sync writes: they are done once a majority of the copies has them.

A durable write has two seqnos: that of its prepare, which only consumers with sync writes see, and that of the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from dcp.embedded.bucket import NOBODY, BucketStore
from dcp.embedded.commands.documents import DocumentRef
from dcp.embedded.connection import ServerConnection, response
from dcp.embedded.refusals import Refusal
from dcp.embedded.release import Release
from dcp.embedded.store import StoredItem
from dcp.wire.dcp import DurabilityLevel
from dcp.wire.frame import Frame
from dcp.wire.framing import RequestInfo
from dcp.wire.memcached import Status

_KNOWN_INFOS = frozenset(map(int, RequestInfo))
# Copies: sync_writes_max_allowed_replicas of kv_engine, and the active one.
_MOST_COPIES = 3
# Seconds, for a request without a timeout of its own.
_DEFAULT_TIMEOUT = 30.0

# Makes the response from the version that was stored.
Answer = Callable[[StoredItem], Frame]


class Durability(NamedTuple):
    """Requirement of a write; `timeout` is in seconds."""

    level: DurabilityLevel
    timeout: float


def carry_out(
    connection: ServerConnection, frame: Frame, ref: DocumentRef, version: StoredItem, answer: Answer
) -> Frame | None:
    """Store a version whose conditions hold, and return the response; None if it waits for its durability."""
    bucket, durability = connection.bucket, _required(frame)
    if durability is None:
        return answer(bucket.add(ref.vbucket, version))
    if not _is_possible(bucket, ref.vbucket.number):
        raise Refusal(Status.DURABILITY_IMPOSSIBLE)
    prepared_seqno = ref.vbucket.high_seqno + 1

    def answered(committed: StoredItem) -> Frame:
        return _with_token(answer(committed), prepared_seqno, bucket.release)

    def report(committed: StoredItem | None) -> None:
        if committed is None:
            connection.queue(response(frame, Status.SYNC_WRITE_AMBIGUOUS))
        else:
            connection.queue(answered(committed))

    timeout_at = connection.now + durability.timeout
    committed = bucket.durable_writes.begin(ref.vbucket, version, durability.level, timeout_at, report)
    return None if committed is None else answered(committed)


def check_not_pending(ref: DocumentRef) -> None:
    """Refuse a change of a document that a durable write is about to change."""
    if (ref.collection_id, ref.key) in ref.vbucket.prepared:
        raise Refusal(Status.SYNC_WRITE_IN_PROGRESS)


def check_readable(connection: ServerConnection, ref: DocumentRef) -> None:
    """Refuse to read a document whose durable write another copy has to commit again: clients may have seen it."""
    if connection.bucket.durable_writes.recommits(ref.vbucket, (ref.collection_id, ref.key)):
        raise Refusal(Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS)


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


def _is_possible(bucket: BucketStore, vbucket: int) -> bool:
    """Return whether the map has enough copies, as ReplicationChain::isDurabilityPossible of kv_engine does."""
    copies = sum(owner != NOBODY for owner in bucket.owners[vbucket])
    return bucket.durable_writes.majority <= copies <= _MOST_COPIES
