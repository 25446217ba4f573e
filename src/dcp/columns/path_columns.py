"""Columns with the names of scopes and collections, which are looked up by the ids of rows. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from dcp import _codec
from dcp.columns.arrays import integers, numbers, texts
from dcp.columns.batch import Batch
from dcp.columns.row_filter import ArrowRows
from dcp.columns.schema import BatchSchema, Column

if TYPE_CHECKING:
    import pyarrow as pa

# Columns with the two parts of a path, `scope.collection`.
PATH_COLUMNS = ("scope", "collection")
ID_COLUMN = "collection_id"


class CollectionPaths:
    """Names of scopes and collections by id.

    paths: returns the paths of all collections by id. It is called when an id is unknown.
    """

    def __init__(self, paths: Callable[[], Mapping[int, str]]) -> None:
        self._paths = paths
        self._known: dict[int, str | None] = {}

    def __call__(self, ids: pa.Array) -> list[pa.Array]:
        """Return the columns `PATH_COLUMNS` for ids; null for null, and for collections that no longer exist."""
        import pyarrow.compute as pc

        indices = self._indices(ids)
        if indices.null_count > ids.null_count:
            unknown = numbers(ids.filter(pc.and_(ids.is_valid(), indices.is_null()))).tolist()
            # A name that was known stays after its collection was dropped.
            named = {number: path for number, path in self._known.items() if path}
            self._known = {**dict.fromkeys(unknown), **self._paths(), **named}
            indices = self._indices(ids)
        parts = [path.split(".") if path else (None, None) for path in self._known.values()]
        return [texts([part[number] for part in parts]).take(indices) for number in (0, 1)]

    def _indices(self, ids: pa.Array) -> pa.Array:
        """Return where each id is among the known ones; null where it is not."""
        import numpy
        import pyarrow.compute as pc

        known = integers(numpy.fromiter(self._known, numpy.int64))
        return pc.index_in(ids, value_set=known.cast(ids.type))


class PathColumns:
    """Adds the columns `PATH_COLUMNS` to batches that have the ids, in the order that was asked for.

    columns: names of all columns. schema: those of the batches before. paths: as for CollectionPaths.
    """

    def __init__(self, columns: Sequence[str], schema: BatchSchema, paths: Callable[[], Mapping[int, str]]) -> None:
        self.schema = _WithPaths(columns, schema)
        self._paths = CollectionPaths(paths)

    @staticmethod
    def required(columns: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the columns to decode."""
        return (*dict.fromkeys([*(name for name in columns if name not in PATH_COLUMNS), ID_COLUMN]),)

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with the names."""
        record = batch.to_arrow()
        for name, names in zip(PATH_COLUMNS, self._paths(record[ID_COLUMN]), strict=True):
            record = record.append_column(name, names)
        rows = ArrowRows(record.select(list(self.schema.names)), batch)
        return Batch(cast(_codec.Rows, rows), self.schema, batch.controls, batch.flow_bytes, batch.last_seqnos)


class _WithPaths(BatchSchema):
    """Schema of batches with names."""

    def __init__(self, columns: Sequence[str], schema: BatchSchema) -> None:
        known = {column.name: column for column in schema}
        # Columns that a decoder adds follow the others.
        added = [name for name in schema.names if name not in columns and name != ID_COLUMN]
        chosen = [
            known.get(name) or Column(name, "u", f"name of the {name}", nullable=True) for name in (*columns, *added)
        ]
        super().__init__(chosen, schema._plan)
        self._received = schema

    def __arrow_c_schema__(self) -> object:
        import pyarrow as pa

        received = pa.schema(self._received)
        fields = [pa.field(name, pa.string()) if name in PATH_COLUMNS else received.field(name) for name in self.names]
        return cast("object", pa.schema(fields).__arrow_c_schema__())
