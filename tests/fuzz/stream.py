"""Interpretation of a fuzzer's bytes: options, and a stream of frames that are whole more often than chance has it."""

from __future__ import annotations

from functools import cache

import dcp
from dcp.wire.document import join_collection
from dcp.wire.frame import dialect_of
from dcp.wire.framing import FrameInfo, join_infos, stream_id
from dcp.wire.layout import HEADER_STRUCT, Dialect, Effect, Kind, Layout, Magic, Message, Presence, Role

NAMES = tuple(dcp.DIALECTS)
RAW, REPAIRED, BUILT = 0, 1, 2


class Source:
    """Reader of an input. After its end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        self._at += count
        return found.ljust(count, b"\0")

    def rest(self) -> bytes:
        found = self._data[self._at :]
        self._at = len(self._data)
        return found


class Chance:
    """Pseudorandom numbers from a seed; faster than `random`."""

    def __init__(self, seed: int) -> None:
        self._state = seed * 2654435761 + 1

    def below(self, bound: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & 0xFFFF_FFFF_FFFF_FFFF
        return (self._state >> 33) % bound

    def cut(self, data: bytes) -> list[bytes]:
        """Split `data` into pieces of any length, some of them empty."""
        longest = 1 + self.below(1 + len(data))
        pieces, at = [], 0
        while at < len(data):
            size = self.below(1 + (longest if self.below(3) else 30))
            pieces.append(data[at : at + size])
            at += size
        return pieces


def stream_of(mode: int, data: bytes, dialect: str, *, collections: bool = False) -> bytes:
    """Return the stream that an input encodes."""
    if mode == RAW:
        return data
    return _repair(data) if mode == REPAIRED else _build(Source(data), dialect_of(dialect), collections)


def _repair(data: bytes) -> bytes:
    """Return the stream with every length corrected; the last frame ends where the data does."""
    out, at = bytearray(data), 0
    while at + HEADER_STRUCT.size <= len(out):
        if out[at] not in _MAGICS:
            out[at] = 0x80
        body = int.from_bytes(out[at + 8 : at + 12], "big")
        body = min(body, len(out) - at - HEADER_STRUCT.size)
        framed = out[at] in (Magic.FRAMED_REQUEST, Magic.FRAMED_RESPONSE)
        out[at + 4] = extras = min(out[at + 4], body)
        if framed:
            out[at + 2] = infos = min(out[at + 2], body - extras)
            out[at + 3] = min(out[at + 3], body - extras - infos)
        else:
            key = min(int.from_bytes(out[at + 2 : at + 4], "big"), body - extras)
            out[at + 2 : at + 4] = key.to_bytes(2, "big")
        out[at + 8 : at + 12] = body.to_bytes(4, "big")
        at += HEADER_STRUCT.size + body
    return bytes(out[:at])


_MAGICS = frozenset(Magic)


# ---------------------------------------------------------------------------------- from the tables


@cache
def _forms(name: str) -> tuple[tuple[Message, Layout], ...]:
    """Return the forms that a producer of the dialect sends; changes, and messages with an effect, more often."""
    forms = []
    for message in dialect_of(name).messages:
        often = 6 if message.role is Role.ROW else 4 if message.effect is not Effect.NONE else 1
        forms += [(message, form) for form in message.sent] * often
    return tuple(forms)


def _build(source: Source, dialect: Dialect, collections: bool) -> bytes:
    forms = _forms(dialect.name)
    out = bytearray()
    seqno = 0
    while source and len(out) < 1 << 16:
        message, layout = forms[source.number(2) % len(forms)]
        choice, whose = source.byte(), source.byte()
        seqno = source.number(8) if choice & 1 else seqno + 1
        frame = _frame(source, message, layout, choice, whose, seqno, collections)
        if choice & 2:
            frame[source.number(2) % len(frame)] = source.byte()
        out += frame
    return bytes(out)


def _frame(
    source: Source, message: Message, layout: Layout, choice: int, whose: int, seqno: int, collections: bool
) -> bytearray:
    infos, counted = _infos(source, choice) if choice & 4 else (b"", True)
    key = b"" if layout.key is Presence.NONE else source.take(1 + source.byte() % 24)
    if collections and message.document and key:
        key = join_collection(source.number(1 + source.byte() % 4), key)
    datatype = source.byte() if choice & 8 else 0
    value = b"" if layout.value is Presence.NONE else _value(source, datatype)
    meta = source.take(source.byte() % 8) if "meta" in layout.measured and choice & 16 else b""
    engine = source.take(source.byte() % 12) if "engine" in layout.measured else b""
    lengths = {"engine": layout.engine_length or len(engine), "meta": len(meta)}
    sections = []
    for fields, packer in zip(layout.sections, layout.structs, strict=True):
        numbers: list[int | bytes] = []
        for f in fields:
            if f.measures:
                numbers.append(lengths[f.measures])
            elif f.reserved:
                numbers.append(bytes(f.width))
            elif f.name == "seqno":
                numbers.append(seqno & ((1 << 8 * f.width) - 1))
            elif f.name in layout.when:
                numbers.append(layout.when[f.name])
            else:
                numbers.append(source.number(f.width) >> f.signed)
        sections.append(packer.pack(*numbers))
    tail = sections[1] + engine + key + sections[2] + value + meta
    framed = bool(choice & 4)
    head = (len(infos) if counted else 0) << 8 | len(key) & 0xFF if framed else len(key)
    header = HEADER_STRUCT.pack(
        _magic(message.kind, framed),
        message.opcode,
        head,
        len(sections[0]),
        datatype if message.type is None else message.type,
        whose >> 2 & 3,
        len(infos) + len(sections[0]) + len(tail),
        whose & 3,
        source.number(2) << 16,
    )
    return bytearray(header + infos + sections[0] + tail)


def _magic(kind: Kind, framed: bool) -> int:
    if not framed:
        return {Kind.REQUEST: 0x80, Kind.RESPONSE: 0x81, Kind.SERVER_REQUEST: 0x82, Kind.SERVER_RESPONSE: 0x83}[kind]
    return 0x18 if kind.answers else 0x08


def _infos(source: Source, choice: int) -> tuple[bytes, bool]:
    """Return framing extras, and whether the header counts them."""
    if choice & 32:
        return join_infos([stream_id(source.byte() & 3)]), not choice & 64
    if choice & 64:
        return source.take(source.byte() % 20), True
    return join_infos([FrameInfo(source.byte(), source.take(source.byte() % 20))]), True


def _value(source: Source, datatype: int) -> bytes:
    size = source.byte()
    piece = source.take(1 + (size & 31))
    value = piece * (1 << (size >> 5))
    if datatype & 4:
        value = _xattrs(source) + value
    return _snappy(source, value) if datatype & 2 else value


def _xattrs(source: Source) -> bytes:
    section = bytearray()
    for _ in range(source.byte() & 3):
        name, text = source.take(source.byte() & 7), source.take(source.byte() & 15)
        section += (len(name) + len(text) + 2).to_bytes(4, "big") + name + b"\0" + text + b"\0"
    return len(section).to_bytes(4, "big") + bytes(section)


def _snappy(source: Source, value: bytes) -> bytes:
    """Return a block of literals and copies. Its length is right unless the input says otherwise."""
    out, length = bytearray(), 0
    for at in range(0, len(value), 60):
        # A literal of up to 60 bytes: its size minus 1 is in the tag.
        literal = value[at : at + 60]
        out.append(len(literal) - 1 << 2)
        out += literal
        length += len(literal)
        shape = source.byte()
        # A copy: kind 1 has an offset of 11 bits, kinds 2 and 3 have 16 and 32.
        if shape & 3:
            offset, size = 1 + source.byte() % length, 1 + (shape >> 2)
            if shape & 3 == 1:
                size = 4 + (size & 7)
                out += bytes([(offset >> 8) << 5 | (size - 4) << 2 | 1, offset & 0xFF])
            else:
                out += bytes([size - 1 << 2 | (shape & 3)]) + offset.to_bytes(2 if shape & 3 == 2 else 4, "little")
            length += size
    # Now and then a wrong length.
    if source.byte() == 255:
        length = source.number(4)
    # The length is a varint, as a collection id is.
    return join_collection(length, bytes(out))
