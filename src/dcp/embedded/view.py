"""What a connection gets to see of an item: by its open flags, features and controls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dcp.columns.rows import RowEncoder
from dcp.embedded.compression import deflate, inflate
from dcp.embedded.store import AnyItem, StoredItem
from dcp.wire.document import Datatype, join_xattrs, split_xattrs

_EXPIRED_AS_DELETED = (("expiration", "deletion"),)


@dataclass(frozen=True, slots=True)
class View:
    """The rules are those of mutations and deletions alike; deletions never have a body."""

    collections: bool = False
    xattrs: bool = False
    deleted_user_xattrs: bool = False
    values: bool = True
    # The datatype is that of what is stored, whatever is left out.
    underlying_datatype: bool = False
    snappy: bool = False
    compress: bool = False
    delete_times: bool = False
    expirations: bool = False
    stream_id_defect: bool = False

    def encoder(self) -> RowEncoder:
        """What writes the items that this view shows."""
        return _encoder(self.collections, self.delete_times, self.expirations, self.stream_id_defect)

    def show(self, items: list[AnyItem], datatypes: int) -> list[AnyItem]:
        """The items as they are sent. `datatypes` are the bits that any of them may have."""
        hidden = 0 if self.xattrs else int(Datatype.XATTR)
        hidden |= 0 if self.snappy else int(Datatype.SNAPPY)
        if self.values and not self.compress and not datatypes & (hidden | Datatype.XATTR):
            return items
        return [self._shown(item) if isinstance(item, StoredItem) else item for item in items]

    def _shown(self, item: StoredItem) -> StoredItem:
        value, datatype = item.value, item.datatype
        compressed = bool(datatype & Datatype.SNAPPY)
        if compressed and value and self._looks_inside(item):
            value, datatype, compressed = inflate(value), datatype & ~Datatype.SNAPPY, False
        if not compressed:
            value, datatype = self._cut(item, value, datatype)
        elif not self.values:
            value, datatype = b"", 0
        if self.compress and value and not compressed and len(packed := deflate(value)) * 100 <= len(value) * 85:
            value, datatype = packed, datatype | Datatype.SNAPPY
        if self.underlying_datatype and (item.alive or value):
            datatype = item.datatype
        return item._replace(value=value, datatype=datatype)

    def _looks_inside(self, item: StoredItem) -> bool:
        """Whether something of a compressed value is not sent, or it cannot be sent compressed."""
        partial = not self.xattrs or not self.values or not (item.alive or self.deleted_user_xattrs)
        return not self.snappy or bool(partial and item.datatype & Datatype.XATTR)

    def _cut(self, item: StoredItem, value: bytes, datatype: int) -> tuple[bytes, int]:
        """Without what this view leaves out."""
        pairs, body = split_xattrs(value) if datatype & Datatype.XATTR else ((), value)
        if not self.xattrs:
            pairs = ()
        elif not item.alive and not self.deleted_user_xattrs:
            pairs = tuple(pair for pair in pairs if pair[0].startswith(b"_"))
        if not self.values or not item.alive:
            body, datatype = b"", datatype & Datatype.XATTR
        if not pairs:
            return body, datatype & ~Datatype.XATTR
        return join_xattrs(pairs, body), datatype


@lru_cache
def _encoder(collections: bool, delete_times: bool, expirations: bool, defect: bool) -> RowEncoder:
    left_out = [] if collections else ["collection_id"]
    left_out += [] if delete_times else ["delete_time"]
    aliases = () if expirations and delete_times else _EXPIRED_AS_DELETED
    return RowEncoder("dcp", StoredItem._fields, leave_out=left_out, sent_as=aliases, stream_id_defect=defect)
