"""What is left of a document when it is deleted."""

from __future__ import annotations

from typing import Any

from dcp.embedded.compression import inflate
from dcp.embedded.store import StoredItem
from dcp.wire.document import Datatype, join_xattrs, split_xattrs


def tombstone(item: StoredItem) -> dict[str, Any]:
    """The value and datatype of the tombstone: its system attributes, whose names begin with _."""
    if not item.datatype & Datatype.XATTR:
        return {"value": b"", "datatype": 0}
    value = inflate(item.value) if item.datatype & Datatype.SNAPPY else item.value
    kept = [pair for pair in split_xattrs(value)[0] if pair[0].startswith(b"_")]
    if not kept:
        return {"value": b"", "datatype": 0}
    return {"value": join_xattrs(kept), "datatype": int(Datatype.XATTR)}
