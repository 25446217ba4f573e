"""Bytes: frames, keys with collections, compressed values."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct(">BBHBBHIIQ")
REQUEST, RESPONSE, PUSHED = 0x80, 0x81, 0x82


class Message(NamedTuple):
    """A frame. `vbucket` is the status in a response."""

    magic: int
    opcode: int
    key: bytes
    extras: bytes
    datatype: int
    vbucket: int
    opaque: int
    cas: int
    value: bytes

    def packed(self) -> bytes:
        body = self.extras + self.key + self.value
        head = HEADER.pack(
            self.magic,
            self.opcode,
            len(self.key),
            len(self.extras),
            self.datatype,
            self.vbucket,
            len(body),
            self.opaque,
            self.cas,
        )
        return head + body


def request(
    opcode: int,
    vbucket: int = 0,
    opaque: int = 0,
    *,
    key: bytes = b"",
    extras: bytes = b"",
    value: bytes = b"",
    datatype: int = 0,
    cas: int = 0,
) -> bytes:
    return Message(REQUEST, opcode, key, extras, datatype, vbucket, opaque, cas, value).packed()


def answer(to: Message, status: int = 0, *, extras: bytes = b"", value: bytes = b"", datatype: int = 0) -> bytes:
    return Message(RESPONSE, to.opcode, b"", extras, datatype, status, to.opaque, 0, value).packed()


def messages(buffer: bytearray) -> Iterator[Message]:
    """Take whole frames from the front of a buffer."""
    while len(buffer) >= HEADER.size:
        magic, opcode, key, extras, datatype, vbucket, body, opaque, cas = HEADER.unpack_from(buffer)
        end = HEADER.size + body
        if len(buffer) < end:
            return
        # Framing extras of requests: the lengths of both share the field of the key's length.
        framing, key = (key >> 8, key & 0xFF) if magic == 0x08 else (0, key)
        at = HEADER.size + framing
        found = bytes(buffer[at:end])
        yield Message(
            magic,
            opcode,
            found[extras : extras + key],
            found[:extras],
            datatype,
            vbucket,
            opaque,
            cas,
            found[extras + key :],
        )
        del buffer[:end]


def leb128(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def snappy(data: bytes) -> bytes:
    """Return data as one literal, or as one repeated byte: a copy that overlaps itself, as encoders write runs."""
    if not data:
        return b"\x00"
    if len(data) > 4 and len(set(data)) == 1 and len(data) <= 65:
        # A literal of one byte, then a copy of the rest at offset 1 (copy with a two-byte offset).
        return leb128(len(data)) + b"\x00" + data[:1] + bytes([(len(data) - 2) << 2 | 2]) + b"\x01\x00"
    size = len(data) - 1
    tag = bytes([size << 2]) if size < 60 else bytes([61 << 2]) + size.to_bytes(2, "little")
    return leb128(len(data)) + tag + data
