"""Frames as objects: `decode` reads them from bytes, `encode` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dcp._codec import Splitter
from dcp.errors import UsageError
from dcp.wire import DIALECTS
from dcp.wire.framing import FrameInfo, RequestInfo
from dcp.wire.layout import KINDS, Dialect, Kind
from dcp.wire.memcached import MAX_FRAME
from dcp.wire.reading import UNKNOWN, read_opaque_parts, read_parts
from dcp.wire.writing import layout_of, write_frame

__all__ = [
    "UNKNOWN",
    "Frame",
    "decode",
    "dialect_of",
    "encode",
    "layout_of",
    "read_frame",
    "read_opaque",
    "split",
]


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of a dialect. Immutable and hashable.

    name: name of the message in the table of its dialect. A frame with an opcode that the table lacks is called
        "unknown"; its fields are `opcode` and `extras`.
    magic: first byte, a Magic: 0x80 for requests, 0x81 for responses, 0x08 and 0x18 for those with framing extras,
        0x82 and 0x83 for requests of the server and their responses.
    opaque: number that a response repeats; all messages of a stream carry that of its request. Default 0.
    cas: version of the document. Default 0.
    vbucket: number of the vbucket. 0 in responses.
    status: result, a Status. 0, which is success, in requests.
    datatype: format of the value, a bit set: 1 JSON, 2 snappy, 4 xattrs. Default 0.
    fields: further fields by name, in wire order, as the table lists them. All of them have to be given to `encode`.
    key: key, with its collection id before it where the connection has collections.
    value: value as it is sent, compressed if `datatype` says so.
    frame_info: framing extras, a tuple of FrameInfo.
    """

    name: str
    magic: int
    opaque: int = 0
    cas: int = 0
    vbucket: int = 0
    status: int = 0
    datatype: int = 0
    fields: Mapping[str, int | bytes] = field(default_factory=dict)
    key: bytes = b""
    value: bytes = b""
    frame_info: tuple[FrameInfo, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.magic, self.opaque, self.vbucket, self.status, self.key, self.value))

    def __repr__(self) -> str:
        shown = [self.name, f"magic=0x{self.magic:02x}", f"opaque=0x{self.opaque:x}"]
        shown += [f"cas=0x{self.cas:x}"] if self.cas else []
        shown += [f"{name}={getattr(self, name)}" for name in ("vbucket", "status", "datatype") if getattr(self, name)]
        shown += [f"{name}={_short(value)}" for name, value in self.fields.items()]
        shown += [f"key={_short(self.key)}"] if self.key else []
        shown += [f"value={self.shown_value(32)}"] if self.value else []
        shown += [f"frame_info={self.frame_info}"] if self.frame_info else []
        return f"Frame({', '.join(shown)})"

    def shown_value(self, longest: int) -> str:
        """Return the beginning of the value for people; nothing of it if it holds credentials."""
        if self.name in _SECRET:
            return f"({len(self.value)} bytes, not shown)"
        return _short(self.value, longest)

    @property
    def kind(self) -> Kind:
        """Kind of the frame: request or response, of the client or of the server."""
        return KINDS[self.magic]

    @property
    def stream_id(self) -> int | None:
        """Stream id of a request, where several streams share a vbucket; else None."""
        for info in self.frame_info:
            if info.id == RequestInfo.STREAM_ID and len(info.data) == 2 and not self.kind.answers:
                return int.from_bytes(info.data, "big")
        return None

    def body(self, dialect: str = "dcp") -> Any:
        """Return the decoded value: a failover log, JSON, a stream filter, …; the bytes if it is data.

        dialect: dialect of the frame. Default "dcp".

        Raises RemoteProtocolError if the value is malformed, UsageError if the dialect has no such frame.
        """
        if self.name == UNKNOWN:
            return self.value
        body = layout_of(self, dialect_of(dialect))[1].body
        return self.value if body is None else body.decode(self.value, self.fields)


_SECRET = frozenset(message.name for dialect in DIALECTS.values() for message in dialect.messages if message.secret)


def _short(value: int | bytes, longest: int = 32) -> str:
    if isinstance(value, int) or len(value) <= longest:
        return repr(value)
    return f"{value[:longest]!r}… ({len(value)} bytes)"


def dialect_of(name: str | Dialect) -> Dialect:
    """Return the dialect with this name; a Dialect as it is. Raises UsageError, which lists the known names."""
    if isinstance(name, Dialect):
        return name
    try:
        return DIALECTS[name]
    except (KeyError, TypeError):
        raise UsageError(f"dialect: expected one of {', '.join(DIALECTS)}, found {name!r}") from None


def decode(data: bytes, dialect: str = "dcp", *, max_frame: int = MAX_FRAME) -> list[Frame]:
    """Decode bytes to frames.

    data: any number of whole frames.
    dialect: "tap", "upr1", "upr2" or "dcp", the default.
    max_frame: largest frame to accept, in bytes. Default 30 MiB.

    Returns the frames. `encode` gives their bytes again.

    Raises FrameError if a frame is malformed or incomplete, UsageError for an unknown dialect.
    """
    table = dialect_of(dialect)
    return [read_frame(raw, table, offset) for offset, raw in split(data, max_frame)]


def encode(frame: Frame, dialect: str | Dialect = "dcp") -> bytes:
    """Encode a frame to bytes. All lengths are computed.

    frame: the frame.
    dialect: "tap", "upr1", "upr2" or "dcp", the default.

    Returns the bytes. `decode` gives an equal frame.

    Raises UsageError if the dialect has no such message, if fields are missing or too many, or a value is out of
    range: the message says which, and what was expected.
    """
    return write_frame(frame, dialect_of(dialect))


def split(data: bytes, max_frame: int = MAX_FRAME) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of each frame. Raises FrameError if the last is incomplete or a length is out of range."""
    splitter = Splitter(max_frame)
    splitter.feed(data)
    offset = 0
    for raw in splitter:
        yield offset, raw
        offset = splitter.offset
    splitter.finish()


def read_frame(raw: bytes, dialect: Dialect, offset: int = 0) -> Frame:
    """Return the frame in `raw`, which holds exactly one. `offset` is where it starts, for FrameError."""
    return Frame(*read_parts(raw, dialect, offset))


def read_opaque(raw: bytes, offset: int = 0) -> Frame:
    """Return the frame in `raw` as "unknown", whatever its opcode: its layout is not checked."""
    return Frame(*read_opaque_parts(raw, offset))
