"""Encoder: batches of columns to frames."""

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

# Columns outside the fields of a form, in the order of IN_EVENT to IN_STREAM_ID in `_codec`.
_SPECIAL = ("event", "vbucket", "cas", "datatype", "opaque", "key", "collection_id", "value", "xattrs", "stream_id")
_NOWHERE = -1

_BYTES = frozenset(("z", "u", "Z", "U", "vz", "vu"))
_INTEGERS = frozenset("cCsSiIlL")
_WIDTHS = {"C": 1, "S": 2, "I": 4, "L": 8}
_Described = tuple[tuple[str, str, str | None], ...]


class ArrowArray(Protocol):
    """Record batch of any Arrow library: anything with the Arrow PyCapsule interface."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]: ...


class Encoder:
    """Encoder of rows to frames, the inverse of `Decoder`.

    dialect: "tap", "upr1", "upr2" or "dcp", the default.
    inflate: True, the default, if the values are not compressed, as a Decoder with inflate=True delivers them: the
        snappy bit of their datatype is not sent then. False if values are as their datatype says.
    stream_id_defect: True to leave the stream id of deletions and expirations out of the header's length, as servers
        since 6.5 do. Default False.

    Rows need the column `event`. Other missing columns are sent as 0, or not at all where a frame can lack them. The
    form of a message follows from the row: a deletion with a delete_time has the newer form. Integers may have any
    type that holds the value; signed 64-bit ones are sent as they are, bit by bit.

    Raises UsageError for an unknown dialect.
    """

    def __init__(self, dialect: str = "dcp", *, inflate: bool = True, stream_id_defect: bool = False) -> None:
        self._dialect = dialect_of(dialect)
        self._inflate = inflate
        self._defect = stream_id_defect

    def encode(self, rows: ArrowArray, opaque: int | None = None) -> bytes:
        """Return the frames of the rows, one after the other.

        rows: a Batch, or a record batch of any Arrow library with such columns.
        opaque: opaque of all frames; None to take the column `opaque`, or 0 if there is none.

        Raises UsageError if a column has the wrong type, or a row cannot be a frame: the message says which.
        """
        recipe, array = self._open(rows, opaque)
        return recipe.encode(array, opaque, self._inflate, self._defect)

    def encode_into(self, buffer: Buffer, rows: ArrowArray, opaque: int | None = None) -> int:
        """Write the frames to the beginning of a buffer, and return their size in bytes.

        buffer: writable memory. Other arguments and errors as in `encode`.

        Raises UsageError if the buffer is too small; nothing was written then.
        """
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
    """Return the recipe that encodes rows with these columns.

    sent_as: (event, event to send it as) pairs.
    """
    table = dialect_of(dialect)
    numbers = {name: number for number, (name, _, _) in enumerate(described)}
    if "event" not in numbers:
        raise UsageError(f"rows: expected a column event, found {', '.join(numbers) or 'none'}")
    messages = [message for message in table.messages if message.role is Role.ROW]
    sent = [table.by_name[dict(sent_as).get(message.name, message.name)] for message in messages]
    # A row may fit several forms. The loop takes the first, so the one with most of the row's fields comes first.
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
    """Return a column. Raises UsageError if its type does not suit its name."""
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
    """Yield the forms that rows with these columns can have."""
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
    """Return (width, column) of the numbers outside the extras: in the header, the framing extras or the key."""
    names = {"vbucket", "cas", "opaque"}
    names |= set() if message.kind.answers else {"stream_id"}
    names |= {"datatype"} if message.type is None else set()
    names |= {"collection_id"} if message.document else set()
    return [(_WIDTHS[columns[name].format], numbers[name]) for name in _SPECIAL if name in names & numbers.keys()]


def _bits(format: str, width: int) -> int:
    """Return how many bits a number of this Arrow type may have to fit the width; 0 if all numbers fit.

    64-bit numbers fit with any sign, since their bits are sent as they are.
    """
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
