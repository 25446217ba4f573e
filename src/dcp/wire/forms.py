"""The tables made ready for single frames: what is the same for all of a magic and an opcode, worked out once."""

from __future__ import annotations

from collections.abc import Mapping

from dcp.wire.field import Field, struct_of
from dcp.wire.layout import Dialect, Kind, Layout, Magic, Message, Presence

Fields = dict[str, "int | bytes"]

# What is wanted instead of nothing, and instead of something.
_WANTED = {Presence.NONE: ("", "0"), Presence.MAY: ("", ""), Presence.MUST: ("at least 1", "")}
# A status that no answer is declared for.
_UNDECLARED = -1


class Section:
    """Fields of fixed width, one behind the other."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self._struct = struct_of(fields)
        self.size = self._struct.size
        self._names = tuple(f.name for f in fields)
        self._plain = all(f.visible for f in fields)

    def read(self, raw: bytes, at: int, fields: Fields, lengths: dict[str, int]) -> None:
        """Take the fields that stand at `at`; those that measure another section go to `lengths`."""
        values = self._struct.unpack_from(raw, at)
        if self._plain:
            fields.update(zip(self._names, values))  # noqa: B905
            return
        for f, value in zip(self.fields, values, strict=True):
            if f.measures:
                lengths[f.measures] = value
            elif f.visible or any(value):
                fields[f.name] = value

    def write(self, fields: Mapping[str, int | bytes], lengths: Mapping[str, int]) -> bytes:
        """The bytes of the fields; struct.error where one does not fit."""
        if self._plain:
            return self._struct.pack(*[fields[name] for name in self._names])
        return self._struct.pack(*[self.value_of(f, fields, lengths) for f in self.fields])

    @staticmethod
    def value_of(field: Field, fields: Mapping[str, int | bytes], lengths: Mapping[str, int]) -> int | bytes:
        """What is written for a field: nothing for reserved bytes that are not given."""
        return lengths[field.measures] if field.measures else fields.get(field.name, b"")


class Form:
    """One layout of one message, under a kind of magic."""

    def __init__(self, message: Message, layout: Layout, kind: Kind) -> None:
        self.message = message
        self.layout = layout
        self.title = message.name + (" response" if kind.answers and message.kind is not kind else "")
        self.extras, self.engine, self.content = map(Section, layout.sections)
        # Whether there is more than extras, key and value.
        self.measured = bool(layout.engine) or any(f.measures for f in layout.extras)
        self.key, self.value = _WANTED[layout.key], _WANTED[layout.value]
        self.when = tuple(layout.when.items())
        self.allowed = layout.required | layout.optional

    def key_problem(self, length: int) -> str:
        """What the length of the key should be instead, if this one cannot be."""
        return self.key[length > 0]

    def value_problem(self, length: int) -> str:
        """The same of the value, where it holds no fields."""
        return self.value[length > 0] or (self.layout.body.problem(length) if self.layout.body else "")


class Family:
    """The forms that a magic and an opcode can mean.

    They are chosen by a number of the header: the type where messages have one, else the status of an answer.
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
        self._others = () if self.typed else _forms(messages, magic.kind, None, _UNDECLARED)

    def forms(self, number: int) -> tuple[Form, ...]:
        """Those of a type or a status (0 for requests without a type), in the order in which they are tried."""
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
    """The families of a dialect, by magic and opcode."""
    # Tables are too large to be a key.
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
