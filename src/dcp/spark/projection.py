"""Rows and columns of a read, selected from decoded batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dcp.client.options import PATH_COLUMNS
from dcp.client.row_format import PURGED, ROLLBACK
from dcp.client.time_search import lowest_cas
from dcp.columns.row_filter import in_time, up_to
from dcp.spark.options import Options
from dcp.spark.schema import SparkSchema

# Rows that report a rollback or lost deletions pass every filter: each reader has to act on them.
_ALWAYS = pa.array([ROLLBACK, PURGED])


class Projection:
    """Converts batches with the columns `wire_columns` into batches of the read's schema, without unwanted rows.

    paths: returns the collections' paths by id. It is called again when an id is unknown.
    ends: last wanted seqno, by vbucket; vbuckets that are not in it have none.
    """

    def __init__(
        self, options: Options, paths: Callable[[], Mapping[int, str]], ends: Mapping[int, int] | None = None
    ) -> None:
        self._schema = SparkSchema(options)
        self._paths = paths
        self._filters = list(_filters(options, ends or {}))
        wanted = self._schema.names
        ids = ["collection_id"] if {*PATH_COLUMNS} & {*wanted} else []
        self._known = paths() if ids else {}
        filtered = [name for columns, _ in self._filters for name in (*columns, "event")]
        self.wire_columns = tuple(
            dict.fromkeys([*(name for name in wanted if name not in PATH_COLUMNS), *ids, *filtered])
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows and columns of a batch."""
        if self._filters:
            wanted = reduce(pc.and_, (passes(*(batch[name] for name in columns)) for columns, passes in self._filters))
            # Most batches pass as a whole; filter() would copy them.
            if not pc.all(wanted).as_py():
                batch = batch.filter(pc.or_(wanted, pc.is_in(batch["event"], value_set=_ALWAYS)))
        if {*PATH_COLUMNS} & {*self._schema.names}:
            for name, texts in zip(PATH_COLUMNS, self._scopes_and_collections(batch["collection_id"]), strict=True):
                batch = batch.append_column(name, texts)
        return self._schema.with_text(batch.select(list(self._schema.names)))

    def _scopes_and_collections(self, ids: pa.Array) -> Iterable[pa.Array]:
        """Return the names of scopes and of collections; null where a collection was dropped."""
        indices = self._indices(ids)
        if indices.null_count > ids.null_count:
            self._known = self._paths()
            indices = self._indices(ids)
        parts = [path.split(".") for path in self._known.values()]
        names = ([part[number] for part in parts] for number in range(len(PATH_COLUMNS)))
        return [pa.array(column, pa.string()).take(indices) for column in names]

    def _indices(self, ids: pa.Array) -> Any:
        """Return where each id is in the list of known collections; null if it is not."""
        return pc.index_in(ids, value_set=pa.array(list(self._known), pa.int64()))


def _filters(options: Options, ends: Mapping[int, int]) -> Iterator[tuple[tuple[str, ...], Callable[..., Any]]]:
    """Yield the columns of each filter, and the function that returns for their values which rows pass."""
    if isinstance(options.start, datetime):
        since = lowest_cas(options.start)
        yield ("cas",), lambda cas: in_time(cas, since, None)
    if ends:
        yield ("vbucket", "seqno"), lambda vbucket, seqno: up_to(vbucket, seqno, ends)
