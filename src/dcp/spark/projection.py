"""The rows and columns that a read asks for, out of what comes from the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dcp.client.rollback import EVENT, PURGED
from dcp.client.time_search import tick
from dcp.spark.options import Options
from dcp.spark.schema import Schema
from dcp.spark.values import PATH

# What says that something is undone or lost concerns every reader.
_TOLD = pa.array([EVENT, PURGED])


class View:
    """Batches with the columns `decoded` become those of the schema. `paths`: the collections by their ids.

    ends: the vbuckets of which nothing behind a seqno is wanted.
    """

    def __init__(
        self, options: Options, paths: Callable[[], Mapping[int, str]], ends: Mapping[int, int] | None = None
    ) -> None:
        self._schema = Schema(options)
        self._paths = paths
        self._filters = list(_filters(options, ends or {}))
        wanted = self._schema.names
        named = ["collection_id"] if {*PATH} & {*wanted} else []
        self._known = paths() if named else {}
        filtered = [name for columns, _ in self._filters for name in (*columns, "event")]
        self.decoded = tuple(dict.fromkeys([*(name for name in wanted if name not in PATH), *named, *filtered]))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._filters:
            wanted = reduce(pc.and_, (wants(*(batch[name] for name in columns)) for columns, wants in self._filters))
            if not pc.all(wanted).as_py():
                batch = batch.filter(pc.or_(wanted, pc.is_in(batch["event"], value_set=_TOLD)))
        if {*PATH} & {*self._schema.names}:
            for name, texts in zip(PATH, self._named(batch["collection_id"]), strict=True):
                batch = batch.append_column(name, texts)
        return self._schema.checked(batch.select(list(self._schema.names)))

    def _named(self, ids: pa.Array) -> Iterable[pa.Array]:
        """Scopes and collections; null where there is no such id any more."""
        at = self._places(ids)
        if at.null_count > ids.null_count:
            self._known = self._paths()
            at = self._places(ids)
        parts = [path.split(".") for path in self._known.values()]
        return [pa.array([part[number] for part in parts], pa.string()).take(at) for number in range(len(PATH))]

    def _places(self, ids: pa.Array) -> Any:
        return pc.index_in(ids, value_set=pa.array(list(self._known), pa.int64()))


def _filters(options: Options, ends: Mapping[int, int]) -> Iterator[tuple[tuple[str, ...], Callable[..., Any]]]:
    """What some columns have to be."""
    since = tick("start", options.start or "beginning")
    if since is not None:
        yield ("cas",), lambda cas: pc.greater_equal(cas, since)
    if options.events is not None:
        yield ("event",), lambda event: pc.is_in(event, value_set=pa.array(options.events))
    if options.keys is not None:
        begins = [key.removesuffix("*") for key in options.keys if key.endswith("*")]
        whole = pa.array([key.encode() for key in options.keys if not key.endswith("*")], pa.binary())

        def is_named(key: pa.Array) -> Any:
            found = (pc.starts_with(key, begin).fill_null(False) for begin in begins)
            return reduce(pc.or_, found, pc.is_in(key, value_set=whole))

        yield ("key",), is_named
    if ends:
        vbuckets, last = pa.array(ends.keys(), pa.int32()), pa.array(ends.values(), pa.int64())

        def is_before(vbucket: pa.Array, seqno: pa.Array) -> Any:
            end = last.take(pc.index_in(vbucket, value_set=vbuckets))
            return pc.less_equal(seqno, end).fill_null(True)

        yield ("vbucket", "seqno"), is_before
