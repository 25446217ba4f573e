"""Documents, one at a time: how they are written, joined, touched, deleted."""

from __future__ import annotations

from collections.abc import Callable

from dcp.embedded.commands.documents import DocumentRef, body_of, document_ref, find, is_json, received_value
from dcp.embedded.commands.reads import present, shown, unless_missing
from dcp.embedded.connection import Handler, Refusal, ServerConnection, answer
from dcp.embedded.store import StoredItem
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.frame import Frame
from dcp.wire.framing import RequestInfo
from dcp.wire.memcached import Feature, Status

# An expiry up to here counts from now, one above is a Unix time.
_LONGEST_RELATIVE_EXPIRY = 30 * 24 * 3600
_LARGEST_DOCUMENT = 20 << 20
_LEVELS_OF_DURABILITY = (b"\x01", b"\x02", b"\x03")
_KNOWN_INFOS = frozenset(map(int, RequestInfo))

Condition = Callable[["StoredItem | None"], object]


def set_(connection: ServerConnection, frame: Frame) -> Frame:
    return _store(connection, frame, lambda old: None)


def add(connection: ServerConnection, frame: Frame) -> Frame:
    if frame.cas:
        raise Refusal(Status.EINVAL, "A document that is not there has no CAS")
    return _store(connection, frame, _absent)


def replace(connection: ServerConnection, frame: Frame) -> Frame:
    return _store(connection, frame, present)


def _absent(old: StoredItem | None) -> None:
    if old is not None:
        raise Refusal(Status.KEY_EEXISTS)


def _store(connection: ServerConnection, frame: Frame, check: Condition) -> Frame:
    ref = document_ref(connection, frame)
    body = received_value(connection, frame)
    old = find(connection, ref)
    check(old)
    expiry = absolute(connection, int(frame.fields["expiry"]))
    if old is not None and any(info.id == RequestInfo.PRESERVE_TTL for info in frame.frame_info):
        expiry = old.expiry
    # What came compressed is kept so, but for the attributes that have to go with it.
    compressed = frame.value if frame.datatype & Datatype.SNAPPY else None
    return written(connection, frame, ref, old, body, int(frame.fields["flags"]), expiry, compressed)


def append(connection: ServerConnection, frame: Frame) -> Frame:
    return _join(connection, frame, lambda old, new: old + new)


def prepend(connection: ServerConnection, frame: Frame) -> Frame:
    return _join(connection, frame, lambda old, new: new + old)


def _join(connection: ServerConnection, frame: Frame, joined: Callable[[bytes, bytes], bytes]) -> Frame:
    ref = document_ref(connection, frame)
    more = received_value(connection, frame)
    old = find(connection, ref)
    if old is None:
        raise Refusal(Status.NOT_STORED)
    return written(connection, frame, ref, old, joined(body_of(old), more), old.flags, old.expiry)


def get_and_touch(connection: ServerConnection, frame: Frame) -> Frame:
    return shown(connection, frame, _touched(connection, frame))


def touch(connection: ServerConnection, frame: Frame) -> Frame:
    return answer(frame, cas=_touched(connection, frame).cas)


def _touched(connection: ServerConnection, frame: Frame) -> StoredItem:
    ref = document_ref(connection, frame)
    old = present(find(connection, ref))
    expiry = absolute(connection, int(frame.fields["expiry"]))
    if old.expiry == expiry:
        return old
    return _put(connection, ref, old.value, old.flags, expiry, old.datatype)


def delete(connection: ServerConnection, frame: Frame) -> Frame:
    ref = document_ref(connection, frame)
    _check_infos(frame)
    old = present(find(connection, ref))
    _check_cas(frame, old)
    gone = connection.bucket.remove(ref.key, ref.collection_id, number=ref.vbucket.number)
    return _stored(connection, frame, ref, present(gone))


# What all writes share.


def written(
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
) -> Frame:
    _check_infos(frame)
    _check_cas(frame, old)
    if len(body) > _LARGEST_DOCUMENT:
        raise Refusal(Status.E2BIG)
    datatype = int(Datatype.JSON) if is_json(body) else 0
    if old is not None and old.datatype & Datatype.XATTR:
        value, datatype = _with_xattrs_of(old, body), datatype | Datatype.XATTR
    elif compressed is not None:
        value, datatype = compressed, datatype | Datatype.SNAPPY
    else:
        value = body
    item = _put(connection, ref, value, flags, expiry, datatype)
    return _stored(connection, frame, ref, item, {} if number is None else {"number": number})


def _put(
    connection: ServerConnection, ref: DocumentRef, value: bytes, flags: int, expiry: int, datatype: int
) -> StoredItem:
    return connection.bucket.store(
        ref.key,
        value,
        collection_id=ref.collection_id,
        flags=flags,
        expiry=expiry,
        datatype=datatype,
        number=ref.vbucket.number,
    )


def _with_xattrs_of(old: StoredItem, body: bytes) -> bytes:
    inflated = old._replace(value=body_of(old)) if old.datatype & Datatype.SNAPPY else old
    return join_xattrs(split_xattrs(inflated.value)[0], body)


def _stored(
    connection: ServerConnection,
    frame: Frame,
    ref: DocumentRef,
    item: StoredItem,
    fields: dict[str, int | bytes] | None = None,
) -> Frame:
    token: dict[str, int | bytes] = {}
    if connection.has(Feature.MUTATION_SEQNO):
        token = {"vbuuid": ref.vbucket.log.newest.vbuuid, "seqno": item.seqno}
    return answer(frame, fields={**token, **(fields or {})}, cas=item.cas)


def absolute(connection: ServerConnection, expiry: int) -> int:
    return connection.bucket.now + expiry if 0 < expiry <= _LONGEST_RELATIVE_EXPIRY else expiry


def _check_cas(frame: Frame, old: StoredItem | None) -> None:
    if frame.cas and present(old).cas != frame.cas:
        raise Refusal(Status.KEY_EEXISTS)


def _check_infos(frame: Frame) -> None:
    """A write is durable as soon as it is there: replicas have it then, or the bucket has none."""
    for info in frame.frame_info:
        if info.id not in _KNOWN_INFOS:
            raise Refusal(Status.UNKNOWN_FRAME_INFO)
        if info.id == RequestInfo.DURABILITY and info.data[:1] not in _LEVELS_OF_DURABILITY:
            raise Refusal(Status.DURABILITY_INVALID_LEVEL)


def unless_done(handler: Handler) -> Handler:
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
    **{f"{name}q": unless_done(handler) for name, handler in _WRITES.items()},
    "touch": touch,
    "gat": get_and_touch,
    "gatq": unless_missing(get_and_touch),
}
