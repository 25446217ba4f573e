"""Copy by the Python client alone, without Spark."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import dcp
from dcp.checkpoint import Checkpoint
from dcp.cli.demo.parquet_batches import COLUMNS, TEXT, ParquetBatches
from dcp.spark.options import Options
from dcp.spark.schema import SparkSchema

if TYPE_CHECKING:
    import pyarrow as pa

# Rows of a batch while everything is read, and seconds between batches while changes are followed.
_ROWS, _INTERVAL = 250_000, 0.5
# Longest wait for changes in seconds.
_WAIT = 0.1


class PythonCopier:
    """One stream, written as one file for each batch, with the columns and types that Spark would write."""

    name = f"Python client {dcp.__version__}, in this process"

    def __init__(self, url: str, batches: ParquetBatches) -> None:
        self._client = dcp.connect(url)
        self._batches = batches
        options = Options.of({"url": url, "columns": list(COLUMNS), **TEXT})
        self._schema = SparkSchema(options)
        self._buffered: list[pa.RecordBatch] = []
        self._rows = 0
        self._number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="copier", daemon=True)
        self._failure: Exception | None = None
        self.checkpoint: Checkpoint | None = None
        self.restarts = 0

    def read(self) -> None:
        """Copy what the bucket has now."""
        with self._client.stream(end="now", columns=COLUMNS, types="plain", values="utf8") as stream:
            for batch in stream:
                self._add(batch)
                if self._rows >= _ROWS:
                    self._write()
            self._commit(stream)

    def follow(self) -> None:
        """Start to copy changes in a thread."""
        self._thread.start()

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop the thread and disconnect."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._client.close()

    def _follow(self) -> None:
        """Copy changes until the end, in the thread."""
        try:
            with self._client.stream(
                self.checkpoint or "beginning", columns=COLUMNS, types="plain", values="utf8"
            ) as stream:
                while not self._ended.is_set():
                    due = time.monotonic() + _INTERVAL
                    while time.monotonic() < due:
                        with suppress(TimeoutError):
                            batch = stream.next(_WAIT)
                            assert batch is not None
                            self._add(batch)
                    if self._rows:
                        self._commit(stream)
        except Exception as error:
            self._failure = error

    def _add(self, batch: dcp.Batch) -> None:
        self._buffered.append(self._schema.with_text(batch.to_arrow()))
        self._rows += len(batch)

    def _commit(self, stream: dcp.ChangeStream) -> None:
        self._write()
        self.checkpoint = stream.checkpoint

    def _write(self) -> None:
        """Write the buffered rows as a batch."""
        import pyarrow as pa
        from pyarrow import parquet

        directory = self._batches.path(self._number)
        directory.mkdir(parents=True)
        table = pa.Table.from_batches(self._buffered, self._schema.arrow)
        parquet.write_table(table, directory / "part-00000.parquet")
        self._batches.mark_complete(self._number)
        self._buffered, self._rows = [], 0
        self._number += 1
