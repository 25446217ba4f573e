"""Filter of batches by CAS, which is by time, and by seqno. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from dcp import _codec
from dcp.columns.arrays import booleans, numbers
from dcp.columns.batch import Batch
from dcp.columns.schema import BatchSchema

if TYPE_CHECKING:
    import pyarrow as pa


class RowFilter:
    """Filter that keeps the rows of a batch inside a range, in the columns of a schema.

    schema: columns of the result. The batches need the columns in `required` as well.
    since: lowest CAS to keep; None for no bound.
    until: lowest CAS not to keep; None for no bound.
    ends: last seqno to keep, by vbucket; vbuckets that are not in it have none.
    in_order: False if rows may arrive out of order.

    Rows with CAS 0 are kept: they are no changes of documents, such as rollbacks.
    """

    def __init__(
        self,
        schema: BatchSchema,
        since: int | None,
        until: int | None,
        ends: Mapping[int, int] | None = None,
        *,
        in_order: bool = True,
    ) -> None:
        self._schema, self._since, self._until, self._ends = schema, since, until, ends or {}
        self._in_order = in_order

    @staticmethod
    def required(columns: Iterable[str], *, by_seqno: bool) -> list[str]:
        """Return names of columns, and those that a filter needs besides."""
        return [*dict.fromkeys([*columns, "cas", *(["vbucket", "seqno"] if by_seqno else [])])]

    def __call__(self, batch: Batch, reached: Mapping[int, int]) -> Batch:
        """Return the filtered batch; the same object if nothing had to be removed.

        reached: highest seqno of the batch, by vbucket. Most batches have no row after an end, and are not looked at.
        """
        import pyarrow.compute as pc

        # Out of order, the highest seqno may have arrived in an earlier batch, and be missing in `reached`.
        beyond = bool(self._ends) and (
            not self._in_order or any(seqno > self._ends.get(vbucket, seqno) for vbucket, seqno in reached.items())
        )
        wanted = self._wanted(batch, beyond)
        complete = wanted is None or pc.all(wanted).as_py()
        if complete and batch.schema.names == self._schema.names:
            return batch
        record = batch.to_arrow()
        record = record if complete else record.filter(wanted)
        rows = ArrowRows(record.select(list(self._schema.names)), batch)
        return Batch(cast(_codec.Rows, rows), self._schema, batch.controls, batch.flow_bytes, batch.last_seqnos)

    def _wanted(self, batch: Batch, beyond: bool) -> pa.BooleanArray | None:
        """Return, for each row, whether it is inside all bounds; None if no row can be outside."""
        import pyarrow.compute as pc

        if (self._since, self._until) == (None, None) and not beyond:
            return None
        record = batch.to_arrow()
        wanted = in_time(record.column("cas"), self._since or 0, self._until)
        if beyond:
            here = up_to(record.column("vbucket"), record.column("seqno"), self._ends)
            wanted = pc.and_(wanted, pc.or_(here, pc.equal(record.column("cas"), 0)))
        return wanted


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


def up_to(vbucket: pa.Array, seqno: pa.Array, ends: Mapping[int, int]) -> pa.BooleanArray:
    """Return, for each row, whether its seqno is at most the end of its vbucket. Vbuckets without one pass."""
    import numpy

    vbuckets, seqnos = numbers(vbucket), numbers(seqno)
    if not len(vbuckets):
        return booleans(vbuckets)
    last = numpy.full(max(int(vbuckets.max()), *ends, 0) + 1, numpy.iinfo(seqnos.dtype).max, seqnos.dtype)
    for number, end in ends.items():
        last[number] = end
    return booleans(seqnos <= last[vbuckets])


class ArrowRows:
    """A record batch with the interface of `_codec.Rows`."""

    def __init__(self, record: pa.RecordBatch, batch: Batch) -> None:
        self._record = record
        self.num_rows, self.nbytes, self.plan = record.num_rows, record.nbytes, batch._rows.plan
        self.bad_rows, self.unselected_rows = batch.bad_rows, batch.unselected_rows

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
