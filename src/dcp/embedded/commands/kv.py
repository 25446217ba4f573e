"""Documents, one at a time: read, written, counted, touched, deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dcp.embedded.commands.place import Place, body_of, find, is_json, place_of, received_value, shown_value
from dcp.embedded.conversation import Conversation, Handler, Refusal, answer
from dcp.embedded.store import Item
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.frame import Frame
from dcp.wire.framing import RequestInfo
from dcp.wire.memcached import Feature, Status

# An expiry up to here counts from now, one above is a Unix time.
_LONGEST_RELATIVE_EXPIRY = 30 * 24 * 3600
_LARGEST_DOCUMENT = 20 << 20
# In place of the expiry of a counter: do not create it.
_DO_NOT_CREATE = 0xFFFFFFFF
_COUNTER_MODULUS = 1 << 64
# The form of GET_META that tells the datatype.
_META_WITH_DATATYPE = 2
_LEVELS_OF_DURABILITY = (b"\x01", b"\x02", b"\x03")
_KNOWN_INFOS = frozenset(map(int, RequestInfo))

Condition = Callable[["Item | None"], object]


# Reads.


def get(talk: Conversation, frame: Frame) -> Frame:
    return _shown(talk, frame, _present(find(talk, place_of(talk, frame))))


def getk(talk: Conversation, frame: Frame) -> Frame:
    item = find(talk, place_of(talk, frame))
    if item is None:
        return answer(frame, Status.KEY_ENOENT, key=frame.key)
    return _shown(talk, frame, item, frame.key)


def getkq(talk: Conversation, frame: Frame) -> Frame | None:
    found = getk(talk, frame)
    return None if found.status else found


def get_and_touch(talk: Conversation, frame: Frame) -> Frame:
    return _shown(talk, frame, _touched(talk, frame))


def get_meta(talk: Conversation, frame: Frame) -> Frame:
    place = place_of(talk, frame)
    find(talk, place)  # What has expired becomes a tombstone.
    item = _present(place.vbucket.get(place.collection_id, place.key))
    fields: dict[str, int | bytes] = {
        "deleted": int(not item.alive),
        "flags": item.flags,
        "expiry": item.expiry,
        "rev_seqno": item.rev_seqno,
    }
    if frame.fields.get("version") == _META_WITH_DATATYPE:
        fields["datatype"] = item.datatype
    return answer(frame, fields=fields, cas=item.cas)


def _shown(talk: Conversation, frame: Frame, item: Item, key: bytes = b"") -> Frame:
    value, datatype = shown_value(talk, item)
    return answer(frame, fields={"flags": item.flags}, key=key, value=value, datatype=datatype, cas=item.cas)


def _present(item: Item | None) -> Item:
    if item is None:
        raise Refusal(Status.KEY_ENOENT)
    return item


# Writes.


def set_(talk: Conversation, frame: Frame) -> Frame:
    return _store(talk, frame, lambda old: None)


def add(talk: Conversation, frame: Frame) -> Frame:
    if frame.cas:
        raise Refusal(Status.EINVAL, "A document that is not there has no CAS")
    return _store(talk, frame, _absent)


def replace(talk: Conversation, frame: Frame) -> Frame:
    return _store(talk, frame, _present)


def _absent(old: Item | None) -> None:
    if old is not None:
        raise Refusal(Status.KEY_EEXISTS)


def _store(talk: Conversation, frame: Frame, check: Condition) -> Frame:
    place = place_of(talk, frame)
    body = received_value(talk, frame)
    old = find(talk, place)
    check(old)
    expiry = _absolute(talk, int(frame.fields["expiry"]))
    if old is not None and any(info.id == RequestInfo.PRESERVE_TTL for info in frame.frame_info):
        expiry = old.expiry
    # What came compressed is kept so, but for the attributes that have to go with it.
    compressed = frame.value if frame.datatype & Datatype.SNAPPY else None
    return _written(talk, frame, place, old, body, int(frame.fields["flags"]), expiry, compressed)


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
    return _written(talk, frame, place, old, joined(body_of(old), more), old.flags, old.expiry)


def increment(talk: Conversation, frame: Frame) -> Frame:
    return _count(talk, frame, lambda number, delta: (number + delta) % _COUNTER_MODULUS)


def decrement(talk: Conversation, frame: Frame) -> Frame:
    return _count(talk, frame, lambda number, delta: max(0, number - delta))


def _count(talk: Conversation, frame: Frame, counted: Callable[[int, int], int]) -> Frame:
    place = place_of(talk, frame)
    old = find(talk, place)
    expiry = int(frame.fields["expiry"])
    if old is not None:
        number, flags, expires = counted(_number(old), int(frame.fields["delta"])), old.flags, old.expiry
    elif expiry == _DO_NOT_CREATE:
        raise Refusal(Status.KEY_ENOENT)
    else:
        number, flags, expires = int(frame.fields["initial"]), 0, _absolute(talk, expiry)
    return _written(talk, frame, place, old, b"%d" % number, flags, expires, number=number)


def _number(item: Item) -> int:
    text = body_of(item).strip()
    if not text.isdigit() or len(text) > len(str(_COUNTER_MODULUS)) or int(text) >= _COUNTER_MODULUS:
        raise Refusal(Status.DELTA_BADVAL)
    return int(text)


def touch(talk: Conversation, frame: Frame) -> Frame:
    return answer(frame, cas=_touched(talk, frame).cas)


def _touched(talk: Conversation, frame: Frame) -> Item:
    place = place_of(talk, frame)
    old = _present(find(talk, place))
    expiry = _absolute(talk, int(frame.fields["expiry"]))
    if old.expiry == expiry:
        return old
    return _put(talk, place, old.value, old.flags, expiry, old.datatype)


def delete(talk: Conversation, frame: Frame) -> Frame:
    place = place_of(talk, frame)
    _check_infos(frame)
    old = _present(find(talk, place))
    _check_cas(frame, old)
    gone = talk.bucket.remove(place.key, place.collection_id, number=place.vbucket.number)
    return _stored(talk, frame, place, _present(gone))


# What all writes share.


def _written(
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


def _absolute(talk: Conversation, expiry: int) -> int:
    return talk.bucket.now + expiry if 0 < expiry <= _LONGEST_RELATIVE_EXPIRY else expiry


def _check_cas(frame: Frame, old: Item | None) -> None:
    if frame.cas and _present(old).cas != frame.cas:
        raise Refusal(Status.KEY_EEXISTS)


def _check_infos(frame: Frame) -> None:
    """A write is durable as soon as it is there: replicas have it then, or the bucket has none."""
    for info in frame.frame_info:
        if info.id not in _KNOWN_INFOS:
            raise Refusal(Status.UNKNOWN_FRAME_INFO)
        if info.id == RequestInfo.DURABILITY and info.data[:1] not in _LEVELS_OF_DURABILITY:
            raise Refusal(Status.DURABILITY_INVALID_LEVEL)


# Quiet forms.


def _unless_missing(handler: Handler) -> Handler:
    def quiet(talk: Conversation, frame: Frame) -> Frame | Sequence[Frame] | None:
        try:
            return handler(talk, frame)
        except Refusal as refusal:
            if refusal.status is Status.KEY_ENOENT:
                return None
            raise

    return quiet


def _unless_done(handler: Handler) -> Handler:
    def quiet(talk: Conversation, frame: Frame) -> None:
        handler(talk, frame)

    return quiet


_WRITES: dict[str, Handler] = {
    "set": set_,
    "add": add,
    "replace": replace,
    "delete": delete,
    "increment": increment,
    "decrement": decrement,
    "append": append,
    "prepend": prepend,
}

HANDLERS: dict[str, Handler] = {
    "get": get,
    "getq": _unless_missing(get),
    "getk": getk,
    "getkq": getkq,
    "gat": get_and_touch,
    "gatq": _unless_missing(get_and_touch),
    "touch": touch,
    "get_meta": get_meta,
    **_WRITES,
    **{f"{name}q": _unless_done(handler) for name, handler in _WRITES.items()},
}
