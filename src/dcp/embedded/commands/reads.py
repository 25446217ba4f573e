"""Documents, one at a time: how they are read."""

from __future__ import annotations

from collections.abc import Sequence

from dcp.embedded.commands.documents import document_ref, find, shown_value
from dcp.embedded.connection import Handler, Refusal, ServerConnection, answer
from dcp.embedded.store import StoredItem
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status

# The form of GET_META that tells the datatype.
_META_WITH_DATATYPE = 2


def get(connection: ServerConnection, frame: Frame) -> Frame:
    return shown(connection, frame, present(find(connection, document_ref(connection, frame))))


def getk(connection: ServerConnection, frame: Frame) -> Frame:
    item = find(connection, document_ref(connection, frame))
    if item is None:
        return answer(frame, Status.KEY_ENOENT, key=frame.key)
    return shown(connection, frame, item, frame.key)


def getkq(connection: ServerConnection, frame: Frame) -> Frame | None:
    found = getk(connection, frame)
    return None if found.status else found


def get_meta(connection: ServerConnection, frame: Frame) -> Frame:
    ref = document_ref(connection, frame)
    find(connection, ref)  # What has expired becomes a tombstone.
    item = present(ref.vbucket.get(ref.collection_id, ref.key))
    fields: dict[str, int | bytes] = {
        "deleted": int(not item.alive),
        "flags": item.flags,
        "expiry": item.expiry,
        "rev_seqno": item.rev_seqno,
    }
    if frame.fields.get("version") == _META_WITH_DATATYPE:
        fields["datatype"] = item.datatype
    return answer(frame, fields=fields, cas=item.cas)


def shown(connection: ServerConnection, frame: Frame, item: StoredItem, key: bytes = b"") -> Frame:
    value, datatype = shown_value(connection, item)
    return answer(frame, fields={"flags": item.flags}, key=key, value=value, datatype=datatype, cas=item.cas)


def present(item: StoredItem | None) -> StoredItem:
    if item is None:
        raise Refusal(Status.KEY_ENOENT)
    return item


def unless_missing(handler: Handler) -> Handler:
    def quiet(connection: ServerConnection, frame: Frame) -> Frame | Sequence[Frame] | None:
        try:
            return handler(connection, frame)
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
