"""Items as a connection receives them: which parts of the stored value it gets, and in which form."""

from __future__ import annotations

from functools import lru_cache

from dcp.columns.rows import RowEncoder
from dcp.embedded.document import deflate, inflate, is_system_xattr
from dcp.embedded.negotiated import Negotiated
from dcp.embedded.store import PreparedItem, StoredItem, StreamItem
from dcp.wire.document import Datatype, join_xattrs, split_xattrs

# Expirations are sent as deletions to clients that did not ask for both delete times and expirations.
_EXPIRED_AS_DELETED = (("expiration", "deletion"),)
# Servers keep a compressed value only if it has at most 85 % of the size.
_LARGEST_PERCENTAGE = 85


def item_encoder(negotiated: Negotiated) -> RowEncoder:
    """Return the encoder of mutations, deletions and expirations for a connection."""
    return _encoder(
        negotiated.collections,
        negotiated.delete_times,
        negotiated.expirations,
        negotiated.release.stream_id_defect,
    )


@lru_cache
def _encoder(collections: bool, delete_times: bool, expirations: bool, defect: bool) -> RowEncoder:
    left_out = [] if collections else ["collection_id"]
    left_out += [] if delete_times else ["delete_time"]
    aliases = () if expirations and delete_times else _EXPIRED_AS_DELETED
    return RowEncoder("dcp", StoredItem._fields, leave_out=left_out, sent_as=aliases, stream_id_defect=defect)


def visible_items(items: list[StreamItem], datatypes: int, negotiated: Negotiated) -> list[StreamItem]:
    """Return the items as they are sent. `datatypes` are the bits that any of them may have."""
    changed = Datatype.XATTR if negotiated.snappy else Datatype.XATTR | Datatype.SNAPPY
    # The fast path of most streams: nothing in the vbucket has to be changed, so the list is sent as it is.
    if negotiated.values and not negotiated.compress and not datatypes & changed:
        return items
    return [_as_sent(item, negotiated) for item in items]


def _as_sent(item: StreamItem, negotiated: Negotiated) -> StreamItem:
    if isinstance(item, StoredItem):
        return _visible(item, negotiated)
    return item._replace(document=_visible(item.document, negotiated)) if isinstance(item, PreparedItem) else item


def without_metadata(items: list[StreamItem]) -> list[StreamItem]:
    """Return documents as a backfill of keys alone sends them: without CAS, flags, expiry, revision and datatype.

    Tombstones keep theirs. See `Release.backfills_keys_without_metadata`.
    """
    return [
        item._replace(rev_seqno=1, cas=0, flags=0, expiry=0, datatype=0)
        if isinstance(item, StoredItem) and item.alive
        else item
        for item in items
    ]


def _visible(item: StoredItem, negotiated: Negotiated) -> StoredItem:
    value, datatype = item.value, item.datatype
    compressed = bool(datatype & Datatype.SNAPPY)
    if compressed and value and _has_to_be_inflated(item, negotiated):
        value, datatype, compressed = inflate(value), datatype & ~Datatype.SNAPPY, False
    if not compressed:
        value, datatype = _visible_parts(item, value, datatype, negotiated)
    elif not negotiated.values:
        value, datatype = b"", 0
    if negotiated.compress and value and not compressed:
        packed = deflate(value)
        if len(packed) * 100 <= len(value) * _LARGEST_PERCENTAGE:
            value, datatype = packed, datatype | Datatype.SNAPPY
    if negotiated.underlying_datatype and (item.alive or value):
        datatype = item.datatype
    return item._replace(value=value, datatype=datatype)


def _has_to_be_inflated(item: StoredItem, negotiated: Negotiated) -> bool:
    """Return whether parts of a compressed value are left out, or the client does not understand Snappy."""
    partial = (
        not negotiated.xattrs or not negotiated.values or not (item.alive or negotiated.tombstones_with_user_xattrs)
    )
    return not negotiated.snappy or bool(partial and item.datatype & Datatype.XATTR)


def _visible_parts(item: StoredItem, value: bytes, datatype: int, negotiated: Negotiated) -> tuple[bytes, int]:
    """Return an uncompressed value without the xattrs and the body that the connection does not receive."""
    pairs, body = split_xattrs(value) if datatype & Datatype.XATTR else ((), value)
    if not negotiated.xattrs:
        pairs = ()
    elif not item.alive and not negotiated.tombstones_with_user_xattrs:
        pairs = tuple(pair for pair in pairs if is_system_xattr(pair[0].decode()))
    # Deletions never have a body.
    if not negotiated.values or not item.alive:
        body, datatype = b"", datatype & Datatype.XATTR
    if not pairs:
        return body, datatype & ~Datatype.XATTR
    return join_xattrs(pairs, body), datatype
