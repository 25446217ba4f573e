"""Fields of fixed width, of which the tables are made."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag


@dataclass(frozen=True, slots=True)
class Field:
    """One field of fixed width: a big-endian integer, or reserved bytes.

    name: key in `Frame.fields`, and name of the column.
    width: in bytes.
    signed: True for a signed integer.
    reserved: True for bytes without a meaning.
    values: names of the known values; others are legal, too.
    measures: section whose length this integer is; it is computed, and not part of `Frame.fields`.
    """

    name: str
    width: int
    signed: bool = False
    reserved: bool = False
    values: type[IntEnum] | type[IntFlag] | None = None
    measures: str = ""

    @property
    def format(self) -> str:
        """Format of the field for the struct module, without byte order."""
        if self.reserved:
            return f"{self.width}s"
        code = "BH_I___Q"[self.width - 1]
        return code.lower() if self.signed else code

    @property
    def visible(self) -> bool:
        """True if `Frame.fields` always has the field. Reserved bytes are there only if they are not zero."""
        return not (self.reserved or self.measures)


def u8(name: str, values: type[IntEnum] | type[IntFlag] | None = None, measures: str = "") -> Field:
    """Return an unsigned integer of 1 byte."""
    return Field(name, 1, values=values, measures=measures)


def u16(name: str, values: type[IntEnum] | type[IntFlag] | None = None, measures: str = "") -> Field:
    """Return an unsigned integer of 2 bytes."""
    return Field(name, 2, values=values, measures=measures)


def u32(name: str, values: type[IntEnum] | type[IntFlag] | None = None) -> Field:
    """Return an unsigned integer of 4 bytes."""
    return Field(name, 4, values=values)


def u64(name: str) -> Field:
    """Return an unsigned integer of 8 bytes."""
    return Field(name, 8)


def i64(name: str) -> Field:
    """Return a signed integer of 8 bytes."""
    return Field(name, 8, signed=True)


def reserved(width: int) -> Field:
    """Return bytes that are zero in known versions. Other values are kept as the field `reserved`."""
    return Field("reserved", width, reserved=True)


def struct_of(fields: tuple[Field, ...]) -> struct.Struct:
    """Return the struct that packs and unpacks these fields in wire order."""
    return struct.Struct(">" + "".join(f.format for f in fields))
