"""Index of the tables for reading and writing single frames, computed once for each magic and opcode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError

from dcp.wire.field import Field, struct_of
from dcp.wire.layout import HEADER_STRUCT, Dialect, Kind, Layout, Magic, Message, Presence

Fields = dict[str, "int | bytes"]

# Expected lengths, in messages: (if there are no bytes, if there are some); "" if that is right.
_WANTED = {Presence.NONE: ("", "0"), Presence.MAY: ("", ""), Presence.MUST: ("at least 1", "")}
# A status for which no table has an answer.
_UNDECLARED = -1


class Section:
    """Consecutive fields of fixed width."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self._struct = struct_of(fields)
        self.size = self._struct.size
        self._names = tuple(f.name for f in fields)
        self._plain = all(f.visible for f in fields)
        # Names of the fields, and their format with zeros in place of reserved bytes.
        self.numbers = tuple(f.name for f in fields if f.visible)
        self.format = "".join(f"{f.width}x" if f.reserved else f.format for f in fields)

    def read(self, raw: bytes, at: int, fields: Fields, lengths: dict[str, int]) -> None:
        """Read the fields at `raw[at:]` into `fields`, and the lengths of other sections into `lengths`."""
        values = self._struct.unpack_from(raw, at)
        if self._plain:
            fields.update(zip(self._names, values))  # noqa: B905
            return
        for f, value in zip(self.fields, values, strict=True):
            if f.measures:
                lengths[f.measures] = value
            elif f.visible or any(value):
                fields[f.name] = value

    def bytes_of(self, name: str, number: int) -> tuple[int, bytes]:
        """Return the offset of a number in the section, and its bytes."""
        names = [f.name for f in self.fields]
        at = names.index(name)
        return struct_of(self.fields[:at]).size, struct_of(self.fields[at : at + 1]).pack(number)

    def write(self, fields: Mapping[str, int | bytes], lengths: Mapping[str, int]) -> bytes:
        """Return the bytes of the fields. Raises struct.error if a value does not fit."""
        return self._struct.pack(*[self.value_of(f, fields, lengths) for f in self.fields])

    @staticmethod
    def value_of(field: Field, fields: Mapping[str, int | bytes], lengths: Mapping[str, int]) -> int | bytes:
        """Return the value to write for a field. Reserved bytes default to b"", which struct pads with zeros."""
        return lengths[field.measures] if field.measures else fields.get(field.name, b"")


def pack(struct: Struct, numbers: Sequence[object]) -> bytes | None:
    """Return the bytes of numbers; None if one is no integer, or does not fit."""
    if set(map(type, numbers)) != {int}:
        return None
    try:
        return struct.pack(*numbers)
    except StructError:
        return None


class Form:
    """One layout of one message, for one kind of frame."""

    def __init__(self, message: Message, layout: Layout, kind: Kind) -> None:
        self.message = message
        self.layout = layout
        self.title = message.name + (" response" if kind.answers and message.kind is not kind else "")
        self.extras, self.engine, self.content = map(Section, layout.sections)
        # True if there is more than extras, key and value.
        self.measured = bool(layout.engine) or any(f.measures for f in layout.extras)
        self.plain = not (self.measured or self.content.fields or layout.when)
        # Header and extras of a plain request.
        self.request = Struct(HEADER_STRUCT.format + self.extras.format)
        self.wrong_key, self._wrong_value = _WANTED[layout.key], _WANTED[layout.value]
        self.when = tuple(layout.when.items())
        # Numbers of `when` as bytes, with their offsets in the extras.
        self._opening = tuple(self.extras.bytes_of(name, number) for name, number in self.when)
        self.allowed = layout.required | layout.optional

    def opens(self, raw: bytes, at: int) -> bool:
        """Return whether the extras at `raw[at:]`, of the right size, have the numbers of `when`."""
        # Not `all`, which takes several times as long: every marker comes here.
        for offset, found in self._opening:  # noqa: SIM110
            if not raw.startswith(found, at + offset):
                return False
        return True

    def value_problem(self, length: int) -> str:
        """Return what the length of a value without fields should be instead, or "" if it is right."""
        return self._wrong_value[length > 0] or (self.layout.body.problem(length) if self.layout.body else "")


class Family:
    """Forms of all messages that share a magic and an opcode.

    A number of the header selects among them: the type where messages have one, else the status of an answer.
    """

    def __init__(self, magic: Magic, messages: tuple[Message, ...]) -> None:
        self.framed = magic.framed
        self.typed = any(message.type is not None for message in messages)
        self.has_status = magic.kind.answers and not self.typed

        types = {message.type for message in messages if message.type is not None}
        statuses = {0, *(answer.status for message in messages for answer in message.answer)}
        if self.typed:
            self._by_number = {type: _forms(messages, magic.kind, type, 0) for type in types}
        else:
            self._by_number = {status: _forms(messages, magic.kind, None, status) for status in statuses}
        forms = self._by_number[0] if magic is Magic.REQUEST and not self.typed else ()
        # The form of all requests, if there is one, and it has no more than extras, key and value.
        self.only_form = forms[0] if len(forms) == 1 and forms[0].plain else None
        self._others = () if self.typed else _forms(messages, magic.kind, None, _UNDECLARED)

    def forms(self, number: int) -> tuple[Form, ...]:
        """Return the forms for a type or status, in the order in which to try them. Requests without a type have 0."""
        return self._by_number.get(number, self._others)


def _forms(messages: tuple[Message, ...], kind: Kind, type: int | None, status: int) -> tuple[Form, ...]:
    return tuple(
        Form(message, layout, kind)
        for message in messages
        if message.type in (None, type)
        for layout in message.forms(kind, status)
    )


_KNOWN: dict[str, tuple[Dialect, dict[tuple[int, int], Family]]] = {}


def families(dialect: Dialect) -> dict[tuple[int, int], Family]:
    """Return the families of a dialect by magic and opcode."""
    # Cached by name. The identity check covers dialects that tests make under a known name.
    known = _KNOWN.get(dialect.name)
    if known is None or known[0] is not dialect:
        made = {
            (int(magic), opcode): Family(magic, messages)
            for (kind, opcode), messages in dialect.by_opcode.items()
            for magic in Magic
            if magic.kind is kind
        }
        known = _KNOWN[dialect.name] = dialect, made
    return known[1]
