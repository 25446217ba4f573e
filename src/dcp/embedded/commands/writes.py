"""Documents, one at a time: how they are written, joined, touched, deleted."""

from __future__ import annotations

from collections.abc import Callable

from dcp.embedded.commands.place import Place, body_of, find, is_json, place_of, received_value
from dcp.embedded.commands.reads import present, shown, unless_missing
from dcp.embedded.conversation import Conversation, Handler, Refusal, answer
from dcp.embedded.store import Item
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.frame import Frame
from dcp.wire.framing import RequestInfo
from dcp.wire.memcached import Feature, Status

# An expiry up to here counts from now, one above is a Unix time.
_LONGEST_RELATIVE_EXPIRY = 30 * 24 * 3600
_LARGEST_DOCUMENT = 20 << 20
_LEVELS_OF_DURABILITY = (b"\x01", b"\x02", b"\x03")
_KNOWN_INFOS = frozenset(map(int, RequestInfo))

Condition = Callable[["Item | None"], object]


def set_(talk: Conversation, frame: Frame) -> Frame:
    return _store(talk, frame, lambda old: None)


def add(talk: Conversation, frame: Frame) -> Frame:
    if frame.cas:
        raise Refusal(Status.EINVAL, "A document that is not there has no CAS")
    return _store(talk, frame, _absent)


def replace(talk: Conversation, frame: Frame) -> Frame:
    return _store(talk, frame, present)


def _absent(old: Item | None) -> None:
    if old is not None:
        raise Refusal(Status.KEY_EEXISTS)


def _store(talk: Conversation, frame: Frame, check: Condition) -> Frame:
    place = place_of(talk, frame)
    body = received_value(talk, frame)
    old = find(talk, place)
    check(old)
    expiry = absolute(talk, int(frame.fields["expiry"]))
    if old is not None and any(info.id == RequestInfo.PRESERVE_TTL for info in frame.frame_info):
        expiry = old.expiry
    # What came compressed is kept so, but for the attributes that have to go with it.
    compressed = frame.value if frame.datatype & Datatype.SNAPPY else None
    return written(talk, frame, place, old, body, int(frame.fields["flags"]), expiry, compressed)


def append(talk: Conversation, frame: Frame) -> Frame:
    return _join(talk, frame, lambda old, new: old + new)


def prepend(talk: Conversation, frame: Frame) -> Frame:
    return _join(talk, frame, lambda old, new: new + old)


def _join(talk: Conversation, frame: Frame, joined: Callable[[bytes, bytes], bytes]) -> Frame:
    place = place_of(talk, frame)
    more = received_value(talk, frame)
    old = find(talk, place)
    if old is None:
        raise Refusal(Status.NOT_STORED)
    return written(talk, frame, place, old, joined(body_of(old), more), old.flags, old.expiry)


def get_and_touch(talk: Conversation, frame: Frame) -> Frame:
    return shown(talk, frame, _touched(talk, frame))


def touch(talk: Conversation, frame: Frame) -> Frame:
    return answer(frame, cas=_touched(talk, frame).cas)


def _touched(talk: Conversation, frame: Frame) -> Item:
    place = place_of(talk, frame)
    old = present(find(talk, place))
    expiry = absolute(talk, int(frame.fields["expiry"]))
    if old.expiry == expiry:
        return old
    return _put(talk, place, old.value, old.flags, expiry, old.datatype)


def delete(talk: Conversation, frame: Frame) -> Frame:
    place = place_of(talk, frame)
    _check_infos(frame)
    old = present(find(talk, place))
    _check_cas(frame, old)
    gone = talk.bucket.remove(place.key, place.collection_id, number=place.vbucket.number)
    return _stored(talk, frame, place, present(gone))


# What all writes share.


def written(
    talk: Conversation,
    frame: Frame,
    place: Place,
    old: Item | None,
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
    item = _put(talk, place, value, flags, expiry, datatype)
    return _stored(talk, frame, place, item, {} if number is None else {"number": number})


def _put(talk: Conversation, place: Place, value: bytes, flags: int, expiry: int, datatype: int) -> Item:
    return talk.bucket.store(
        place.key,
        value,
        collection_id=place.collection_id,
        flags=flags,
        expiry=expiry,
        datatype=datatype,
        number=place.vbucket.number,
    )


def _with_xattrs_of(old: Item, body: bytes) -> bytes:
    inflated = old._replace(value=body_of(old)) if old.datatype & Datatype.SNAPPY else old
    return join_xattrs(split_xattrs(inflated.value)[0], body)


def _stored(
    talk: Conversation, frame: Frame, place: Place, item: Item, fields: dict[str, int | bytes] | None = None
) -> Frame:
    token: dict[str, int | bytes] = {}
    if talk.has(Feature.MUTATION_SEQNO):
        token = {"vbuuid": place.vbucket.log.newest.vbuuid, "seqno": item.seqno}
    return answer(frame, fields={**token, **(fields or {})}, cas=item.cas)


def absolute(talk: Conversation, expiry: int) -> int:
    return talk.bucket.now + expiry if 0 < expiry <= _LONGEST_RELATIVE_EXPIRY else expiry


def _check_cas(frame: Frame, old: Item | None) -> None:
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
    def quiet(talk: Conversation, frame: Frame) -> None:
        handler(talk, frame)

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
