"""File formats of `dcp copy`: Parquet, Arrow IPC and newline-delimited JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from dcp.cli.arguments import WrongValue
from dcp.cli.json_rows import CollectionNames, lines, objects

if TYPE_CHECKING:
    import pyarrow as pa


# Rows that are Python objects at a time: it bounds the memory of the JSON writer.
_ROWS_PER_CHUNK = 8192


class TableWriter(Protocol):
    """Writes tables to an open file."""

    def write_table(self, table: pa.Table) -> None:
        """Write the rows of a table."""

    def close(self) -> None:
        """Write the end of the format. Leave the file open."""


class FileFormat(NamedTuple):
    """Suffixes of a format, the one of new files first, and what opens a writer."""

    suffixes: tuple[str, ...]
    open: Callable[[BinaryIO, pa.Schema, CollectionNames], TableWriter]


class _JsonWriter:
    """Writes one JSON object a line."""

    def __init__(self, file: BinaryIO, names: CollectionNames) -> None:
        self._file, self._names = file, names

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches(_ROWS_PER_CHUNK):
            self._file.write(lines(objects(batch, self._names)).encode())

    def close(self) -> None:
        pass


def _parquet(file: BinaryIO, schema: pa.Schema, _: CollectionNames) -> TableWriter:
    from pyarrow import parquet

    writer: TableWriter = parquet.ParquetWriter(file, schema)
    return writer


def _ipc(file: BinaryIO, schema: pa.Schema, _: CollectionNames) -> TableWriter:
    import pyarrow

    writer: TableWriter = pyarrow.ipc.new_file(file, schema)
    return writer


FORMATS = {
    "parquet": FileFormat((".parquet", ".pq"), _parquet),
    "arrow": FileFormat((".arrow", ".feather", ".ipc"), _ipc),
    "ndjson": FileFormat((".ndjson", ".jsonl", ".json"), lambda file, _, names: _JsonWriter(file, names)),
}


def format_of(path: PurePath) -> str:
    """Return the format that a suffix stands for; parquet without one. Raises WrongValue for another suffix."""
    if not path.suffix:
        return "parquet"
    for name, format in FORMATS.items():
        if path.suffix in format.suffixes:
            return name
    known = ", ".join(suffix for format in FORMATS.values() for suffix in format.suffixes)
    raise WrongValue(f"{path}: expected a suffix of {known}, or --format, found {path.suffix}")
