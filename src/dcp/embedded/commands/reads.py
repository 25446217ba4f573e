"""Commands that read one document."""

from __future__ import annotations

from collections.abc import Sequence

from dcp.embedded.commands.documents import DocumentRef, document_ref, find, response_value
from dcp.embedded.commands.durability import check_readable
from dcp.embedded.commands.locks import readable_cas
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.refusals import Refusal
from dcp.embedded.store import StoredItem
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status

# Version of GET_META whose response has the datatype.
_META_WITH_DATATYPE = 2


def get(connection: ServerConnection, frame: Frame) -> Frame:
    ref = _readable_ref(connection, frame)
    item = existing(find(connection, ref))
    return document_response(connection, frame, item, readable_cas(connection, ref, item))


def getk(connection: ServerConnection, frame: Frame) -> Frame:
    ref = _readable_ref(connection, frame)
    item = find(connection, ref)
    if item is None:
        return response(frame, Status.KEY_ENOENT, key=frame.key)
    return document_response(connection, frame, item, readable_cas(connection, ref, item), frame.key)


def getkq(connection: ServerConnection, frame: Frame) -> Frame | None:
    found = getk(connection, frame)
    return None if found.status else found


def get_meta(connection: ServerConnection, frame: Frame) -> Frame:
    ref = _readable_ref(connection, frame)
    # For its effect: an expired document becomes a tombstone, which is what the client has to see.
    find(connection, ref)
    item = existing(ref.vbucket.get(ref.collection_id, ref.key))
    fields: dict[str, int | bytes] = {
        "deleted": int(not item.alive),
        "flags": item.flags,
        "expiry": item.expiry,
        "rev_seqno": item.rev_seqno,
    }
    if frame.fields.get("version") == _META_WITH_DATATYPE:
        fields["datatype"] = item.datatype
    return response(frame, fields=fields, cas=item.cas)


def _readable_ref(connection: ServerConnection, frame: Frame) -> DocumentRef:
    ref = document_ref(connection, frame)
    check_readable(connection, ref)
    return ref


def document_response(
    connection: ServerConnection, frame: Frame, item: StoredItem, cas: int, key: bytes = b""
) -> Frame:
    """Return the response with a document's value and flags."""
    value, datatype = response_value(connection, item)
    return response(frame, fields={"flags": item.flags}, key=key, value=value, datatype=datatype, cas=cas)


def existing(item: StoredItem | None) -> StoredItem:
    """Return the item; refuse with KEY_ENOENT if there is none."""
    if item is None:
        raise Refusal(Status.KEY_ENOENT)
    return item


def quiet_on_miss(handler: Handler) -> Handler:
    """Return the quiet form of a read: it does not answer if there is no document."""

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
    "getq": quiet_on_miss(get),
    "getk": getk,
    "getkq": getkq,
    "get_meta": get_meta,
}
