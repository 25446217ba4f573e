"""Documents as bytes: limits, Snappy, extended attributes (xattrs) and tombstones."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from dcp.embedded.arguments import check_number
from dcp.embedded.store import StoredItem
from dcp.errors import RemoteProtocolError, UsageError
from dcp.wire.document import Datatype, join_xattrs, split_xattrs

# Limits of all server releases: 250 bytes of key, and 20 MiB of body with up to 1 MiB of system xattrs.
_LONGEST_KEY = 250
_LARGEST_VALUE = 21 << 20
_MAX_UINT32 = (1 << 32) - 1


def encode_key(key: object) -> bytes:
    """Return the bytes of a key that is text or bytes. Raise UsageError for anything else."""
    if not isinstance(key, str | bytes):
        raise UsageError(f"key: expected text or bytes, found a {type(key).__name__}")
    return _encoded("key", key) if isinstance(key, str) else key


def encode_body(value: object) -> bytes:
    """Return the bytes of a body: text, bytes, or a dict or list, of which JSON is made."""
    if isinstance(value, str):
        return _encoded("value", value)
    # bytes(7) would be seven zeros.
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, dict | list):
        found = type(value).__name__
        raise UsageError(
            f"value: expected text, bytes, or a dict or list, found a {found}; json.dumps makes text of it"
        )
    return _json("value", value)


def encode_xattrs(xattrs: object) -> list[tuple[bytes, bytes]]:
    """Return names and values of extended attributes: JSON texts, or dicts or lists, of which JSON is made."""
    if not isinstance(xattrs, dict) or not all(
        isinstance(name, str) and isinstance(value, str | dict | list) for name, value in xattrs.items()
    ):
        raise UsageError(f"xattrs: expected a dict of JSON texts, dicts or lists by name, found {xattrs!r:.100}")
    return [
        (_encoded("xattrs", name), (_encoded if isinstance(value, str) else _json)("xattrs", value))
        for name, value in xattrs.items()
    ]


def _json(name: str, value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name}: expected what JSON can have, found something else: {error}") from None


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name}: expected Unicode text, found half of a surrogate pair: {text!r:.100}") from None


def check_document(key: bytes, value: bytes, flags: int, expiry: int, datatype: int) -> None:
    """Raise UsageError if no server would store this document."""
    if not 1 <= len(key) <= _LONGEST_KEY:
        raise UsageError(f"key: expected 1 to {_LONGEST_KEY} bytes, found {len(key)}")
    if len(value) > _LARGEST_VALUE:
        raise UsageError(f"value: expected at most {_LARGEST_VALUE} bytes, found {len(value)}")
    for name, number, most in (
        ("flags", flags, _MAX_UINT32),
        ("expiry", expiry, _MAX_UINT32),
        ("datatype", datatype, sum(Datatype)),
    ):
        check_number(name, number, 0, most)
    try:
        plain = inflate_received(value, _LARGEST_VALUE) if datatype & Datatype.SNAPPY else value
        if plain is None:
            raise RemoteProtocolError(f"not a Snappy block of at most {_LARGEST_VALUE} bytes")
        if datatype & Datatype.XATTR:
            split_xattrs(plain)
    except RemoteProtocolError as error:
        raise UsageError(f"value: expected bytes of datatype {datatype}, found others: {error}") from None


def is_json(value: bytes) -> bool:
    """Return whether a value is JSON. Servers parse it themselves and ignore the datatype that clients send."""
    try:
        json.loads(value.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python accepts and JSON does not have."""
    raise ValueError(name)


def body_of(item: StoredItem) -> bytes:
    """Return the value as applications see it: inflated and without xattrs."""
    # Items without a value keep their datatype, and an empty Snappy block does not exist.
    value = inflate(item.value) if item.datatype & Datatype.SNAPPY and item.value else item.value
    return split_xattrs(value)[1] if item.datatype & Datatype.XATTR else value


def is_system_xattr(name: str) -> bool:
    """Return whether an xattr is one of the system, which survives a deletion."""
    return name.startswith("_")


def tombstone_of(item: StoredItem) -> dict[str, Any]:
    """Return value and datatype of the tombstone: system xattrs survive a deletion."""
    if not item.datatype & Datatype.XATTR:
        return {"value": b"", "datatype": 0}
    value = inflate(item.value) if item.datatype & Datatype.SNAPPY else item.value
    kept = [pair for pair in split_xattrs(value)[0] if is_system_xattr(pair[0].decode())]
    if not kept:
        return {"value": b"", "datatype": 0}
    return {"value": join_xattrs(kept), "datatype": int(Datatype.XATTR)}


# Snappy, in the raw block format without framing.


def inflate(value: bytes) -> bytes:
    """Decompress a value that this cluster stores."""
    return bytes(_snappy().decompress_raw(value))


def inflate_received(value: bytes, most: int) -> bytes | None:
    """Decompress a value from a client; None if it is no Snappy block or inflates to more than `most` bytes."""
    snappy = _snappy()
    from cramjam import DecompressionError

    try:
        # The length is read first: a few bytes may claim to inflate to gigabytes.
        return bytes(snappy.decompress_raw(value)) if snappy.decompress_raw_len(value) <= most else None
    except DecompressionError:
        return None


def deflate(value: bytes) -> bytes:
    """Compress a value."""
    return bytes(_snappy().compress_raw(value))


def _snappy() -> Any:
    try:
        from cramjam import snappy
    except ImportError:
        raise UsageError("compressed values need cramjam: pip install 'dcp-arrow[testing]'") from None
    return snappy
