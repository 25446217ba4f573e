"""Batch: rows in columns, and the control frames between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dcp import _codec
from dcp.columns.schema import BatchSchema
from dcp.wire.frame import Frame

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa


class Bytes(NamedTuple):
    """A column of bytes or text for numpy. Cell i is `data[offsets[i]:offsets[i + 1]]`.

    offsets: array of int32, one more than there are rows.
    data: array of uint8, the bytes of all cells.
    mask: array of bool, True where a cell is null; None if no cell is.
    """

    offsets: Any
    data: Any
    mask: Any = None


class Batch:
    """Rows of changes in columns, and the control frames between them. Made by `Decoder.take` and by streams.

    schema: names and Arrow types of the columns, a sequence of Column; also has `names`.
    controls: (row, frame) pairs in the order of the wire; each frame arrived before the row of that number.
    flow_bytes: bytes to acknowledge for flow control once the whole batch is processed.
    last_seqnos: (opaque, vbucket, stream id or 0, last seqno) of each stream that has rows in the batch.

    Any Arrow library reads a batch without a copy: `pyarrow.record_batch(batch)`, `polars.DataFrame(batch)`,
    `duckdb.sql("from batch")`. The memory of the columns lives as long as anything uses it.
    """

    def __init__(
        self,
        rows: _codec.Rows,
        schema: BatchSchema,
        controls: list[tuple[int, Frame]],
        flow_bytes: int,
        last_seqnos: list[tuple[int, int, int, int]],
    ) -> None:
        self._rows = rows
        self.schema = schema
        self.controls = controls
        self.flow_bytes = flow_bytes
        self.last_seqnos = last_seqnos

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._rows.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the columns take."""
        return self._rows.nbytes

    @property
    def bad_rows(self) -> int:
        """Number of rows with a value, or a part of a document, that could not be read."""
        return self._rows.bad_rows

    @property
    def unselected_rows(self) -> int:
        """Number of changes that arrived with these rows, but were not selected."""
        return self._rows.unselected_rows

    @property
    def events(self) -> tuple[str, ...]:
        """Names of the events; the numbers in `to_numpy()["event"]` are indexes into it."""
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
        """Return the batch as a pyarrow record batch, without a copy. Needs pyarrow."""
        import pyarrow

        return pyarrow.record_batch(self)

    def to_numpy(self) -> dict[str, np.ndarray[Any, Any] | Bytes]:
        """Return the columns as numpy arrays by name, without a copy. Needs numpy.

        A column with nulls is a masked array, a column of bytes or text is a `Bytes`, a column of views an array
        of 16-byte values. `event` is a number into `events`, unless the decoder has types="plain". Xattrs as a
        map, and documents, have no numpy form and are left out.
        """
        import numpy

        return {
            column.name: self._to_numpy(numpy, i, column.format)
            for i, column in enumerate(self.schema)
            if not column.format.startswith("+") and column.document is None
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
