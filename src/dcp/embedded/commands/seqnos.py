"""Seqnos of vbuckets: all at once, of one with its history, and after they were persisted. Also GET_RANDOM_KEY."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dcp.embedded.commands.collections import unknown_collection
from dcp.embedded.commands.documents import live_vbucket, response_key, response_value
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.refusals import Refusal
from dcp.embedded.release import ReleaseNumber
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.wire.frame import Frame
from dcp.wire.memcached import SEQNOS, Feature, Status, VbucketState

_OBSERVE_SEQNO: ReleaseNumber = (4, 0)
_BY_COLLECTION: ReleaseNumber = (7, 0)
# Seconds for which SEQNO_PERSISTENCE waits, and how many may wait on a connection.
_PERSISTENCE_TIMEOUT = 30.0
_MAX_WAITS = 1024


def get_all_vb_seqnos(connection: ServerConnection, frame: Frame) -> Frame:
    state = VbucketState(_requested_state(frame))
    collection = _requested_collection(connection, frame)
    rows = []
    for vbucket in _in_state(connection, state):
        seqno = vbucket.high_seqno if collection is None else vbucket.high_seqno_of(collection)
        if seqno is not None:
            rows.append((vbucket.number, seqno))
    return response(frame, value=SEQNOS.encode(rows))


def _requested_state(frame: Frame) -> int:
    state = int(frame.fields.get("state", VbucketState.ALIVE))
    if state not in list(VbucketState):
        raise Refusal(Status.EINVAL, "Expected a state of 0 to 4")
    return state


def _requested_collection(connection: ServerConnection, frame: Frame) -> int | None:
    """Return the collection of the request; None for the whole vbucket."""
    by_collection = connection.bucket.release.number >= _BY_COLLECTION
    if "collection_id" not in frame.fields:
        # Since 7.0, clients without collections get the seqnos of the default collection.
        return 0 if by_collection and not connection.has(Feature.COLLECTIONS) else None
    if not by_collection or not connection.has(Feature.COLLECTIONS):
        raise Refusal(Status.EINVAL)
    collection = int(frame.fields["collection_id"])
    if collection not in connection.bucket.manifest.collections():
        raise unknown_collection(Status.UNKNOWN_COLLECTION, connection.bucket.manifest)
    return collection


def _in_state(connection: ServerConnection, state: VbucketState) -> Iterator[VbucketStore]:
    for _, vbucket in sorted(connection.node.vbuckets.items()):
        alive = vbucket.state is not VbucketState.DEAD
        if alive if state is VbucketState.ALIVE else vbucket.state is state:
            yield vbucket


def observe_seqno(connection: ServerConnection, frame: Frame) -> Frame:
    if connection.bucket.release.number < _OBSERVE_SEQNO:
        raise Refusal(Status.UNKNOWN_COMMAND)
    vbucket = live_vbucket(connection, frame.vbucket)
    vbuuid = int(frame.fields["vbuuid"])
    end = vbucket.log.end_of(vbuuid, vbucket.high_seqno)
    if end is None:
        raise Refusal(Status.KEY_ENOENT)
    newest = vbucket.log.newest.vbuuid
    # Format 1 answers for an older history: up to which seqno it is part of the present one.
    older = {} if vbuuid == newest else {"old_vbuuid": vbuuid, "old_seqno": end}
    return response(
        frame,
        fields={
            "format": len(older) and 1,
            "vbucket_id": vbucket.number,
            "vbuuid": newest,
            "persisted_seqno": vbucket.persisted_seqno,
            "seqno": vbucket.high_seqno,
            **older,
        },
    )


@dataclass(eq=False)
class _PersistenceWait:
    """Response that is held back until a seqno is persisted or the timeout has passed."""

    vbucket: VbucketStore
    seqno: int
    request: Frame
    timeout_at: float
    answer: Callable[[], Frame]

    @property
    def reached(self) -> bool:
        return self.vbucket.persisted_seqno >= self.seqno

    @property
    def name(self) -> str:
        return f"persistence {id(self)}"

    def due(self) -> float:
        return self.timeout_at

    def tick(self, now: float) -> None:
        """Do nothing: `notify` runs before the next send, and the timer has only to cause one."""

    def notify(self, connection: ServerConnection) -> None:
        if self.reached or connection.now >= self.timeout_at:
            del connection.notifiers[self.name]
            connection.timers.remove(self)
            self._finish(connection)

    def _finish(self, connection: ServerConnection) -> None:
        try:
            if not self.reached:
                raise Refusal(Status.ETMPFAIL)
            connection.queue(self.answer())
        except Refusal as refusal:
            connection.refuse(self.request, refusal)


def seqno_persistence(connection: ServerConnection, frame: Frame) -> Frame | None:
    vbucket, seqno = live_vbucket(connection, frame.vbucket), int(frame.fields["seqno"])
    return wait_for_persistence(connection, frame, vbucket, seqno, _PERSISTENCE_TIMEOUT, lambda: response(frame))


def wait_for_persistence(
    connection: ServerConnection,
    frame: Frame,
    vbucket: VbucketStore,
    seqno: int,
    seconds: float,
    answer: Callable[[], Frame],
) -> Frame | None:
    """Return the answer to a request once a seqno is persisted; None if that has to be waited for.

    The request is refused with ETMPFAIL if it takes longer than some seconds, and if too many others wait.
    """
    wait = _PersistenceWait(vbucket, seqno, frame, connection.now + seconds, answer)
    if wait.reached:
        return answer()
    if len(connection.notifiers) >= _MAX_WAITS:
        raise Refusal(Status.ETMPFAIL)
    connection.notifiers[wait.name] = wait.notify
    connection.timers.append(wait)
    return None


def get_random_key(connection: ServerConnection, frame: Frame) -> Frame:
    collection = int(frame.fields.get("collection_id", 0))
    if collection not in connection.bucket.manifest.collections():
        raise unknown_collection(Status.UNKNOWN_COLLECTION, connection.bucket.manifest)
    vbuckets = list(_in_state(connection, VbucketState.ACTIVE))
    random.shuffle(vbuckets)
    for vbucket in vbuckets:
        documents = [
            item for item in vbucket if isinstance(item, StoredItem) and item.alive and item.collection_id == collection
        ]
        if documents:
            item = random.choice(documents)
            value, datatype = response_value(connection, item)
            key = response_key(connection, item)
            return response(frame, fields={"flags": item.flags}, key=key, value=value, datatype=datatype, cas=item.cas)
    raise Refusal(Status.KEY_ENOENT)


HANDLERS: dict[str, Handler] = {
    "get_all_vb_seqnos": get_all_vb_seqnos,
    "observe_seqno": observe_seqno,
    "seqno_persistence": seqno_persistence,
    "get_random_key": get_random_key,
}
