"""Filter of batches by CAS, which is by time. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from dcp import _codec
from dcp.columns.batch import Batch
from dcp.columns.schema import BatchSchema

if TYPE_CHECKING:
    import pyarrow as pa

CAS = "cas"


class CasFilter:
    """Filter that keeps the rows of a batch whose CAS lies in a range, in the columns of a schema.

    schema: columns of the result. The batches need the column `cas`, too.
    since: lowest CAS to keep; None for no bound.
    until: lowest CAS not to keep; None for no bound.

    Rows with CAS 0 are kept: they are no changes of documents, such as rollbacks.
    """

    def __init__(self, schema: BatchSchema, since: int | None, until: int | None) -> None:
        self._schema, self._since, self._until = schema, since or 0, until

    def __call__(self, batch: Batch) -> Batch:
        """Return the filtered batch; the same object if nothing had to be removed."""
        import pyarrow.compute as pc

        record = batch.to_arrow()
        cas = record.column(CAS)
        wanted = in_time(cas, self._since, self._until)
        if batch.schema.names == self._schema.names and pc.all(wanted).as_py():
            return batch
        rows = _FilteredRows(record.filter(wanted).select(list(self._schema.names)), batch)
        return Batch(cast(_codec.Rows, rows), self._schema, batch.controls, batch.flow_bytes, batch.last_seqnos)


def in_time(cas: pa.Array, since: int, until: int | None) -> pa.BooleanArray:
    """Return, for each row, whether its CAS is at least `since` and below `until`; None is no upper bound.

    Rows with a CAS of 0 are no changes of documents, such as rollbacks; they pass. cas: signed or unsigned.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    inside = pc.greater_equal(cas, pa.scalar(since, cas.type))
    if until is not None:
        inside = pc.and_(inside, pc.less(cas, pa.scalar(until, cas.type)))
    return pc.or_(inside, pc.equal(cas, pa.scalar(0, cas.type)))


def with_cas(columns: Iterable[str]) -> list[str]:
    """Return the names, with `cas` among them."""
    names = list(columns)
    return names if CAS in names else [*names, CAS]


class _FilteredRows:
    """A record batch with the interface of `_codec.Rows`."""

    def __init__(self, record: pa.RecordBatch, batch: Batch) -> None:
        self._record = record
        self.num_rows, self.nbytes, self.plan = record.num_rows, record.nbytes, batch._rows.plan

    def __arrow_c_schema__(self) -> object:
        return self._record.schema.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return cast("tuple[object, object]", self._record.__arrow_c_array__(requested_schema))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._record.__arrow_c_stream__(requested_schema)

    def buffers(self, index: int) -> tuple[Any, Any, Any]:
        """Return validity, fixed-width buffer and bytes of a column; None for what it lacks."""
        column = self._record.column(index)
        valid, fixed, *data = (column.indices if hasattr(column, "indices") else column).buffers()
        return valid, fixed, data[0] if data else None
