"""Documents of a request: which one it is about, and the value as the client sends or receives it."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from dcp.embedded.commands.collections import unknown_collection
from dcp.embedded.connection import ServerConnection
from dcp.embedded.document import body_of, inflate_received
from dcp.embedded.refusals import Refusal
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.errors import RemoteProtocolError
from dcp.wire.document import Datatype, join_collection, split_collection
from dcp.wire.frame import Frame
from dcp.wire.memcached import MAX_FRAME, Feature, Status, VbucketState

# Keys outside the default collection leave room for the id of the collection.
_LONGEST_KEY, _LONGEST_KEY_IN_COLLECTION = 250, 246


class DocumentRef(NamedTuple):
    """Document that a request is about, on the active copy of its vbucket."""

    vbucket: VbucketStore
    collection_id: int
    key: bytes


def document_ref(connection: ServerConnection, frame: Frame) -> DocumentRef:
    """Return the document of a request; refuse if key, vbucket or collection are not valid here."""
    document = _split_key(connection, frame.key)
    return _ref(connection, active_vbucket(connection, frame.vbucket), *document)


def replica_ref(connection: ServerConnection, frame: Frame) -> DocumentRef:
    """Return the document of a request on a replica; refuse with NOT_MY_VBUCKET if the node has none."""
    ref = copy_ref(connection, frame.key, frame.vbucket)
    if ref.vbucket.state is not VbucketState.REPLICA:
        raise Refusal(Status.NOT_MY_VBUCKET)
    return ref


def copy_ref(connection: ServerConnection, key: bytes, number: int) -> DocumentRef:
    """Return the document of a key on the node's copy of a vbucket, active or not."""
    document = _split_key(connection, key)
    return _ref(connection, live_vbucket(connection, number), *document)


def _ref(connection: ServerConnection, vbucket: VbucketStore, collection_id: int, key: bytes) -> DocumentRef:
    if collection_id not in connection.bucket.manifest.collections():
        raise unknown_collection(Status.UNKNOWN_COLLECTION, connection.bucket.manifest)
    return DocumentRef(vbucket, collection_id, key)


def _split_key(connection: ServerConnection, given: bytes) -> tuple[int, bytes]:
    collection_id, key = 0, given
    if connection.has(Feature.COLLECTIONS):
        try:
            collection_id, key = split_collection(given)
        except RemoteProtocolError as error:
            raise Refusal(Status.EINVAL, str(error)) from None
    most = _LONGEST_KEY_IN_COLLECTION if collection_id else _LONGEST_KEY
    if not 1 <= len(key) <= most:
        raise Refusal(Status.EINVAL, f"Expected a key of 1 to {most} bytes")
    return collection_id, key


def active_vbucket(connection: ServerConnection, number: int) -> VbucketStore:
    """Return the active copy of a vbucket; refuse with NOT_MY_VBUCKET if another node has it."""
    node = connection.node
    vbucket = node.vbucket(number)
    # The map decides: a copy on a node that was failed over may still believe that it is active.
    if (
        vbucket is None
        or vbucket.state is not VbucketState.ACTIVE
        or connection.bucket.owners[number][0] != node.number
    ):
        raise Refusal(Status.NOT_MY_VBUCKET)
    return vbucket


def live_vbucket(connection: ServerConnection, number: int) -> VbucketStore:
    """Return the node's copy of a vbucket, active or not; refuse with NOT_MY_VBUCKET if it is missing or dead."""
    vbucket = connection.node.vbucket(number)
    if vbucket is None or vbucket.state is VbucketState.DEAD:
        raise Refusal(Status.NOT_MY_VBUCKET)
    return vbucket


def find(connection: ServerConnection, ref: DocumentRef) -> StoredItem | None:
    """Return the document unless it is missing, deleted or expired."""
    return connection.bucket.get(ref.key, ref.collection_id, ref.vbucket.number)


def response_key(connection: ServerConnection, item: StoredItem) -> bytes:
    """Return the key as the client receives it, with the collection id if it negotiated collections."""
    return join_collection(item.collection_id, item.key) if connection.has(Feature.COLLECTIONS) else item.key


def response_value(connection: ServerConnection, item: StoredItem) -> tuple[bytes, int]:
    """Return body and datatype in a form that the client negotiated."""
    sees_json = connection.has(Feature.JSON) or connection.bucket.release.json_unasked
    json_bit = item.datatype & Datatype.JSON if sees_json else 0
    # Xattrs have to be cut off, for which the value has to be inflated.
    compressed = item.datatype & Datatype.SNAPPY and not item.datatype & Datatype.XATTR
    if compressed and connection.has(Feature.SNAPPY):
        return item.value, json_bit | Datatype.SNAPPY
    return body_of(item), json_bit


def received_value(connection: ServerConnection, frame: Frame) -> bytes:
    """Return the value that a client wants to store, inflated."""
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
