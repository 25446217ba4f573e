"""The formats of files that changes are copied to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from dcp.cli.changes import Names, lines, objects
from dcp.errors import LocalProtocolError

if TYPE_CHECKING:
    import pyarrow as pa


# So many rows are objects at a time.
_LINES = 8192


class Writer(Protocol):
    """What puts tables into an open file."""

    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None:
        """Write what ends the file, and leave it open."""


class Format(NamedTuple):
    """Its suffixes, the one of new files first."""

    suffixes: tuple[str, ...]
    open: Callable[[BinaryIO, pa.Schema, Names], Writer]


class _Lines:
    """An object a line."""

    def __init__(self, file: BinaryIO, names: Names) -> None:
        self._file, self._names = file, names

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches(_LINES):
            self._file.write(lines(objects(batch, self._names)).encode())

    def close(self) -> None:
        pass


def _parquet(file: BinaryIO, schema: pa.Schema, _: Names) -> Writer:
    from pyarrow import parquet

    writer: Writer = parquet.ParquetWriter(file, schema)
    return writer


def _ipc(file: BinaryIO, schema: pa.Schema, _: Names) -> Writer:
    import pyarrow

    writer: Writer = pyarrow.ipc.new_file(file, schema)
    return writer


FORMATS = {
    "parquet": Format((".parquet", ".pq"), _parquet),
    "arrow": Format((".arrow", ".feather", ".ipc"), _ipc),
    "ndjson": Format((".ndjson", ".jsonl", ".json"), lambda file, _, names: _Lines(file, names)),
}


def format_of(path: Path) -> str:
    """The format that a suffix stands for; Parquet where there is none."""
    if not path.suffix:
        return "parquet"
    for name, format in FORMATS.items():
        if path.suffix in format.suffixes:
            return name
    known = ", ".join(suffix for format in FORMATS.values() for suffix in format.suffixes)
    raise LocalProtocolError(f"{path}: expected a suffix of {known}, or --format, found {path.suffix}")
