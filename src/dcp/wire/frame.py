"""One message as an object, and back to bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dcp._codec import Splitter
from dcp.errors import UsageError
from dcp.wire import DIALECTS
from dcp.wire.framing import FrameInfo, RequestInfo
from dcp.wire.layout import Dialect, Kind, Magic
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
    """One message.

    `name` is that of its row in the dialect's table, `fields` what the row names, in wire order.
    A request has a `vbucket`, an answer a `status`. `frame_info` are the framing extras of magics
    0x08 and 0x18. A frame with an opcode that the table lacks is called `unknown`; its fields are
    `opcode` and `extras`.
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
        """The value for a person to read: its beginning, and nothing of a credential."""
        if self.name in _SECRET:
            return f"({len(self.value)} bytes, not shown)"
        return _short(self.value, longest)

    @property
    def kind(self) -> Kind:
        """Whether the frame asks or answers."""
        return Magic(self.magic).kind

    @property
    def stream_id(self) -> int | None:
        """The stream that a request belongs to, where several share a vbucket."""
        for info in self.frame_info:
            if info.id == RequestInfo.STREAM_ID and len(info.data) == 2 and not self.kind.answers:
                return int.from_bytes(info.data, "big")
        return None

    def body(self, dialect: str = "dcp") -> Any:
        """What the value says: a failover log, JSON, a stream filter, …; the value itself if it is data."""
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
    """The dialect with this name, or the one that is given; UsageError lists those there are."""
    if isinstance(name, Dialect):
        return name
    try:
        return DIALECTS[name]
    except (KeyError, TypeError):
        raise UsageError(f"dialect: expected one of {', '.join(DIALECTS)}, found {name!r}") from None


def decode(data: bytes, dialect: str = "dcp", *, max_frame: int = MAX_FRAME) -> list[Frame]:
    """The frames in `data`, which must be whole.

    Raises FrameError where a frame breaks its layout, or is not all there.
    """
    table = dialect_of(dialect)
    return [read_frame(raw, table, offset) for offset, raw in split(data, max_frame)]


def encode(frame: Frame, dialect: str | Dialect = "dcp") -> bytes:
    """The bytes of a frame. All lengths are computed.

    Raises UsageError where the frame is not one that the dialect can say.
    """
    return write_frame(frame, dialect_of(dialect))


def split(data: bytes, max_frame: int = MAX_FRAME) -> Iterator[tuple[int, bytes]]:
    """Each frame of `data` as the byte at which it starts, and its bytes."""
    splitter = Splitter(max_frame)
    splitter.feed(data)
    offset = 0
    for raw in splitter:
        yield offset, raw
        offset = splitter.offset
    splitter.finish()


def read_frame(raw: bytes, dialect: Dialect, offset: int = 0) -> Frame:
    """The frame that `raw` holds, all of it and nothing else, as the splitter cuts it."""
    return Frame(*read_parts(raw, dialect, offset))


def read_opaque(raw: bytes, offset: int = 0) -> Frame:
    """A whole frame without a look at its layout: how unknown opcodes are kept."""
    return Frame(*read_opaque_parts(raw, offset))
