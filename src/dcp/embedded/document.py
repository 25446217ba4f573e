"""What a document may be, and what of it is its body."""

from __future__ import annotations

from dcp.embedded.compression import inflate, inflate_received
from dcp.embedded.store import StoredItem
from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.wire.document import Datatype, split_xattrs

_LONGEST_KEY = 250
_LARGEST = 21 << 20
_MOST = (1 << 32) - 1


def check_document(key: bytes, value: bytes, flags: int, expiry: int, datatype: int) -> None:
    """Raise where no server would take it."""
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise LocalProtocolError(f"key: expected 1 to {_LONGEST_KEY} bytes, found {len(key)}")
    if len(value) > _LARGEST:
        raise LocalProtocolError(f"value: expected at most {_LARGEST} bytes, found {len(value)}")
    for name, number, most in (
        ("flags", flags, _MOST),
        ("expiry", expiry, _MOST),
        ("datatype", datatype, sum(Datatype)),
    ):
        if not 0 <= number <= most:
            raise LocalProtocolError(f"{name}: expected 0 to {most}, found {number}")
    try:
        plain = inflate_received(value, _LARGEST) if datatype & Datatype.SNAPPY else value
        if plain is None:
            raise RemoteProtocolError("no snappy block, or one that inflates to too much")
        if datatype & Datatype.XATTR:
            split_xattrs(plain)
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"value: not what its datatype {datatype} says: {error}") from None


def body_of(item: StoredItem) -> bytes:
    """The value as a consumer sees it: inflated, and without attributes."""
    value = inflate(item.value) if item.datatype & Datatype.SNAPPY and item.value else item.value
    return split_xattrs(value)[1] if item.datatype & Datatype.XATTR else value
