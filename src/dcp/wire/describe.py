"""Frames as text for people: numbers by their names, and the content of values."""

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
    """Return the content of a frame on one line, without name, vbucket and opaque. Passwords are not shown."""
    layout = Layout() if frame.name == UNKNOWN else layout_of(frame, dialect_of(dialect))[1]
    parts = [_name_of(Status, frame.status)] if frame.kind.answers and frame.name != UNKNOWN else []
    parts += [f"stream {frame.stream_id}"] if frame.stream_id is not None else []
    parts += [f"{name}={_field(layout, name, value)}" for name, value in frame.fields.items()]
    parts += [f"key={frame.key!r}"] if frame.key else []
    parts += [_name_of(Datatype, frame.datatype)] if frame.datatype else []
    parts += [f"cas=0x{frame.cas:x}"] if frame.cas else []
    parts += [_value(frame, layout, dialect)] if frame.value else []
    return " ".join(parts)


def _field(layout: Layout, name: str, value: int | bytes) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if name == "opcode":
        return f"0x{value:02x}"
    if value == 0xFFFF_FFFF_FFFF_FFFF:
        return "max"
    field = layout.fields.get(name)
    return _name_of(field.values, value) if field and field.values else str(value)


def _name_of(names: type[IntEnum] | type[IntFlag], value: int) -> str:
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
