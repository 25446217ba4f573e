"""How far vbuckets are."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from dcp.embedded.commands.collections import unknown
from dcp.embedded.commands.documents import shown_key, shown_value
from dcp.embedded.connection import Handler, Refusal, ServerConnection, answer
from dcp.embedded.release import ReleaseNumber
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.wire.frame import Frame
from dcp.wire.memcached import SEQNOS, Feature, Status, VbucketState

_OBSERVED: ReleaseNumber = (4, 0)
_BY_COLLECTION: ReleaseNumber = (7, 0)
# How long a client waits at most until what it asks about is on disk.
_PATIENCE = 30.0
_MOST_WAITS = 1024


def get_all_vb_seqnos(connection: ServerConnection, frame: Frame) -> Frame:
    state = VbucketState(_known_state(frame))
    collection = _collection(connection, frame)
    rows = []
    for vbucket in _in_state(connection, state):
        seqno = vbucket.high_seqno if collection is None else vbucket.high_seqno_of(collection)
        if seqno is not None:
            rows.append((vbucket.number, seqno))
    return answer(frame, value=SEQNOS.encode(rows))


def _known_state(frame: Frame) -> int:
    state = int(frame.fields.get("state", VbucketState.ALIVE))
    if state not in list(VbucketState):
        raise Refusal(Status.EINVAL, "Expected a state of 0 to 4")
    return state


def _collection(connection: ServerConnection, frame: Frame) -> int | None:
    """The collection that is asked about; None for all that there is."""
    by_collection = connection.bucket.release.number >= _BY_COLLECTION
    if "collection_id" not in frame.fields:
        return 0 if by_collection and not connection.has(Feature.COLLECTIONS) else None
    if not by_collection or not connection.has(Feature.COLLECTIONS):
        raise Refusal(Status.EINVAL)
    asked = int(frame.fields["collection_id"])
    if asked not in connection.bucket.manifest.collections():
        raise unknown(Status.UNKNOWN_COLLECTION, connection.bucket.manifest)
    return asked


def _in_state(connection: ServerConnection, state: VbucketState) -> Iterator[VbucketStore]:
    for _, vbucket in sorted(connection.node.vbuckets.items()):
        alive = vbucket.state is not VbucketState.DEAD
        if alive if state is VbucketState.ALIVE else vbucket.state is state:
            yield vbucket


def observe_seqno(connection: ServerConnection, frame: Frame) -> Frame:
    if connection.bucket.release.number < _OBSERVED:
        raise Refusal(Status.UNKNOWN_COMMAND)
    vbucket = living_vbucket(connection, frame.vbucket)
    asked = int(frame.fields["vbuuid"])
    end = vbucket.log.end_of(asked, vbucket.high_seqno)
    if end is None:
        raise Refusal(Status.KEY_ENOENT)
    newest = vbucket.log.newest.vbuuid
    older = {} if asked == newest else {"old_vbuuid": asked, "old_seqno": end}
    return answer(
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


def living_vbucket(connection: ServerConnection, number: int) -> VbucketStore:
    """A copy of any kind, unless it is dead."""
    vbucket = connection.node.vbucket(number)
    if vbucket is None or vbucket.state is VbucketState.DEAD:
        raise Refusal(Status.NOT_MY_VBUCKET)
    return vbucket


@dataclass(eq=False)
class _Wait:
    """A client waits until a seqno is on disk, or until it has waited for long enough."""

    vbucket: VbucketStore
    request: Frame
    until: float

    @property
    def reached(self) -> bool:
        return self.vbucket.persisted_seqno >= int(self.request.fields["seqno"])

    @property
    def name(self) -> str:
        return f"persistence {id(self)}"

    def due(self) -> float:
        return self.until

    def tick(self, now: float) -> None:
        """What is to be said is said before the next sending."""

    def look(self, connection: ServerConnection) -> None:
        if self.reached or connection.now >= self.until:
            del connection.news[self.name]
            connection.timers.remove(self)
            connection.say(answer(self.request, Status.SUCCESS if self.reached else Status.ETMPFAIL))


def seqno_persistence(connection: ServerConnection, frame: Frame) -> Frame | None:
    wait = _Wait(living_vbucket(connection, frame.vbucket), frame, connection.now + _PATIENCE)
    if wait.reached:
        return answer(frame)
    if len(connection.news) >= _MOST_WAITS:
        raise Refusal(Status.ETMPFAIL)
    connection.news[wait.name] = wait.look
    connection.timers.append(wait)
    return None


def get_random_key(connection: ServerConnection, frame: Frame) -> Frame:
    collection = int(frame.fields.get("collection_id", 0))
    if collection not in connection.bucket.manifest.collections():
        raise unknown(Status.UNKNOWN_COLLECTION, connection.bucket.manifest)
    vbuckets = list(_in_state(connection, VbucketState.ACTIVE))
    random.shuffle(vbuckets)
    for vbucket in vbuckets:
        documents = [
            item for item in vbucket if isinstance(item, StoredItem) and item.alive and item.collection_id == collection
        ]
        if documents:
            item = random.choice(documents)
            value, datatype = shown_value(connection, item)
            key = shown_key(connection, item)
            return answer(frame, fields={"flags": item.flags}, key=key, value=value, datatype=datatype, cas=item.cas)
    raise Refusal(Status.KEY_ENOENT)


HANDLERS: dict[str, Handler] = {
    "get_all_vb_seqnos": get_all_vb_seqnos,
    "observe_seqno": observe_seqno,
    "seqno_persistence": seqno_persistence,
    "get_random_key": get_random_key,
}
