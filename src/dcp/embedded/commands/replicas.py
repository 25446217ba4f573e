"""Commands that clients send to copies of a vbucket: reads of a replica, and the state of documents on each copy."""

from __future__ import annotations

import struct
from enum import IntEnum

from dcp.embedded.commands.documents import DocumentRef, copy_ref, replica_ref
from dcp.embedded.commands.reads import document_response
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.refusals import Refusal
from dcp.embedded.store import StoredItem
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status

# Vbucket and length of a key before it, and state and CAS after it.
_BEFORE_KEY, _AFTER_KEY = struct.Struct(">HH"), struct.Struct(">BQ")


class KeyState(IntEnum):
    """State of a document on one copy."""

    NOT_PERSISTED = 0x00
    PERSISTED = 0x01
    NOT_FOUND = 0x80
    DELETED = 0x81


def get_replica(connection: ServerConnection, frame: Frame) -> Frame:
    item = replica_item(connection, replica_ref(connection, frame))
    if item is None or not item.alive:
        raise Refusal(Status.KEY_ENOENT)
    return document_response(connection, frame, item, item.cas)


def replica_item(connection: ServerConnection, ref: DocumentRef) -> StoredItem | None:
    """Return the version that a replica has; None for an expired one, which only the active copy makes a tombstone."""
    item = ref.vbucket.get(ref.collection_id, ref.key)
    return None if item is not None and item.alive and 0 < item.expiry <= connection.bucket.now else item


def observe(connection: ServerConnection, frame: Frame) -> Frame:
    value, at, found = frame.value, 0, b""
    while at < len(value):
        begin = at + _BEFORE_KEY.size
        if begin > len(value):
            raise Refusal(Status.EINVAL, "Requires vbid and keylen.")
        number, length = _BEFORE_KEY.unpack_from(value, at)
        if begin + length > len(value):
            raise Refusal(Status.EINVAL, "Incorrect keylen")
        key = value[begin : begin + length]
        found += value[at : begin + length] + _AFTER_KEY.pack(*_observed(copy_ref(connection, key, number)))
        at = begin + length
    # The CAS of the response is how long persistence takes: not known here.
    return response(frame, value=found)


def _observed(ref: DocumentRef) -> tuple[KeyState, int]:
    item = ref.vbucket.get(ref.collection_id, ref.key)
    if item is None:
        return KeyState.NOT_FOUND, 0
    if not item.alive:
        return KeyState.DELETED, item.cas
    return KeyState.PERSISTED if item.seqno <= ref.vbucket.persisted_seqno else KeyState.NOT_PERSISTED, item.cas


HANDLERS: dict[str, Handler] = {"get_replica": get_replica, "observe": observe}
