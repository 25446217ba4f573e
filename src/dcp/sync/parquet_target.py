"""A Parquet file with all rows, and the state in its metadata. Each transaction replaces the file as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcp.checkpoint import sync_directory
from dcp.errors import UsageError
from dcp.sync.changes import Transaction
from dcp.sync.file_systems import file_system, shown_url
from dcp.sync.state import SyncState
from dcp.sync.target import TargetError, check_unchanged

if TYPE_CHECKING:
    import pyarrow as pa

# Name of the state in the metadata of the file.
_STATE = b"dcp.sync"
# Bytes of rows that are written together, uncompressed.
_GROUP_BYTES = 64 << 20
_BATCH_ROWS = 16_384


class ParquetTarget:
    """Parquet file at a path, or at a URL of an object store or file system."""

    def __init__(self, url: str) -> None:
        self.shown = shown_url(url) if "://" in url else url
        self._local = None if "://" in url else Path(url)
        self._system, self._path = file_system(url if self._local is None else self._local.absolute().as_uri())
        if self._system.type_name == "hdfs":
            raise UsageError("target: expected another file system, or a Delta table: a file of HDFS is not replaced")

    def load(self) -> SyncState | None:
        with self._errors(), self._file() as file:
            return None if file is None else self._state(file)

    def commit(self, transaction: Transaction) -> None:
        with self._errors(), self._file() as file:
            check_unchanged(self.shown, None if file is None else self._state(file), transaction)
            if self._local is None:
                # An error ends the upload as well, and must not leave half a file under this name.
                new = f"{self._path}.new"
                with self._system.open_output_stream(new) as sink:
                    self._write(sink, file, transaction)
                self._system.move(new, self._path)
            else:
                self._replace(self._local, file, transaction)

    def count(self) -> int:
        with self._errors(), self._file() as file:
            return 0 if file is None else int(file.metadata.num_rows)

    def close(self) -> None:
        pass

    def _replace(self, path: Path, file: Any, transaction: Transaction) -> None:
        """Write another file, and give it the name of this one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        try:
            with new.open("wb") as sink:
                self._write(sink, file, transaction)
                sink.flush()
                # The data has to be on disk before the name points to it.
                os.fsync(sink.fileno())
            new.replace(path)
        except BaseException:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)

    def _write(self, sink: Any, file: Any, transaction: Transaction) -> None:
        from pyarrow import parquet

        state = {_STATE.decode(): transaction.state.to_json()}
        with parquet.ParquetWriter(sink, transaction.rows.schema, compression="zstd") as writer:
            for group in _groups(self._rows(file, transaction)):
                writer.write_table(group)
            writer.add_key_value_metadata(state)

    def _rows(self, file: Any, transaction: Transaction) -> Iterator[pa.Table]:
        """Yield the rows after the transaction."""
        import pyarrow
        import pyarrow.compute as compute

        for batch in () if file is None else file.iter_batches(_BATCH_ROWS):
            rows = pyarrow.Table.from_batches([batch])
            if not transaction.only_new:
                rows = rows.filter(compute.invert(transaction.removes_from(rows)))
            yield rows.cast(transaction.rows.schema)
        yield transaction.rows

    def _state(self, file: Any) -> SyncState:
        metadata = file.metadata.metadata or {}
        if _STATE not in metadata:
            raise UsageError(f"{self.shown}: expected a new file, or one of dcp sync, found another one")
        return SyncState.from_json(metadata[_STATE].decode())

    @contextmanager
    def _file(self) -> Iterator[Any]:
        """Open the file; None if there is none."""
        from pyarrow import fs, parquet

        if self._system.get_file_info(self._path).type == fs.FileType.NotFound:
            yield None
            return
        with self._system.open_input_file(self._path) as source, parquet.ParquetFile(source) as file:
            yield file

    @contextmanager
    def _errors(self) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except (OSError, pyarrow.ArrowException) as error:
            raise TargetError(f"{self.shown}: {error}") from error


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join tables to row groups of about the same size."""
    import pyarrow

    waiting: list[pa.Table] = []
    for table in tables:
        step = max(1, table.num_rows * _GROUP_BYTES // max(table.nbytes, 1))
        for start in range(0, table.num_rows, step):
            waiting.append(table.slice(start, step))
            if sum(part.nbytes for part in waiting) >= _GROUP_BYTES:
                yield pyarrow.concat_tables(waiting)
                waiting.clear()
    if waiting:
        yield pyarrow.concat_tables(waiting)
