"""Commands about parts of documents: lookups and mutations of one or several paths, in bodies and xattrs.

They follow daemon/subdocument.cc of kv_engine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from dcp.embedded.commands.documents import DocumentRef, document_ref, find, replica_ref
from dcp.embedded.commands.durability import carry_out, check_not_pending, check_readable
from dcp.embedded.commands.locks import check_cas, readable_cas
from dcp.embedded.commands.replicas import replica_item
from dcp.embedded.commands.subdoc_document import DocumentParts, WriteIdentity
from dcp.embedded.commands.subdoc_request import (
    CREATING,
    SINGLE_LOOKUPS,
    SINGLE_MUTATIONS,
    DocFlag,
    SubdocRequest,
    lookup_request,
    mutation_request,
    single_request,
)
from dcp.embedded.commands.writes import absolute_expiry, write_response
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.refusals import Refusal
from dcp.embedded.store import StoredItem
from dcp.embedded.subdocument import SubdocumentError
from dcp.wire.frame import Frame
from dcp.wire.framing import RequestInfo
from dcp.wire.memcached import Status

_LARGEST_BODY = 20 << 20
_LOOKUP_RESULT, _MUTATION_RESULT, _FAILED_MUTATION = struct.Struct(">HI"), struct.Struct(">BHI"), struct.Struct(">BH")


# Lookups.


def _lookup(connection: ServerConnection, frame: Frame) -> Frame:
    """Answer a command that reads one path."""
    request = single_request(connection, frame)
    ref, item = _readable(connection, frame, request)
    try:
        value = _parts(connection, ref, item).look_up(request.operations[0])
    except SubdocumentError as error:
        raise Refusal(error.status) from None
    return _found(connection, frame, ref, item, Status.SUCCESS, value)


def multi_lookup(connection: ServerConnection, frame: Frame) -> Frame:
    request = lookup_request(connection, frame)
    ref, item = _readable(connection, frame, request)
    parts, results, overall = _parts(connection, ref, item), b"", Status.SUCCESS
    for operation in request.operations:
        status, value = Status.SUCCESS, b""
        try:
            value = parts.look_up(operation)
        except SubdocumentError as error:
            status, overall = error.status, Status.SUBDOC_MULTI_PATH_FAILURE
        results += _LOOKUP_RESULT.pack(status, len(value)) + value
    return _found(connection, frame, ref, item, overall, results)


def _readable(connection: ServerConnection, frame: Frame, request: SubdocRequest) -> tuple[DocumentRef, StoredItem]:
    """Return the document of a lookup, which may be a tombstone if the client wants that."""
    if DocFlag.REPLICA_READ in request.flags:
        ref = replica_ref(connection, frame)
        item = replica_item(connection, ref)
    else:
        ref = document_ref(connection, frame)
        check_readable(connection, ref)
        item = _present(connection, ref, request.flags)
    if item is None or not (item.alive or DocFlag.ACCESS_DELETED in request.flags):
        raise Refusal(Status.KEY_ENOENT)
    if DocFlag.REVIVE in request.flags and item.alive:
        raise Refusal(Status.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS)
    return ref, item


def _present(connection: ServerConnection, ref: DocumentRef, flags: DocFlag) -> StoredItem | None:
    """Return the document or, with ACCESS_DELETED, its tombstone."""
    item = find(connection, ref)
    if item is None and DocFlag.ACCESS_DELETED in flags:
        return ref.vbucket.get(ref.collection_id, ref.key)
    return item


def _found(
    connection: ServerConnection, frame: Frame, ref: DocumentRef, item: StoredItem, status: Status, value: bytes
) -> Frame:
    if not item.alive:
        failed = status is Status.SUBDOC_MULTI_PATH_FAILURE
        status = Status.SUBDOC_MULTI_PATH_FAILURE_DELETED if failed else Status.SUBDOC_SUCCESS_DELETED
    return response(frame, status, value=value, cas=readable_cas(connection, ref, item))


def _parts(connection: ServerConnection, ref: DocumentRef, item: StoredItem | None) -> DocumentParts:
    return DocumentParts(ref, item, connection.bucket.release, connection.bucket.now)


# Mutations.


def _mutate(connection: ServerConnection, frame: Frame) -> Frame | None:
    """Answer a command that changes one path."""
    try:
        return _write(connection, frame, single_request(connection, frame), lambda index, value: value)
    except _FailedOperation as failed:
        raise Refusal(failed.status) from None


def multi_mutation(connection: ServerConnection, frame: Frame) -> Frame | None:
    def result(index: int, value: bytes) -> bytes:
        return _MUTATION_RESULT.pack(index, Status.SUCCESS, len(value)) + value

    try:
        return _write(connection, frame, mutation_request(connection, frame), result)
    except _FailedOperation as failed:
        body = _FAILED_MUTATION.pack(failed.index, failed.status)
        raise Refusal(Status.SUBDOC_MULTI_PATH_FAILURE, value=body) from None


class _FailedOperation(Exception):
    """An operation of a mutation is not possible."""

    def __init__(self, index: int, status: Status) -> None:
        super().__init__(index, status)
        self.index, self.status = index, status


def _write(
    connection: ServerConnection, frame: Frame, request: SubdocRequest, result: Callable[[int, bytes], bytes]
) -> Frame | None:
    """Make a new version of a document with all operations, or none."""
    flags = request.flags
    ref = document_ref(connection, frame)
    old = _present(connection, ref, flags)
    check_not_pending(ref)
    _check_presence(connection, frame, ref, old, flags)
    parts = _parts(connection, ref, old)
    if old is None:
        parts.body = _empty_body(request)
    identity, results = WriteIdentity(connection.bucket.next_cas(), ref.vbucket.high_seqno + 1), b""
    for index, operation in enumerate(request.operations):
        try:
            changed = parts.change(operation, identity, create=bool(flags & CREATING))
        except SubdocumentError as error:
            raise _FailedOperation(index, error.status) from None
        results += result(index, changed) if changed else b""
    if len(parts.body) > _LARGEST_BODY:
        raise Refusal(Status.E2BIG)
    on_tombstone = DocFlag.CREATE_AS_DELETED in flags if old is None else not old.alive
    stays_deleted = on_tombstone and DocFlag.REVIVE not in flags
    if stays_deleted and parts.body:
        raise Refusal(Status.SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE, "A deleted document can't have a value")
    if old is None and stays_deleted and ref.vbucket.get(ref.collection_id, ref.key) is not None:
        # A tombstone that the client did not want to see: kv_engine adds none over it, and MKDOC tries 100 times.
        raise Refusal(Status.NOT_STORED if DocFlag.ADD in flags else Status.ETMPFAIL)
    expiry = _expiry(connection, frame, request, old)

    version = connection.bucket.new_version(
        ref.vbucket,
        ref.key,
        parts.value,
        event="deletion" if stays_deleted or parts.removed else "mutation",
        collection_id=ref.collection_id,
        flags=_user_flags(request, old),
        expiry=expiry,
        datatype=parts.datatype,
        cas=identity.cas,
    )
    status = Status.SUBDOC_SUCCESS_DELETED if stays_deleted else Status.SUCCESS

    def answer(item: StoredItem) -> Frame:
        return write_response(connection, frame, ref, item, value=results, status=status)

    return carry_out(connection, frame, ref, version, answer)


def _check_presence(
    connection: ServerConnection, frame: Frame, ref: DocumentRef, old: StoredItem | None, flags: DocFlag
) -> None:
    if old is None:
        if not flags & CREATING:
            raise Refusal(Status.KEY_ENOENT)
        return
    if DocFlag.ADD in flags:
        raise Refusal(Status.KEY_EEXISTS)
    check_cas(connection, frame, ref, old)
    if DocFlag.REVIVE in flags and old.alive:
        raise Refusal(Status.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS)


def _empty_body(request: SubdocRequest) -> bytes:
    """Return the body with which a document is created: the first path says which kind it is of."""
    if DocFlag.CREATE_AS_DELETED in request.flags:
        return b""
    for operation in request.operations:
        if not operation.on_whole_document:
            return b"[]" if not operation.path or operation.path.startswith("[") else b"{}"
    return b""


def _user_flags(request: SubdocRequest, old: StoredItem | None) -> int:
    if request.user_flags is not None:
        return request.user_flags
    return 0 if old is None else old.flags


def _expiry(connection: ServerConnection, frame: Frame, request: SubdocRequest, old: StoredItem | None) -> int:
    """Return the expiry of the new version: a request without one removes it."""
    if old is not None and any(info.id == RequestInfo.PRESERVE_TTL for info in frame.frame_info):
        return old.expiry
    return absolute_expiry(connection, request.expiry)


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys((f"subdoc_{name}" for name in SINGLE_LOOKUPS), _lookup),
    **dict.fromkeys((f"subdoc_{name}" for name in SINGLE_MUTATIONS), _mutate),
    "subdoc_multi_lookup": multi_lookup,
    "subdoc_multi_mutation": multi_mutation,
}
