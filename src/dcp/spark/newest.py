"""The newest version of each key of a task's rows, found in the task: Spark does not have to shuffle them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dcp.client.row_format import PURGED, ROLLBACK
from dcp.columns.arrays import booleans, integers, numbers, texts, truths
from dcp.errors import TransportError

# Columns that tell which rows are versions of the same key, and which one is the newest.
COLUMNS = ("event", "vbucket", "seqno", "collection_id", "key", "snapshot_start", "snapshot_end")
_IDENTITY = ["vbucket", "collection_id", "key"]
# Bytes of rows that are held back in memory; more are in a file.
_IN_MEMORY = 64 << 20


class NewestVersions:
    """Filter of one task's batches: of each key, only the row with its last version passes.

    A snapshot has each key once. So the rows of a vbucket pass at once if its first snapshot reaches the end of the
    read. Otherwise they are held back until the last snapshot is complete.

    ends: last seqno to read, by vbucket.
    in_memory: bytes of rows that are held back in memory; more are in a temporary file.
    """

    def __init__(self, ends: Mapping[int, int], in_memory: int = _IN_MEMORY) -> None:
        count = max(ends, default=0) + 1
        self._ends = np.zeros(count, np.int64)
        for vbucket, end in ends.items():
            self._ends[vbucket] = end
        self._held = np.zeros(count, bool)
        # End of the snapshot whose rows passed, by vbucket.
        self._passed = np.full(count, -1, np.int64)
        self._store = _Store(in_memory)
        self._reports = texts([ROLLBACK, PURGED])

    def __call__(self, batches: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the batches, each with its size in bytes, without rows that a later one replaces."""
        try:
            for batch, size in batches:
                reported = pc.is_in(batch["event"], value_set=self._reports)
                if reported.true_count:
                    self._undo(batch.filter(reported))
                hold = self._to_hold(batch, truths(reported))
                if not hold.any():
                    yield batch, size
                    continue
                self._store.add(batch.filter(booleans(hold)))
                if not hold.all():
                    passed = batch.filter(booleans(~hold))
                    yield passed, passed.nbytes
            yield from ((batch, batch.nbytes) for batch in self._store.newest())
        finally:
            self._store.close()

    def _to_hold(self, batch: pa.RecordBatch, reports: Any) -> Any:
        """Return which rows to hold back, and note the snapshots of the others."""
        vbuckets, ends = numbers(batch["vbucket"]), numbers(batch["snapshot_end"])
        early = (ends < self._ends[vbuckets]) & ~reports
        self._held[vbuckets[early]] = True
        # Also rows of the same batch that came before: a vbucket is held as a whole.
        hold = self._held[vbuckets] & ~reports
        passing = ~hold & ~reports
        found, snapshots = vbuckets[passing], ends[passing]
        before = self._passed[found]
        self._passed[found] = snapshots
        other = ((before != -1) & (before != snapshots)) | (self._passed[found] != snapshots)
        if other.any() or (self._passed[vbuckets[hold]] != -1).any():
            moved = found[other] if other.any() else vbuckets[hold]
            raise TransportError(
                f"vbucket {moved[0]}: its last snapshot was sent again with other rows, as after a move to another "
                "node; with newestOnly, the task has to be repeated"
            )
        return hold

    def _undo(self, reports: pa.RecordBatch) -> None:
        """Forget what rollbacks take back. Of a vbucket with one, replayed rows may pass again."""
        for event, vbucket, seqno in zip(*(reports[name].to_pylist() for name in COLUMNS[:3]), strict=True):
            self._passed[vbucket] = -1
            if event == ROLLBACK:
                self._store.undo(vbucket, seqno)


class _Store:
    """Rows that are held back: their identities in memory, the rows in a file once they are many."""

    def __init__(self, in_memory: int) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(in_memory)  # noqa: SIM115
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._identities: list[pa.RecordBatch] = []
        # Number of rows before a rollback, its vbucket and its seqno.
        self._rollbacks: list[tuple[int, int, int]] = []
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Append rows."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        self._writer.write_batch(rows)
        self._identities.append(rows.select([*_IDENTITY, "seqno"]))
        self._count += rows.num_rows

    def undo(self, vbucket: int, seqno: int) -> None:
        """Remove the rows of a vbucket above a seqno."""
        self._rollbacks.append((self._count, vbucket, seqno))

    def newest(self) -> Iterator[pa.RecordBatch]:
        """Yield the last row of each key."""
        if self._writer is None:
            return
        self._writer.close()
        wanted, position = self._last_rows(), 0
        self._identities.clear()
        self._file.seek(0)
        for rows in pa.ipc.open_stream(self._file):
            yield rows.filter(booleans(wanted[position : position + rows.num_rows]))
            position += rows.num_rows

    def _last_rows(self) -> Any:
        """Return which rows are the last ones of their key."""
        (rows,) = pa.Table.from_batches(self._identities).combine_chunks().to_batches()
        kept = np.ones(self._count, bool)
        for before, vbucket, seqno in self._rollbacks:
            undone = (numbers(rows["vbucket"]) == vbucket) & (numbers(rows["seqno"]) > seqno)
            kept[:before] &= ~undone[:before]
        rows = rows.append_column("number", integers(np.arange(self._count))).filter(booleans(kept))
        last = pa.Table.from_batches([rows]).group_by(_IDENTITY).aggregate([("number", "max")])["number_max"]
        wanted = np.zeros(self._count, bool)
        for chunk in last.chunks:
            wanted[numbers(chunk)] = True
        return wanted

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
