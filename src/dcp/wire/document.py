"""Keys and values of documents: vbucket of a key, collection prefix, xattr section."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from enum import IntFlag

from dcp.errors import RemoteProtocolError, UsageError


class Datatype(IntFlag):
    """Bits of the format of a value. To read it, decompress first (SNAPPY), then split off the xattrs (XATTR)."""

    JSON = 0x01
    SNAPPY = 0x02
    XATTR = 0x04


def vbucket_of(key: bytes, vbuckets: int = 1024) -> int:
    """Return the vbucket of a key without its collection prefix. `vbuckets` is their number in the bucket."""
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % vbuckets


def join_collection(collection_id: int, key: bytes) -> bytes:
    """Return a key as connections with collections send it: the id as unsigned LEB128, then the key."""
    if not 0 <= collection_id < 1 << 32:
        raise UsageError(f"collection id: expected 32 bits, found {collection_id}")
    return unsigned_leb128(collection_id) + key


def unsigned_leb128(number: int) -> bytes:
    """Return a number that is not negative as unsigned LEB128."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def split_collection(key: bytes) -> tuple[int, bytes]:
    """Return the collection id before a key, and the key. Raises RemoteProtocolError if the id is malformed.

    Only the shortest form of an id is legal: with longer ones, two keys on the wire could be one document.
    """
    number = 0
    # 5 bytes of 7 bits hold 32 bits.
    for position, byte in enumerate(key[:5]):
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            # A last byte of 0 adds nothing: a shorter form exists.
            if (position and not byte) or number >> 32:
                break
            return number, key[position + 1 :]
    raise RemoteProtocolError(
        f"collection id: expected at most 32 bits as the shortest LEB128, found {key[:5].hex() or 'nothing'}"
    )


Xattrs = tuple[tuple[bytes, bytes], ...]


def split_xattrs(value: bytes) -> tuple[Xattrs, bytes]:
    """Return the (name, JSON text) pairs before the body of a document, and the body.

    value: a decompressed value whose datatype has XATTR. It may be empty: servers keep the bit where they leave the
        value out.

    Raises RemoteProtocolError if the section is malformed.
    """
    if not value:
        return (), b""
    end = 4 + _length(value, 0, len(value))
    pairs, position = [], 4
    while position < end:
        start = position + 4
        position = start + _length(value, position, end)
        name, found, rest = value[start:position].partition(b"\0")
        if not found or not rest or rest.find(b"\0") != len(rest) - 1:
            raise RemoteProtocolError(f"xattrs: pair at byte {start - 4}: expected a name, 00, a value and 00")
        pairs.append((name, rest[:-1]))
    return tuple(pairs), value[end:]


def _length(value: bytes, position: int, end: int) -> int:
    left = end - position - 4
    length = int.from_bytes(value[position : position + 4], "big")
    if left < 0 or length > left:
        raise RemoteProtocolError(
            f"xattrs: length at byte {position}: "
            + (f"expected at most {left}, found {length}" if left >= 0 else f"expected 4 bytes, found {left + 4}")
        )
    return length


def join_xattrs(pairs: Iterable[tuple[bytes, bytes]], body: bytes = b"") -> bytes:
    """Return a value with these xattrs before the body. Raises UsageError for a name or text with a zero byte."""
    section = bytearray()
    for name, value in pairs:
        if b"\0" in name or b"\0" in value:
            raise UsageError(f"xattrs: expected a name and a value without 00, found {name!r}: {value!r}")
        section += (len(name) + len(value) + 2).to_bytes(4, "big") + name + b"\0" + value + b"\0"
    return len(section).to_bytes(4, "big") + bytes(section) + body
