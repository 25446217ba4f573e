"""A frame in words: the names that its numbers have, and what its value says."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from dcp.errors import DcpError
from dcp.wire.body import Records
from dcp.wire.document import Datatype
from dcp.wire.frame import UNKNOWN, Frame, dialect_of, layout_of
from dcp.wire.layout import Layout
from dcp.wire.memcached import Status

_LONGEST = 60


def describe(frame: Frame, dialect: str = "dcp") -> str:
    """Everything a frame says beyond its name, vbucket and opaque, on one line."""
    layout = Layout() if frame.name == UNKNOWN else layout_of(frame, dialect_of(dialect))[1]
    said = [_named(Status, frame.status)] if frame.kind.answers and frame.name != UNKNOWN else []
    said += [f"stream {frame.stream_id}"] if frame.stream_id is not None else []
    said += [f"{name}={_field(layout, name, value)}" for name, value in frame.fields.items()]
    said += [f"key={frame.key!r}"] if frame.key else []
    said += [_named(Datatype, frame.datatype)] if frame.datatype else []
    said += [f"cas=0x{frame.cas:x}"] if frame.cas else []
    said += [_value(frame, layout, dialect)] if frame.value else []
    return " ".join(said)


def _field(layout: Layout, name: str, value: int | bytes) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if name == "opcode":
        return f"0x{value:02x}"
    if value == 0xFFFF_FFFF_FFFF_FFFF:
        return "max"
    field = layout.fields.get(name)
    return _named(field.values, value) if field and field.values else str(value)


def _named(names: type[IntEnum] | type[IntFlag], value: int) -> str:
    if issubclass(names, IntEnum):
        return names(value).name if value in names._value2member_map_ else f"0x{value:x}"
    named = [flag.name or "" for flag in names if value & flag == flag]
    rest = value & ~sum(names)
    return "|".join(named + [f"0x{rest:x}"] * bool(rest)) or "0"


def _value(frame: Frame, layout: Layout, dialect: str) -> str:
    if isinstance(layout.body, Records):
        try:
            return str([tuple(row) if isinstance(row, tuple) else row for row in frame.body(dialect)])
        except DcpError:
            pass
    return frame.shown_value(_LONGEST)
