"""The encoder: columns back to the frames they came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from dcp import _codec
from dcp.columns.plan import field_offsets
from dcp.columns.schema import Column, columns_of
from dcp.errors import UsageError
from dcp.wire.frame import dialect_of
from dcp.wire.layout import HEADER_STRUCT, Dialect, Layout, Message, Presence, Role

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The columns that are no fields of a form, in the order of `_codec`.
_SPECIAL = ("event", "vbucket", "cas", "datatype", "opaque", "key", "collection_id", "value", "xattrs", "stream_id")
_NOWHERE = -1

_BYTES = frozenset(("z", "u", "Z", "U", "vz", "vu"))
_INTEGERS = frozenset("cCsSiIlL")
_WIDTHS = {"C": 1, "S": 2, "I": 4, "L": 8}
_Described = tuple[tuple[str, str, str | None], ...]


class ArrowArray(Protocol):
    """Rows in columns, of any Arrow library."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...


class Encoder:
    """Turns rows into the frames of a dialect: a `Batch`, or any Arrow record batch with such columns.

    A row needs the column `event`; what else is missing is 0, or absent where a frame can do without.
    A form of a message is chosen by what the row has: a deletion with a delete_time is one of the
    newer form. Integers of any width are taken, if they fit; signed ones of 64 bits by their bit pattern.

    inflate: values are as a `Decoder` with this option gives them: where it is True they are plain, so
    the snappy bit of their datatype is not sent.
    stream_id_defect: leave the stream id of deletions and expirations out of the header's length, as
    servers since 6.5 do.
    """

    def __init__(self, dialect: str = "dcp", *, inflate: bool = True, stream_id_defect: bool = False) -> None:
        self._dialect = dialect_of(dialect)
        self._inflate = inflate
        self._defect = stream_id_defect

    def encode(self, rows: ArrowArray, opaque: int | None = None) -> bytes:
        """The frames of the rows. `opaque` is that of all of them; without it the column `opaque` says, or 0."""
        recipe, array = self._open(rows, opaque)
        return recipe.encode(array, opaque, self._inflate, self._defect)

    def encode_into(self, buffer: Buffer, rows: ArrowArray, opaque: int | None = None) -> int:
        """Write the frames to the beginning of a buffer, and say how many bytes they are."""
        recipe, array = self._open(rows, opaque)
        return recipe.encode_into(buffer, array, opaque, self._inflate, self._defect)

    def _open(self, rows: ArrowArray, opaque: int | None) -> tuple[_codec.Recipe, object]:
        if not hasattr(rows, "__arrow_c_array__"):
            raise UsageError(f"rows: expected a batch or an Arrow record batch, found {type(rows).__name__}")
        if opaque is not None and not 0 <= opaque < 1 << 32:
            raise UsageError(f"opaque: expected an integer of 32 bits, found {opaque!r}")
        schema, array = rows.__arrow_c_array__()
        try:
            described = tuple(_codec.arrow_columns(schema))
        except ValueError as error:
            raise UsageError(f"rows: {error}") from None
        return recipe_for(self._dialect.name, described), array


@lru_cache(maxsize=64)
def recipe_for(dialect: str, described: _Described, sent_as: tuple[tuple[str, str], ...] = ()) -> _codec.Recipe:
    """How data with these columns becomes frames. `sent_as`: events that go as another one."""
    table = dialect_of(dialect)
    numbers = {name: number for number, (name, _, _) in enumerate(described)}
    if "event" not in numbers:
        raise UsageError(f"rows: expected a column event, found {', '.join(numbers) or 'none'}")
    messages = [message for message in table.messages if message.role is Role.ROW]
    sent = [table.by_name[dict(sent_as).get(message.name, message.name)] for message in messages]
    # Of the forms that a row can take, the one with most of its fields is meant.
    forms = [
        (event, form)
        for event, message in enumerate(sent)
        for form in sorted(_forms(table, message, numbers, described), key=lambda form: -len(form["writings"]))
    ]
    special = [numbers.get(name, _NOWHERE) for name in _SPECIAL]
    needed = {number for _, form in forms for _, _, number in form["writings"]} | set(special)
    columns = [_checked(column) if i in needed else ("", "", None) for i, column in enumerate(described)]
    return _codec.Recipe(columns, special, [message.name for message in messages], forms)


def _checked(column: tuple[str, str, str | None]) -> tuple[str, str, str | None]:
    """The column, if it has a type that its name can have."""
    name, format, values = column
    if name == "event":
        accepted, text = _BYTES if values is None else _INTEGERS, "text, plain or dictionary encoded"
        fits = format in accepted and (values is None or values in _BYTES)
    elif name in ("key", "value", "xattrs"):
        fits, text = format in _BYTES, "binary or text"
    else:
        fits, text = format in _INTEGERS and values is None, "integers"
    if not fits:
        raise UsageError(f"{name}: expected {text}, found the Arrow type {format!r}")
    return column


def _forms(
    dialect: Dialect, message: Message, numbers: dict[str, int], described: _Described
) -> Iterator[dict[str, Any]]:
    """The forms that data with these columns can take."""
    columns = columns_of(dialect)
    seen = set()
    for layout in message.sent:
        nullable = [name for name in layout.required if name in columns and columns[name].nullable]
        if all(name in numbers for name in nullable) and (lengths := _lengths(layout)) not in seen:
            seen.add(lengths)
            form = _form(message, layout, numbers, columns)
            places = _header_places(message, numbers, columns) + [place[1:] for place in form["writings"]]
            found = ((column, _bits(described[column][1], width)) for width, column in places)
            yield form | {"fits": [(column, bits) for column, bits in found if bits]}


def _header_places(message: Message, numbers: dict[str, int], columns: Mapping[str, Column]) -> list[tuple[int, int]]:
    """(width, column) of the numbers that stand before the extras, or in the key."""
    names = {"vbucket", "cas", "opaque"}
    names |= set() if message.kind.answers else {"stream_id"}
    names |= {"datatype"} if message.type is None else set()
    names |= {"collection_id"} if message.document else set()
    return [(_WIDTHS[columns[name].format], numbers[name]) for name in _SPECIAL if name in names & numbers.keys()]


def _bits(format: str, width: int) -> int:
    """How many bits a number of this type may have to fit, 0 if all do; 64 bits may have any sign."""
    held, signed = _WIDTHS.get(format.upper(), 0), format.islower()
    if held == width == 8 or (held <= width and not signed):
        return 0
    return min(8 * width, 63)


def _lengths(layout: Layout) -> tuple[int, int]:
    return layout.extras_length, layout.engine_length


def _form(message: Message, layout: Layout, numbers: dict[str, int], columns: Mapping[str, Column]) -> dict[str, Any]:
    places = [(p.offset - HEADER_STRUCT.size, p.width, numbers[p.name]) for p in layout.places() if p.name in numbers]
    needs = [numbers[p.name] for p in layout.places() if p.name in numbers and columns[p.name].nullable]
    measures = {field.measures: field.name for field in layout.extras if field.measures}
    offsets = field_offsets(layout.extras, 0)
    return {
        "opcode": message.opcode,
        "response": message.kind.answers,
        "type": _NOWHERE if message.type is None else message.type,
        "extras_length": layout.extras_length,
        "engine_length": layout.engine_length,
        "engine_at": offsets[measures["engine"]] if "engine" in measures else _NOWHERE,
        "key_must": layout.key is Presence.MUST,
        "key_may": layout.key is not Presence.NONE,
        "prefixed": message.document,
        "value_may": any(form.value is not Presence.NONE or form.content for form in message.sent),
        "defect": layout.stream_id_defect,
        "writings": places,
        "needs": needs,
    }
