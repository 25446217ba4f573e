"""Snappy, for a bucket that stores values compressed or a client that asks for them so."""

from __future__ import annotations

from typing import Any

from dcp.errors import LocalProtocolError


def inflate(value: bytes) -> bytes:
    """The bytes that were compressed."""
    return bytes(_snappy().decompress_raw(value))


def inflate_received(value: bytes, most: int) -> bytes | None:
    """The bytes that a client compressed; None if it did not, or if there are more than `most` of them."""
    snappy = _snappy()
    from cramjam import DecompressionError

    try:
        return bytes(snappy.decompress_raw(value)) if snappy.decompress_raw_len(value) <= most else None
    except DecompressionError:
        return None


def deflate(value: bytes) -> bytes:
    """The raw block format, without framing."""
    return bytes(_snappy().compress_raw(value))


def _snappy() -> Any:
    try:
        from cramjam import snappy
    except ImportError:
        raise LocalProtocolError("compressed values need cramjam: pip install 'dcp-arrow[embedded]'") from None
    return snappy
