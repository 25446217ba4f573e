"""The Parquet that is written: batches of changes, and the documents that they come to."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dcp.client.row_format import ROLLBACK
from dcp.embedded import Cluster

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("event", "vbucket", "seqno", "cas", "expiry", "collection_id", "key", "value")
_POSITION = ["event", "vbucket", "seqno"]


class State(NamedTuple):
    """The documents of each collection, and what it took to know them."""

    documents: dict[int, dict[str, str]]
    rows: int
    undone: int


class Lake:
    """A directory for each batch, numbered in the order of writing; a batch that is written again takes its place.

    Within a batch, the rows of a vbucket are in one file, in the order in which they came.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._finished: set[int] = set()
        self._lock = threading.Lock()

    def place(self, number: int) -> Path:
        return self.directory / f"batch={number:08d}"

    def finished(self, number: int) -> None:
        with self._lock:
            self._finished.add(number)

    @property
    def batches(self) -> int:
        return len(self._finished)

    @property
    def size(self) -> int:
        """Bytes of Parquet."""
        return sum(path.stat().st_size for path in self.directory.rglob("*.parquet"))

    def rolled_back(self) -> list[int]:
        """The vbuckets that went back, in the batches that are whole."""
        import pyarrow.compute as pc

        with self._lock:
            later = sorted(self._finished - {0})
        found: set[int] = set()
        for number in later:
            rows = self._read(number, _POSITION)
            found.update(rows.filter(pc.equal(rows.column("event"), ROLLBACK)).column("vbucket").to_pylist())
        return sorted(found)

    def state(self) -> State:
        """What all batches come to: the last row of every key that no rollback behind it has undone."""
        import numpy
        import pyarrow as pa
        import pyarrow.compute as pc

        with self._lock:
            rows = pa.concat_tables([self._read(number, list(COLUMNS)) for number in sorted(self._finished)])
        vbuckets, seqnos = rows.column("vbucket").to_numpy(), rows.column("seqno").to_numpy()
        counts = numpy.ones(len(rows), bool)
        is_rollback = pc.equal(rows.column("event"), ROLLBACK).to_numpy()
        for place in numpy.flatnonzero(is_rollback):
            counts[:place] &= (vbuckets[:place] != vbuckets[place]) | (seqnos[:place] <= seqnos[place])
        counts &= ~is_rollback
        undone = int((~is_rollback).sum() - counts.sum())
        keys = rows.select(["collection_id", "key"]).append_column("place", pa.array(numpy.arange(len(rows))))
        last = keys.filter(counts).group_by(["collection_id", "key"]).aggregate([("place", "max")])
        rows = rows.take(last.column("place_max"))
        return State(_documents(rows.filter(pc.equal(rows.column("event"), "mutation"))), len(counts), undone)

    def _read(self, number: int, columns: list[str]) -> pa.Table:
        import pyarrow as pa
        from pyarrow import parquet

        files = sorted(self.place(number).glob("part-*.parquet"))
        return pa.concat_tables([parquet.ParquetFile(file).read(columns) for file in files] or [_nothing(columns)])


def _nothing(columns: list[str]) -> pa.Table:
    import pyarrow as pa

    kinds = {"event": pa.string(), "vbucket": pa.int32(), "key": pa.string(), "value": pa.string()}
    return pa.schema([(name, kinds.get(name, pa.int64())) for name in columns]).empty_table()


def _documents(rows: pa.Table) -> dict[int, dict[str, str]]:
    import pyarrow.compute as pc

    found = {}
    for number in rows.column("collection_id").unique().to_pylist():
        mine = rows.filter(pc.equal(rows.column("collection_id"), number))
        found[number] = dict(zip(mine.column("key").to_pylist(), mine.column("value").to_pylist(), strict=True))
    return found


def differences(state: State, cluster: Cluster) -> tuple[int, int]:
    """How many documents the cluster has, and of how many the state says something else."""
    documents = differing = 0
    for path, number in cluster.collection_ids().items():
        truth = {key.decode(): document.value.decode() for key, document in cluster.truth(path).items()}
        mine = state.documents.get(number, {})
        documents += len(truth)
        if mine != truth:
            differing += sum(mine.get(key) != truth.get(key) for key in mine.keys() | truth.keys())
    return documents, differing
