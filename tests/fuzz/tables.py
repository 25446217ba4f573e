"""Arrow data for encoders: any columns, of any type for their cells, sliced from larger ones."""

from __future__ import annotations

from typing import Any

from dcp.columns.schema import columns_of
from dcp.wire.frame import dialect_of
from dcp.wire.layout import Role
from tests.fuzz.stream import Source

Row = dict[str, Any]
_TEXTS = frozenset(("key", "value", "xattrs"))
_NOT_SENT = frozenset(("timestamp", "snapshot_start", "snapshot_end", "error"))


def any_rows(source: Source, dialect: str) -> tuple[list[Row], Any]:
    """Return rows, and Arrow data with exactly these rows."""
    import pyarrow

    table = dialect_of(dialect)
    events = [message.name for message in table.messages if message.role is Role.ROW]
    names = [name for name in columns_of(table) if name != "event" and name not in _NOT_SENT]
    shape, count = source.byte(), source.byte() & 7
    before, behind = (source.byte() & 15, source.byte() & 15) if shape & 3 else (0, 0)
    total = before + count + behind
    arrays = {"event": _events(pyarrow, source, events, total)}
    chosen = source.number(4)
    for i, name in enumerate(names):
        if chosen >> i & 1:
            arrays[name] = (_bytes if name in _TEXTS else _numbers)(pyarrow, source, total)
    if shape & 4:
        arrays["nothing of ours"] = pyarrow.array([[]] * total)
    if shape & 3 == 3:
        nulls = source.number(4) & source.number(4) if shape & 8 else 0
        mask = pyarrow.array([bool(nulls >> i & 1) for i in range(total)], pyarrow.bool_())
        rows = pyarrow.StructArray.from_arrays(list(arrays.values()), list(arrays), mask=mask).slice(before, count)
    else:
        rows = pyarrow.record_batch(arrays).slice(before, count)
    return rows.to_pylist(), rows


def _events(pyarrow: Any, source: Source, events: list[str], total: int) -> Any:
    names = [events[source.byte() % len(events)] for _ in range(total)]
    text = (pyarrow.string(), pyarrow.large_string(), pyarrow.binary(), pyarrow.string_view())[source.byte() & 3]
    how = source.byte()
    if how & 3 == 0:
        return pyarrow.array(names, text)
    known = list(dict.fromkeys(["none of ours", *names])) if how & 8 else list(dict.fromkeys(names))
    indices = (pyarrow.int8(), pyarrow.uint16(), pyarrow.int32(), pyarrow.int64())[how >> 4 & 3]
    values = pyarrow.array(known, pyarrow.string() if how & 4 else pyarrow.binary())
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([known.index(name) for name in names], indices), values)


def _bytes(pyarrow: Any, source: Source, total: int) -> Any:
    type = (pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view(), pyarrow.int32())[source.byte() % 13 & 3]
    if type == pyarrow.int32():
        return pyarrow.array([0] * total, type)
    nulls = source.number(4)
    cells = [None if nulls >> i & 1 else source.take(source.byte() % 40) for i in range(total)]
    array = pyarrow.array(cells, type)
    return _soiled(pyarrow, source, array, 16) if type == pyarrow.binary_view() else array


def _numbers(pyarrow: Any, source: Source, total: int) -> Any:
    which = source.byte()
    width, signed = 1 << (which & 3), which >> 2 & 1
    type = getattr(pyarrow, f"{'' if signed else 'u'}int{8 * width}")()
    nulls = source.number(4) if which & 8 else 0
    numbers = [source.number(width) >> signed for _ in range(total)]
    if signed and which & 48 == 48:
        # Negative numbers are refused, so only a few are: else no row could be encoded.
        numbers = [-number - 1 if number & 3 == 3 else number for number in numbers]
    array = pyarrow.array([None if nulls >> i & 1 else number for i, number in enumerate(numbers)], type)
    return _soiled(pyarrow, source, array, width)


def _soiled(pyarrow: Any, source: Source, array: Any, width: int) -> Any:
    """Return the same cells, with arbitrary memory under the nulls."""
    valid, cells, *rest = array.buffers()
    if valid is None or rest:
        # The oldest supported pyarrow cannot build views that point into buffers.
        return array
    data = bytearray(cells)
    for i in range(len(array)):
        if not array[i].is_valid:
            data[width * i : width * (i + 1)] = source.take(width)
    return pyarrow.Array.from_buffers(array.type, len(array), [valid, pyarrow.py_buffer(data)])
