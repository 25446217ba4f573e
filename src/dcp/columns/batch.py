"""A batch: rows in columns, and the messages that came between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dcp import _codec
from dcp.columns.schema import Schema
from dcp.wire.frame import Frame

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class Bytes(NamedTuple):
    """A column of bytes for numpy: cell i is `data[offsets[i]:offsets[i + 1]]`.

    `mask` is True where a cell is null, and None if none is.
    """

    offsets: Any
    data: Any
    mask: Any = None


class Batch:
    """Rows of changes, and the frames that are none.

    `controls` are (row, frame): the frame came before that row, in the order of the wire. `counted` is
    how many bytes flow control has to give back for all of this batch, and `lasts` are (opaque, vbucket,
    stream id or 0, last seqno) of each stream that has rows in it.

    Any Arrow library takes a batch without copying it: `pyarrow.record_batch(batch)`,
    `polars.DataFrame(batch)`, `duckdb.sql("from batch")`. The columns live as long as anyone uses them.
    """

    def __init__(
        self,
        rows: _codec.Rows,
        schema: Schema,
        controls: list[tuple[int, Frame]],
        counted: int,
        lasts: list[tuple[int, int, int, int]],
    ) -> None:
        self._rows = rows
        self.schema = schema
        self.controls = controls
        self.counted = counted
        self.lasts = lasts

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    @property
    def events(self) -> tuple[str, ...]:
        """The names that the numbers in `to_numpy()["event"]` stand for."""
        return self._rows.plan.events

    def __len__(self) -> int:
        return self._rows.num_rows

    def __repr__(self) -> str:
        return f"<Batch: {self.num_rows} rows, {len(self.schema)} columns, {len(self.controls)} controls>"

    def __arrow_c_schema__(self) -> object:
        return self._rows.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._rows.__arrow_c_array__(requested_schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.RecordBatch:
        """The batch as a pyarrow record batch, without a copy."""
        import pyarrow

        return pyarrow.record_batch(self)

    def to_numpy(self) -> dict[str, np.ndarray[Any, Any] | Bytes]:
        """The columns as numpy arrays that look at the same memory.

        A column with nulls is a masked array, a column of bytes or text `Bytes`, `event` a number into
        `events` unless it is text. Xattrs as a map have no such form and are left out.
        """
        import numpy

        return {
            column.name: self._to_numpy(numpy, i, column.format)
            for i, column in enumerate(self.schema)
            if column.format != "+m"
        }

    def _to_numpy(self, numpy: Any, index: int, format: str) -> Any:
        valid, fixed, data = self._rows.buffers(index)
        mask = None
        if valid is not None:
            mask = numpy.unpackbits(numpy.frombuffer(valid, numpy.uint8), count=self.num_rows, bitorder="little") == 0
        if data is not None:
            return Bytes(numpy.frombuffer(fixed, numpy.int32), numpy.frombuffer(data, numpy.uint8), mask)
        array = numpy.frombuffer(fixed, _NUMPY[format])
        return array if mask is None else numpy.ma.MaskedArray(array, mask=mask)


_NUMPY = {
    "c": "i1",
    "C": "u1",
    "S": "u2",
    "i": "i4",
    "I": "u4",
    "l": "i8",
    "L": "u8",
    "tsu:UTC": "datetime64[us]",
    "vz": "V16",
    "vu": "V16",
}
