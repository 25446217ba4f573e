"""Which document a command is about, and what its client gets to see of it."""

from __future__ import annotations

import json
from typing import NamedTuple, NoReturn

from dcp.embedded.commands.collections import unknown
from dcp.embedded.compression import inflate, inflate_received
from dcp.embedded.connection import Refusal, ServerConnection
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.errors import RemoteProtocolError
from dcp.wire.document import Datatype, join_collection, split_collection, split_xattrs
from dcp.wire.frame import Frame
from dcp.wire.memcached import MAX_FRAME, Feature, Status, VbucketState

_LONGEST_KEY, _LONGEST_KEY_ELSEWHERE = 250, 246


class DocumentRef(NamedTuple):
    vbucket: VbucketStore
    collection_id: int
    key: bytes


def document_ref(connection: ServerConnection, frame: Frame) -> DocumentRef:
    """Where the document of a request is, on the node that holds it."""
    collection_id, key = _split(connection, frame)
    vbucket = active_vbucket(connection, frame.vbucket)
    if collection_id not in connection.bucket.manifest.collections():
        raise unknown(Status.UNKNOWN_COLLECTION, connection.bucket.manifest)
    return DocumentRef(vbucket, collection_id, key)


def _split(connection: ServerConnection, frame: Frame) -> tuple[int, bytes]:
    collection_id, key = 0, frame.key
    if connection.has(Feature.COLLECTIONS):
        try:
            collection_id, key = split_collection(frame.key)
        except RemoteProtocolError as error:
            raise Refusal(Status.EINVAL, str(error)) from None
    most = _LONGEST_KEY_ELSEWHERE if collection_id else _LONGEST_KEY
    if not 1 <= len(key) <= most:
        raise Refusal(Status.EINVAL, f"Expected a key of 1 to {most} bytes")
    return collection_id, key


def active_vbucket(connection: ServerConnection, number: int) -> VbucketStore:
    """The copy that takes reads and writes, if this node has it."""
    vbucket = connection.node.vbucket(number)
    if (
        vbucket is None
        or vbucket.state is not VbucketState.ACTIVE
        or connection.bucket.owners[number][0] != connection.node.number
    ):
        raise Refusal(Status.NOT_MY_VBUCKET)
    return vbucket


def find(connection: ServerConnection, ref: DocumentRef) -> StoredItem | None:
    """The document that is there now."""
    return connection.bucket.get(ref.key, ref.collection_id, ref.vbucket.number)


def shown_key(connection: ServerConnection, item: StoredItem) -> bytes:
    return join_collection(item.collection_id, item.key) if connection.has(Feature.COLLECTIONS) else item.key


def body_of(item: StoredItem) -> bytes:
    """The document without its attributes, as it was before anybody compressed it."""
    value = inflate(item.value) if item.datatype & Datatype.SNAPPY else item.value
    return split_xattrs(value)[1] if item.datatype & Datatype.XATTR else value


def shown_value(connection: ServerConnection, item: StoredItem) -> tuple[bytes, int]:
    """The body and its datatype, in a form that the client agreed on."""
    tells = connection.has(Feature.JSON) or connection.bucket.release.json_unasked
    json_bit = item.datatype & Datatype.JSON if tells else 0
    compressed = item.datatype & Datatype.SNAPPY and not item.datatype & Datatype.XATTR
    if compressed and connection.has(Feature.SNAPPY):
        return item.value, json_bit | Datatype.SNAPPY
    return body_of(item), json_bit


def received_value(connection: ServerConnection, frame: Frame) -> bytes:
    """The bytes that a client wants to store, inflated."""
    if not frame.datatype & Datatype.SNAPPY:
        if frame.datatype not in (0, Datatype.JSON):
            _refuse_datatype()
        return frame.value
    if not connection.has(Feature.SNAPPY) or frame.datatype not in (Datatype.SNAPPY, Datatype.SNAPPY | Datatype.JSON):
        _refuse_datatype()
    value = inflate_received(frame.value, MAX_FRAME)
    if value is None:
        raise Refusal(Status.EINVAL, "Expected a value that can be inflated")
    return value


def _refuse_datatype() -> NoReturn:
    raise Refusal(Status.EINVAL, "Request has a datatype that was not agreed on")


def is_json(value: bytes) -> bool:
    """Servers look for themselves, whatever the client says."""
    try:
        json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
