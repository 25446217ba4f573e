"""Snappy, for a bucket that stores values compressed or a client that asks for them so."""

from __future__ import annotations

from typing import Any

from dcp.errors import LocalProtocolError


def inflate(value: bytes) -> bytes:
    """The bytes that were compressed."""
    return bytes(_snappy().decompress_raw(value))


def deflate(value: bytes) -> bytes:
    """The raw block format, without framing."""
    return bytes(_snappy().compress_raw(value))


def _snappy() -> Any:
    try:
        from cramjam import snappy
    except ImportError:
        raise LocalProtocolError("compressed values need cramjam: pip install 'dcp-arrow[embedded]'") from None
    return snappy
