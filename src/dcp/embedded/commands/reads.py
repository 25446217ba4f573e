"""Documents, one at a time: how they are read."""

from __future__ import annotations

from collections.abc import Sequence

from dcp.embedded.commands.place import find, place_of, shown_value
from dcp.embedded.conversation import Conversation, Handler, Refusal, answer
from dcp.embedded.store import Item
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status

# The form of GET_META that tells the datatype.
_META_WITH_DATATYPE = 2


def get(talk: Conversation, frame: Frame) -> Frame:
    return shown(talk, frame, present(find(talk, place_of(talk, frame))))


def getk(talk: Conversation, frame: Frame) -> Frame:
    item = find(talk, place_of(talk, frame))
    if item is None:
        return answer(frame, Status.KEY_ENOENT, key=frame.key)
    return shown(talk, frame, item, frame.key)


def getkq(talk: Conversation, frame: Frame) -> Frame | None:
    found = getk(talk, frame)
    return None if found.status else found


def get_meta(talk: Conversation, frame: Frame) -> Frame:
    place = place_of(talk, frame)
    find(talk, place)  # What has expired becomes a tombstone.
    item = present(place.vbucket.get(place.collection_id, place.key))
    fields: dict[str, int | bytes] = {
        "deleted": int(not item.alive),
        "flags": item.flags,
        "expiry": item.expiry,
        "rev_seqno": item.rev_seqno,
    }
    if frame.fields.get("version") == _META_WITH_DATATYPE:
        fields["datatype"] = item.datatype
    return answer(frame, fields=fields, cas=item.cas)


def shown(talk: Conversation, frame: Frame, item: Item, key: bytes = b"") -> Frame:
    value, datatype = shown_value(talk, item)
    return answer(frame, fields={"flags": item.flags}, key=key, value=value, datatype=datatype, cas=item.cas)


def present(item: Item | None) -> Item:
    if item is None:
        raise Refusal(Status.KEY_ENOENT)
    return item


def unless_missing(handler: Handler) -> Handler:
    def quiet(talk: Conversation, frame: Frame) -> Frame | Sequence[Frame] | None:
        try:
            return handler(talk, frame)
        except Refusal as refusal:
            if refusal.status is Status.KEY_ENOENT:
                return None
            raise

    return quiet


HANDLERS: dict[str, Handler] = {
    "get": get,
    "getq": unless_missing(get),
    "getk": getk,
    "getkq": getkq,
    "get_meta": get_meta,
}
