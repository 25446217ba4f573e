"""The copy that the Python client makes alone."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import dcp
from dcp.checkpoint import Checkpoint
from dcp.cli.demo.lake import COLUMNS, Lake
from dcp.spark.options import Options
from dcp.spark.schema import SparkSchema

if TYPE_CHECKING:
    import pyarrow as pa

# A batch of what was there already has so many rows, one of what is followed has what came in so many seconds.
_ROWS, _INTERVAL = 250_000, 0.5
_NAP = 0.1


class Copier:
    """One stream into one file a batch, in the columns and types that Spark would write."""

    name = f"Python client {dcp.__version__}, in this process"

    def __init__(self, url: str, lake: Lake) -> None:
        self._client = dcp.connect(url)
        self._lake = lake
        options = Options.of({"url": url, "columns": list(COLUMNS), "keyFormat": "string", "valueFormat": "string"})
        self._schema = SparkSchema(options)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="copier", daemon=True)
        self._failure: Exception | None = None
        self.checkpoint: Checkpoint | None = None
        self.restarts = 0

    def read(self) -> None:
        with self._client.stream(end="now", columns=COLUMNS, types="plain") as stream:
            for batch in stream:
                self._add(batch)
                if self._rows >= _ROWS:
                    self._write()
            self._commit(stream)

    def follow(self) -> None:
        self._thread.start()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._client.close()

    def _follow(self) -> None:
        try:
            with self._client.stream(self.checkpoint or "beginning", columns=COLUMNS, types="plain") as stream:
                while not self._ended.is_set():
                    due = time.monotonic() + _INTERVAL
                    while time.monotonic() < due:
                        with suppress(TimeoutError):
                            batch = stream.next(_NAP)
                            assert batch is not None
                            self._add(batch)
                    if self._rows:
                        self._commit(stream)
        except Exception as error:
            self._failure = error

    def _add(self, batch: dcp.Batch) -> None:
        self._waiting.append(self._schema.with_text(batch.to_arrow()))
        self._rows += len(batch)

    def _commit(self, stream: dcp.ChangeStream) -> None:
        self._write()
        self.checkpoint = stream.checkpoint

    def _write(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        place = self._lake.place(self._number)
        place.mkdir(parents=True)
        table = pa.Table.from_batches(self._waiting, self._schema.arrow)
        parquet.write_table(table, place / "part-00000.parquet")
        self._lake.finished(self._number)
        self._waiting, self._rows = [], 0
        self._number += 1
