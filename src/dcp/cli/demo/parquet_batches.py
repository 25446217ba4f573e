"""Batches of changes as Parquet files, and the documents that result from them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dcp.client.row_format import ROLLBACK
from dcp.embedded import Cluster

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("event", "vbucket", "seqno", "cas", "expiry", "collection_id", "key", "value")
# The generated keys and values are text. One that is not would be an error, not a row with its reason.
TEXT = {"keyFormat": "string", "valueFormat": "string", "onBadValue": "fail"}
_POSITION = ["event", "vbucket", "seqno"]


class CopiedState(NamedTuple):
    """Values by collection id and key, the number of rows read, and of those that rollbacks undid."""

    documents: dict[int, dict[str, str]]
    rows: int
    undone: int


class ParquetBatches:
    """A directory for each batch, numbered in the order of writing. A repeated batch replaces its directory.

    Within a batch, the rows of a vbucket are in one file, in the order of arrival.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._complete: set[int] = set()
        self._lock = threading.Lock()

    def path(self, number: int) -> Path:
        """Return the directory of a batch."""
        return self.directory / f"batch={number:08d}"

    def mark_complete(self, number: int) -> None:
        """Note that a batch is complete. Only complete ones are read."""
        with self._lock:
            self._complete.add(number)

    @property
    def count(self) -> int:
        """Number of complete batches."""
        return len(self._complete)

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(path.stat().st_size for path in self.directory.rglob("*.parquet"))

    def rolled_back_vbuckets(self) -> list[int]:
        """Return the vbuckets with a rollback in a complete batch after the first."""
        import pyarrow.compute as pc

        with self._lock:
            # Batch 0 is the first read, which cannot roll back.
            numbers = sorted(self._complete - {0})
        found: set[int] = set()
        for number in numbers:
            rows = self._read(number, _POSITION)
            found.update(rows.filter(pc.equal(rows.column("event"), ROLLBACK)).column("vbucket").to_pylist())
        return sorted(found)

    def state(self) -> CopiedState:
        """Return the documents that all batches result in: of every key, the last row that no later rollback undid."""
        import numpy
        import pyarrow as pa
        import pyarrow.compute as pc

        with self._lock:
            rows = pa.concat_tables([self._read(number, list(COLUMNS)) for number in sorted(self._complete)])
        vbuckets, seqnos = rows.column("vbucket").to_numpy(), rows.column("seqno").to_numpy()
        valid = numpy.ones(len(rows), bool)
        is_rollback = pc.equal(rows.column("event"), ROLLBACK).to_numpy()
        # A rollback undoes earlier rows only: the replay after it has the same seqnos again.
        for index in numpy.flatnonzero(is_rollback):
            valid[:index] &= (vbuckets[:index] != vbuckets[index]) | (seqnos[:index] <= seqnos[index])
        valid &= ~is_rollback
        undone = int((~is_rollback).sum() - valid.sum())
        keys = rows.select(["collection_id", "key"]).append_column("index", pa.array(numpy.arange(len(rows))))
        last = keys.filter(valid).group_by(["collection_id", "key"]).aggregate([("index", "max")])
        # The last row of a key may be a deletion: then there is no document.
        rows = rows.take(last.column("index_max"))
        return CopiedState(_documents(rows.filter(pc.equal(rows.column("event"), "mutation"))), len(valid), undone)

    def _read(self, number: int, columns: list[str]) -> pa.Table:
        """Return the rows of a batch."""
        import pyarrow as pa
        from pyarrow import parquet

        # Spark writes no file for an empty batch.
        files = sorted(self.path(number).glob("part-*.parquet"))
        return pa.concat_tables([parquet.ParquetFile(file).read(columns) for file in files] or [_empty(columns)])


def _empty(columns: list[str]) -> pa.Table:
    """Return a table without rows."""
    import pyarrow as pa

    kinds = {"event": pa.string(), "vbucket": pa.int32(), "key": pa.string(), "value": pa.string()}
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in columns]).empty_table()


def _documents(rows: pa.Table) -> dict[int, dict[str, str]]:
    """Return values by collection id and key."""
    import pyarrow.compute as pc

    found = {}
    for number in rows.column("collection_id").unique().to_pylist():
        own = rows.filter(pc.equal(rows.column("collection_id"), number))
        found[number] = dict(zip(own.column("key").to_pylist(), own.column("value").to_pylist(), strict=True))
    return found


def differences(state: CopiedState, cluster: Cluster) -> tuple[int, int]:
    """Return how many documents the cluster has, and how many documents differ between it and the copy."""
    documents = differing = 0
    for path, number in cluster.collection_ids().items():
        truth = {key.decode(): document.value.decode() for key, document in cluster.truth(path).items()}
        copied = state.documents.get(number, {})
        documents += len(truth)
        # Comparing whole dicts is much faster than key by key, and usually enough.
        if copied != truth:
            differing += sum(copied.get(key) != truth.get(key) for key in copied.keys() | truth.keys())
    return documents, differing
