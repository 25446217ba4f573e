"""The smallest word of the tables: one fixed-width piece of a frame."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag


@dataclass(frozen=True, slots=True)
class Field:
    """One fixed-width piece of a section: a big-endian integer, or reserved bytes.

    `values` names what the integer can mean; other values are legal and kept. `measures` marks an
    integer that is only the length of another section: it is computed and never shown.
    """

    name: str
    width: int
    signed: bool = False
    reserved: bool = False
    values: type[IntEnum] | type[IntFlag] | None = None
    measures: str = ""

    @property
    def format(self) -> str:
        """The struct format of the field, without byte order."""
        if self.reserved:
            return f"{self.width}s"
        code = "BH_I___Q"[self.width - 1]
        return code.lower() if self.signed else code

    @property
    def visible(self) -> bool:
        """Whether the field always shows among a frame's fields; reserved bytes do only when set."""
        return not (self.reserved or self.measures)


def u8(name: str, values: type[IntEnum] | type[IntFlag] | None = None, measures: str = "") -> Field:
    return Field(name, 1, values=values, measures=measures)


def u16(name: str, values: type[IntEnum] | type[IntFlag] | None = None, measures: str = "") -> Field:
    return Field(name, 2, values=values, measures=measures)


def u32(name: str, values: type[IntEnum] | type[IntFlag] | None = None) -> Field:
    return Field(name, 4, values=values)


def u64(name: str) -> Field:
    return Field(name, 8)


def i64(name: str) -> Field:
    return Field(name, 8, signed=True)


def reserved(width: int) -> Field:
    """Bytes that are zero today; what a peer puts there is kept as the field `reserved`."""
    return Field("reserved", width, reserved=True)


def struct_of(fields: tuple[Field, ...]) -> struct.Struct:
    """The struct that packs and unpacks these fields in wire order."""
    return struct.Struct(">" + "".join(f.format for f in fields))
