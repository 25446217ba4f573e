"""Changes between two transactions: collected as they arrive, reduced to the last version of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dcp.columns.decoder import Decoder
from dcp.columns.document_schema import ddl, fields_of
from dcp.errors import UsageError
from dcp.sync.state import SyncState

if TYPE_CHECKING:
    import pyarrow as pa

# Columns that identify a row: keys of two collections may be equal.
IDENTITY = ("_collection_id", "key")
# Columns that decide whether a transaction removes a row.
REMOVED_BY = (*IDENTITY, "_vbucket")
# Id of the collection `_default._default`.
DEFAULT_COLLECTION = 0
# Columns of a stream, before those of the documents and after them, and their names in the table.
_BEFORE = {"key": "key", "collection": "collection"}
_AFTER = {"vbucket": "_vbucket", "collection_id": "_collection_id", "seqno": "_seqno", "cas": "_cas"}
# Column of the changes that a MERGE applies; the table does not have it.
DELETED = "_deleted"
_TEXT = ("value", "error", "bad_value")


def stream_options(schema: str | None) -> dict[str, Any]:
    """Return the options of a stream whose batches become rows of a table with this schema of documents."""
    documents = ("document", "error") if schema is not None else _TEXT
    return {
        "columns": ("event", *_AFTER, "key", *documents),
        "document": schema,
        "keys": "utf8",
        "values": "utf8",
        # What cannot be read is a row with the reason in `error`: a table has a row for each document.
        "on_bad_value": "quarantine",
        "types": "plain",
    }


def empty_changes(schema: str | None) -> pa.Table:
    """Return a batch without rows, as a stream with these options would deliver it."""
    import pyarrow

    options = stream_options(schema)
    return pyarrow.schema(Decoder("dcp", options.pop("columns"), collections=True, **options).schema).empty_table()


def check_names(schema: str) -> None:
    """Raise UsageError if a field of the documents has the name of another column of the table."""
    fields = fields_of(schema)
    names = [field.name.casefold() for field in fields]
    own = {*_BEFORE.values(), *_AFTER.values(), "error", DELETED}
    taken = [field for field in fields if field.name.casefold() in own]
    if taken:
        name, kind = taken[0].name, ddl(taken[0].type, top=False)
        raise UsageError(
            f"schema: the table has a column {name.casefold()!r} of its own; name the field otherwise, such as "
            f"'document_{name.strip('_')} {kind} from {name}'"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"schema: expected names that differ in more than case, found {twice[0]!r} twice")


class PendingChanges:
    """Changes that arrived since the last transaction, in the order of arrival."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._tables: list[pa.Table] = []

    def __len__(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def add(self, table: pa.Table) -> None:
        """Append changes."""
        if table.num_rows:
            self._tables.append(table)
            self.num_bytes += table.nbytes

    def undo(self, vbucket: int, seqno: int) -> None:
        """Remove the changes of a vbucket above a seqno."""
        import pyarrow.compute as compute

        before, self._tables, self.num_bytes = self._tables, [], 0
        for table in before:
            other = compute.not_equal(table["vbucket"], vbucket)
            self.add(table.filter(compute.or_(other, compute.less_equal(table["seqno"], seqno))))

    def reduced(self) -> pa.Table | None:
        """Return the last version of each key; None without changes."""
        import numpy
        import pyarrow
        import pyarrow.compute as compute

        if not self._tables:
            return None
        table = pyarrow.concat_tables(self._tables)
        # Servers without collections have the default one only.
        ids = compute.fill_null(table["collection_id"], DEFAULT_COLLECTION)
        table = table.set_column(table.column_names.index("collection_id"), "collection_id", ids)
        keys = table.select(["collection_id", "key"]).append_column("row", pyarrow.array(numpy.arange(table.num_rows)))
        last = keys.group_by(["collection_id", "key"], use_threads=False).aggregate([("row", "max")])
        # All versions of a key are in one vbucket, whose changes arrive in their order.
        return table.take(last["row_max"].sort()) if last.num_rows < table.num_rows else table


@dataclass(frozen=True)
class Transaction:
    """Changes of a table that are applied together, with the state after them.

    rows: new versions of rows, each key once. deleted: `IDENTITY` of rows that are no more.
    emptied: vbuckets whose other rows are removed, since they were read again from the beginning.
    dropped: ids of collections whose rows are removed.
    only_new: True if the table has no row of any key in it.
    before: the state that the table has; None for a new table.
    """

    rows: pa.Table
    deleted: pa.Table
    emptied: frozenset[int]
    dropped: frozenset[int]
    only_new: bool
    state: SyncState
    before: SyncState | None

    @cached_property
    def changed_keys(self) -> pa.Table:
        """`IDENTITY` of all rows that are replaced or deleted."""
        import pyarrow

        return pyarrow.concat_tables([self.rows.select(IDENTITY), self.deleted])

    @cached_property
    def _keys_by_collection(self) -> dict[int, pa.ChunkedArray]:
        import pyarrow.compute as compute

        ids = self.changed_keys["_collection_id"]
        return {
            number: self.changed_keys["key"].filter(compute.equal(ids, number)) for number in ids.unique().to_pylist()
        }

    def removes_from(self, rows: pa.Table | pa.RecordBatch) -> pa.ChunkedArray | pa.Array:
        """Return for each row of the table whether the transaction removes or replaces it.

        rows: columns `REMOVED_BY` of the table, and possibly others.
        """
        import pyarrow
        import pyarrow.compute as compute

        removed = compute.or_(
            compute.is_in(rows["_vbucket"], pyarrow.array(sorted(self.emptied), rows["_vbucket"].type)),
            compute.is_in(rows["_collection_id"], pyarrow.array(sorted(self.dropped), rows["_collection_id"].type)),
        )
        for number, keys in self._keys_by_collection.items():
            here = compute.equal(rows["_collection_id"], number)
            removed = compute.or_(removed, compute.and_(here, compute.is_in(rows["key"], keys)))
        return removed


def split(changes: pa.Table, names: Mapping[int, str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows of a table for the last versions of keys, and `IDENTITY` of those that were deleted.

    names: paths of the collections by id. Changes of other collections are left out: they were dropped.
    """
    import pyarrow
    import pyarrow.compute as compute

    ids = changes["collection_id"]
    numbers = pyarrow.array(sorted(names), ids.type)
    changes = _only(changes, compute.is_in(ids, numbers))
    exists = compute.equal(changes["event"], "mutation")
    keys = changes.select(["collection_id", "key"]).rename_columns(list(IDENTITY))
    deleted = keys.filter(compute.invert(exists))
    alive = _only(changes, exists)
    paths = pyarrow.array([names[number] for number in sorted(names)], pyarrow.string())
    collection = paths.take(compute.index_in(alive["collection_id"], numbers).combine_chunks())
    return _layout(alive.append_column("collection", collection)), deleted


def _only(table: pa.Table, wanted: pa.ChunkedArray) -> pa.Table:
    """Return some rows of a table, without a copy if it is all of them."""
    import pyarrow.compute as compute

    return table if compute.all(wanted).as_py() is not False else table.filter(wanted)


def _layout(table: pa.Table) -> pa.Table:
    """Return changes in the columns of the table: the fields of documents are columns of their own."""
    import pyarrow

    columns: dict[str, pa.ChunkedArray] = {name: table[source] for source, name in _BEFORE.items()}
    if "document" in table.column_names:
        document = table["document"]
        parts = [chunk.flatten() for chunk in document.chunks]
        for index, field in enumerate(document.type):
            columns[field.name] = pyarrow.chunked_array([part[index] for part in parts], field.type)
        columns["error"] = table["error"]
    else:
        columns |= {name: table[name] for name in _TEXT}
    columns |= {name: table[source] for source, name in _AFTER.items()}
    return pyarrow.table(columns)
