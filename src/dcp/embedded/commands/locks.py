"""Locks of documents: commands that lock and unlock one, and the checks of all that write one."""

from __future__ import annotations

from dcp.embedded.commands.documents import DocumentRef, document_ref, find, response_value
from dcp.embedded.commands.durability import check_not_pending
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.refusals import Refusal
from dcp.embedded.store import DocumentLock, StoredItem
from dcp.wire.frame import Frame
from dcp.wire.memcached import Feature, Status

# Seconds: getl_default_timeout and getl_max_timeout of kv_engine.
_DEFAULT_TIME, _LONGEST_TIME = 15, 30
# CAS that clients get of a locked document: no write may use it.
_HIDDEN_CAS = (1 << 64) - 1


def lock_of(connection: ServerConnection, ref: DocumentRef) -> DocumentLock | None:
    """Return the lock of a document, unless it has none or it is over."""
    lock = ref.vbucket.locks.get((ref.collection_id, ref.key))
    return lock if lock is not None and lock.until > connection.bucket.clock() else None


def readable_cas(connection: ServerConnection, ref: DocumentRef, item: StoredItem) -> int:
    """Return the CAS of a document for a client that reads it."""
    return item.cas if lock_of(connection, ref) is None else _HIDDEN_CAS


def check_cas(connection: ServerConnection, frame: Frame, ref: DocumentRef, old: StoredItem | None) -> None:
    """Refuse a write with another CAS than that of the lock or, without a lock, of the document."""
    if (lock := lock_of(connection, ref)) is not None:
        if frame.cas != lock.cas:
            raise locked(connection, Status.KEY_EEXISTS)
    elif frame.cas and old is None:
        raise Refusal(Status.KEY_ENOENT)
    elif frame.cas and old is not None and frame.cas != old.cas:
        raise Refusal(Status.KEY_EEXISTS)


def locked(connection: ServerConnection, otherwise: Status = Status.ETMPFAIL) -> Refusal:
    """Return the refusal of a command because of a lock. Older clients know another status for it."""
    return Refusal(Status.LOCKED if connection.has(Feature.XERROR) else otherwise)


def get_locked(connection: ServerConnection, frame: Frame) -> Frame:
    ref = document_ref(connection, frame)
    item = find(connection, ref)
    if item is None:
        raise Refusal(Status.KEY_ENOENT)
    check_not_pending(ref)
    if lock_of(connection, ref) is not None:
        raise locked(connection)
    seconds = int(frame.fields.get("lock_time", 0))
    if not 0 < seconds <= _LONGEST_TIME:
        seconds = _DEFAULT_TIME
    lock = DocumentLock(connection.bucket.next_cas(), connection.bucket.clock() + seconds)
    ref.vbucket.locks[ref.collection_id, ref.key] = lock
    value, datatype = response_value(connection, item)
    return response(frame, fields={"flags": item.flags}, value=value, datatype=datatype, cas=lock.cas)


def unlock_key(connection: ServerConnection, frame: Frame) -> Frame:
    ref = document_ref(connection, frame)
    if not frame.cas:
        raise Refusal(Status.EINVAL, "Request must include CAS")
    if find(connection, ref) is None:
        raise Refusal(Status.KEY_ENOENT)
    lock = lock_of(connection, ref)
    if lock is None:
        raise Refusal(Status.NOT_LOCKED if connection.bucket.release.tells_not_locked else Status.ETMPFAIL)
    if lock.cas != frame.cas:
        raise locked(connection)
    del ref.vbucket.locks[ref.collection_id, ref.key]
    return response(frame)


HANDLERS: dict[str, Handler] = {"get_locked": get_locked, "unlock_key": unlock_key}
