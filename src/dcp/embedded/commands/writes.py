"""Commands that write one document: store, append, touch, delete."""

from __future__ import annotations

from collections.abc import Callable

from dcp.embedded.commands.documents import DocumentRef, document_ref, find, received_value
from dcp.embedded.commands.durability import carry_out, check_not_pending
from dcp.embedded.commands.locks import check_cas, lock_of, locked
from dcp.embedded.commands.reads import document_response, existing, quiet_on_miss
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.document import body_of, inflate, is_json
from dcp.embedded.refusals import Refusal
from dcp.embedded.store import StoredItem
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.frame import Frame
from dcp.wire.framing import RequestInfo
from dcp.wire.memcached import Feature, Status

# Seconds. As in memcached: an expiry up to 30 days counts from now, a larger one is a Unix time.
_LONGEST_RELATIVE_EXPIRY = 30 * 24 * 3600
_LARGEST_BODY = 20 << 20

Condition = Callable[["StoredItem | None"], object]


def set_(connection: ServerConnection, frame: Frame) -> Frame | None:
    return _store(connection, frame, lambda old: None)


def add(connection: ServerConnection, frame: Frame) -> Frame | None:
    if frame.cas:
        raise Refusal(Status.EINVAL, "A document that is not there has no CAS")
    return _store(connection, frame, _missing)


def replace(connection: ServerConnection, frame: Frame) -> Frame | None:
    return _store(connection, frame, existing)


def _missing(old: StoredItem | None) -> None:
    if old is not None:
        raise Refusal(Status.KEY_EEXISTS)


def _store(connection: ServerConnection, frame: Frame, check: Condition) -> Frame | None:
    ref = document_ref(connection, frame)
    body = received_value(connection, frame)
    old = find(connection, ref)
    check(old)
    expiry = absolute_expiry(connection, int(frame.fields["expiry"]))
    if old is not None and any(info.id == RequestInfo.PRESERVE_TTL for info in frame.frame_info):
        expiry = old.expiry
    # A compressed value is stored as it was sent, unless xattrs have to be joined with it.
    compressed = frame.value if frame.datatype & Datatype.SNAPPY else None
    return write_document(connection, frame, ref, old, body, int(frame.fields["flags"]), expiry, compressed)


def append(connection: ServerConnection, frame: Frame) -> Frame | None:
    return _join(connection, frame, lambda old, new: old + new)


def prepend(connection: ServerConnection, frame: Frame) -> Frame | None:
    return _join(connection, frame, lambda old, new: new + old)


def _join(connection: ServerConnection, frame: Frame, join: Callable[[bytes, bytes], bytes]) -> Frame | None:
    ref = document_ref(connection, frame)
    addition = received_value(connection, frame)
    old = find(connection, ref)
    if old is None:
        raise Refusal(Status.NOT_STORED)
    return write_document(connection, frame, ref, old, join(body_of(old), addition), old.flags, old.expiry)


def get_and_touch(connection: ServerConnection, frame: Frame) -> Frame:
    item = _touch(connection, frame)
    return document_response(connection, frame, item, item.cas)


def touch(connection: ServerConnection, frame: Frame) -> Frame:
    return response(frame, cas=_touch(connection, frame).cas)


def _touch(connection: ServerConnection, frame: Frame) -> StoredItem:
    ref = document_ref(connection, frame)
    old = existing(find(connection, ref))
    check_not_pending(ref)
    if lock_of(connection, ref) is not None:
        raise locked(connection)
    expiry = absolute_expiry(connection, int(frame.fields["expiry"]))
    if old.expiry == expiry:
        # Nothing changes, so there is no new version and no seqno.
        return old
    version = _new_version(connection, ref, old.value, old.flags, expiry, old.datatype)
    return connection.bucket.add(ref.vbucket, version)


def delete(connection: ServerConnection, frame: Frame) -> Frame | None:
    ref = document_ref(connection, frame)
    old = existing(find(connection, ref))
    check_not_pending(ref)
    check_cas(connection, frame, ref, old)

    tombstone = connection.bucket.new_tombstone(ref.vbucket, old)
    return carry_out(connection, frame, ref, tombstone, lambda item: write_response(connection, frame, ref, item))


# Common parts of all writes.


def write_document(
    connection: ServerConnection,
    frame: Frame,
    ref: DocumentRef,
    old: StoredItem | None,
    body: bytes,
    flags: int,
    expiry: int,
    compressed: bytes | None = None,
    *,
    number: int | None = None,
) -> Frame | None:
    """Store a new version of a document and return the response; None if the write waits for its durability.

    `compressed` is the body as the client compressed it. `number` is the value of a counter, which its response has.
    """
    check_not_pending(ref)
    check_cas(connection, frame, ref, old)
    if len(body) > _LARGEST_BODY:
        raise Refusal(Status.E2BIG)
    datatype = int(Datatype.JSON) if is_json(body) else 0
    # Commands for whole documents change the body only: xattrs stay.
    if old is not None and old.datatype & Datatype.XATTR:
        value, datatype = _with_xattrs_of(old, body), datatype | Datatype.XATTR
    elif compressed is not None:
        value, datatype = compressed, datatype | Datatype.SNAPPY
    else:
        value = body
    fields: dict[str, int | bytes] = {} if number is None else {"number": number}
    version = _new_version(connection, ref, value, flags, expiry, datatype)
    return carry_out(connection, frame, ref, version, lambda item: write_response(connection, frame, ref, item, fields))


def _new_version(
    connection: ServerConnection, ref: DocumentRef, value: bytes, flags: int, expiry: int, datatype: int
) -> StoredItem:
    return connection.bucket.new_version(
        ref.vbucket,
        ref.key,
        value,
        collection_id=ref.collection_id,
        flags=flags,
        expiry=expiry,
        datatype=datatype,
    )


def _with_xattrs_of(old: StoredItem, body: bytes) -> bytes:
    value = inflate(old.value) if old.datatype & Datatype.SNAPPY else old.value
    return join_xattrs(split_xattrs(value)[0], body)


def write_response(
    connection: ServerConnection,
    frame: Frame,
    ref: DocumentRef,
    item: StoredItem,
    fields: dict[str, int | bytes] | None = None,
    value: bytes = b"",
    *,
    status: Status = Status.SUCCESS,
) -> Frame:
    """Return the response of a write, with its mutation token if the client negotiated that."""
    mutation_token: dict[str, int | bytes] = {}
    if connection.has(Feature.MUTATION_SEQNO):
        mutation_token = {"vbuuid": ref.vbucket.log.newest.vbuuid, "seqno": item.seqno}
    return response(frame, status, fields={**mutation_token, **(fields or {})}, value=value, cas=item.cas)


def absolute_expiry(connection: ServerConnection, expiry: int) -> int:
    """Return the Unix time of an expiry that may count from now."""
    return connection.bucket.now + expiry if 0 < expiry <= _LONGEST_RELATIVE_EXPIRY else expiry


def quiet_on_success(handler: Handler) -> Handler:
    """Return the quiet form of a write: it answers only if it fails."""

    def quiet(connection: ServerConnection, frame: Frame) -> None:
        handler(connection, frame)

    return quiet


_WRITES: dict[str, Handler] = {
    "set": set_,
    "add": add,
    "replace": replace,
    "delete": delete,
    "append": append,
    "prepend": prepend,
}

HANDLERS: dict[str, Handler] = {
    **_WRITES,
    **{f"{name}q": quiet_on_success(handler) for name, handler in _WRITES.items()},
    "touch": touch,
    "gat": get_and_touch,
    "gatq": quiet_on_miss(get_and_touch),
}
