"""Rows and columns of a read, selected from decoded batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dcp.client.row_format import PURGED, ROLLBACK
from dcp.client.time_search import lowest_cas
from dcp.columns.arrays import texts
from dcp.columns.path_columns import ID_COLUMN, PATH_COLUMNS, CollectionPaths
from dcp.columns.row_filter import in_time, up_to
from dcp.spark.newest import COLUMNS as VERSION_COLUMNS
from dcp.spark.options import Options
from dcp.spark.schema import SparkSchema


def reports(events: pa.Array) -> pa.BooleanArray:
    """Return which rows report a rollback or lost deletions. They pass every filter: each reader has to act on them."""
    return pc.is_in(events, value_set=texts([ROLLBACK, PURGED]))


class Projection:
    """Converts batches with the columns `wire_columns` into batches of the read's schema, without unwanted rows.

    Rows are selected before columns, so that what stands between the two has all wire columns.

    paths: returns the collections' paths by id. It is called again when an id is unknown.
    ends: last wanted seqno, by vbucket; vbuckets that are not in it have none.
    """

    def __init__(
        self, options: Options, paths: Callable[[], Mapping[int, str]], ends: Mapping[int, int] | None = None
    ) -> None:
        self._schema = SparkSchema(options)
        self._paths = CollectionPaths(paths)
        self._filters = list(_filters(options, ends or {}))
        wanted = self._schema.names
        ids = [ID_COLUMN] if {*PATH_COLUMNS} & {*wanted} else []
        filtered = [name for columns, _ in self._filters for name in (*columns, "event")]
        filtered += VERSION_COLUMNS if options.newest_only else ()
        self.wire_columns = tuple(
            dict.fromkeys([*(name for name in wanted if name not in PATH_COLUMNS), *ids, *filtered])
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows and columns of a batch."""
        return self.columns(self.rows(batch))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows of a batch."""
        if self._filters:
            wanted = reduce(pc.and_, (passes(*(batch[name] for name in columns)) for columns, passes in self._filters))
            # Most batches pass as a whole; filter() would copy them.
            if wanted.true_count < len(wanted):
                return batch.filter(pc.or_(wanted, reports(batch["event"])))
        return batch

    def columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of the schema."""
        if {*PATH_COLUMNS} & {*self._schema.names}:
            for name, names in zip(PATH_COLUMNS, self._paths(batch[ID_COLUMN]), strict=True):
                batch = batch.append_column(name, names)
        return self._schema.with_text(batch.select(list(self._schema.names)))


def _filters(options: Options, ends: Mapping[int, int]) -> Iterator[tuple[tuple[str, ...], Callable[..., Any]]]:
    """Yield the columns of each filter, and the function that returns for their values which rows pass."""
    since = lowest_cas(options.start) if isinstance(options.start, datetime) else 0
    until = lowest_cas(options.end) if isinstance(options.end, datetime) else None
    if since or until is not None:
        yield ("cas",), lambda cas: in_time(cas, since, until)
    if ends:
        yield ("vbucket", "seqno"), lambda vbucket, seqno: up_to(vbucket, seqno, ends)
