"""The output of a copy: a directory of files that are whole, and a checkpoint that speaks of all of them.

A commit closes the files in work, makes them last on the disk, gives them their names, and then replaces the
checkpoint. The files of a commit carry its number, and so does the checkpoint: what a crash left without a
checkpoint of its number is removed when the copy goes on, which brings it again. So nothing is lost, nothing is
there twice, and a reader sees whole files only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from dcp.checkpoint import Checkpoint, CheckpointFile, filter_of, sync_directory
from dcp.cli.changes import Names
from dcp.cli.positions import load, number_of, of_copy, path_of_copy
from dcp.cli.writers import FORMATS, Writer
from dcp.errors import LocalProtocolError

if TYPE_CHECKING:
    import pyarrow as pa

# What waits in memory at most before it is written, over all files.
_MOST_PENDING = 64 << 20
# Where Hive, Spark and Arrow put rows whose partition is null: rollbacks concern every collection.
_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass
class _Part:
    """A file in work, under a name that readers pass over."""

    path: Path
    file: BinaryIO
    writer: Writer
    rows: int = 0
    pending: list[pa.Table] = field(default_factory=list)

    @property
    def new(self) -> Path:
        return self.path.with_name(f".{self.path.name}.new")


class Output:
    """What is written so far, and what is in work. `checkpoint` is where to go on; None in a new directory."""

    def __init__(self, directory: Path, format: str) -> None:
        self.directory, self.format = directory, format
        self.names: Names | None = None
        self.files, self.bytes = 0, 0
        self.events: Counter[str] = Counter()
        self._by_collection = False
        self._parts: dict[int | None, _Part] = {}
        self._pending = 0
        directory.mkdir(parents=True, exist_ok=True)
        self.checkpoint: Checkpoint | None = None
        self._number = 0
        self._lock = _lock(directory)
        try:
            self._go_on()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others write to the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def partitioned(self) -> bool:
        """Whether each collection has a directory."""
        return next(self.directory.glob("collection=*"), None) is not None

    @property
    def place(self) -> Path:
        """Where the checkpoint is."""
        return path_of_copy(self.directory, self._number)

    @property
    def rows(self) -> int:
        """How many are in work."""
        return sum(part.rows for part in self._parts.values())

    def begin(self, checkpoint: Checkpoint, names: Names) -> None:
        """A stream goes on from there. Whether it is partitioned was decided when the directory was new."""
        if self.checkpoint is not None and filter_of(checkpoint) != (before := filter_of(self.checkpoint)):
            raise LocalProtocolError(
                f"{self.directory}: has a copy of {before}, which one of {filter_of(checkpoint)} does not go on with; "
                "copy the same as before, or into a new directory"
            )
        several = len(checkpoint.collections or names) > 1
        self._by_collection = self.partitioned or (self.checkpoint is None and several)
        self.names = names
        if self.checkpoint is None:
            CheckpointFile(self.place).save(checkpoint)

    def has_room(self, rows: int, most: int) -> bool:
        return all(part.rows + rows <= most for part in self._parts.values())

    def add(self, table: pa.Table) -> None:
        self.events.update({row["values"]: row["counts"] for row in table.column("event").value_counts().to_pylist()})
        for number, rows in self._divided(table):
            part = self._parts.get(number) or self._open(number, rows.schema)
            part.rows += rows.num_rows
            part.pending.append(rows)
        self._pending += table.nbytes
        if self._pending >= _MOST_PENDING:
            self._flush()

    def commit(self, checkpoint: Checkpoint) -> None:
        """Everything that was added is there for ever, and `checkpoint` speaks of it."""
        self._flush()
        for part in self._parts.values():
            with _named(part.path):
                part.writer.close()
                part.file.flush()
                os.fsync(part.file.fileno())
                self.bytes += part.file.tell()
                part.file.close()
        for part in self._parts.values():
            part.new.replace(part.path)
        for directory in {part.path.parent for part in self._parts.values()}:
            sync_directory(directory)
        if any(part.path.parent != self.directory for part in self._parts.values()):
            sync_directory(self.directory)
        self.files += len(self._parts)
        self._parts.clear()
        before, self._number = self.place, self._number + 1
        CheckpointFile(self.place).save(checkpoint)
        before.unlink(missing_ok=True)

    def _go_on(self) -> None:
        """Where the copy before ended."""
        saved = of_copy(self.directory)
        if saved:
            self.checkpoint, self._number = load(saved[-1]), number_of(saved[-1]) or 0
        self._check(bool(saved))
        self._recover()

    def _check(self, known: bool) -> None:
        if not known and any(self.directory.iterdir()):
            raise LocalProtocolError(
                f"{self.directory}: expected a new directory, or one that a copy wrote, found files and no checkpoint"
            )
        others = {path.suffix for path in self._written()} - {FORMATS[self.format].suffixes[0]}
        if others:
            raise LocalProtocolError(f"{self.directory}: has {', '.join(sorted(others))} files, not {self.format}")

    def _written(self) -> list[Path]:
        return [path for pattern in ("part-*", "collection=*/part-*") for path in self.directory.glob(pattern)]

    def _recover(self) -> None:
        """Remove what no checkpoint speaks of."""
        for pattern in (".part-*.new", "collection=*/.part-*.new"):
            for unfinished in self.directory.glob(pattern):
                unfinished.unlink()
        for path in self._written():
            if (number_of(path) or 0) > self._number:
                path.unlink()
        for older in of_copy(self.directory)[:-1]:
            older.unlink()

    def _divided(self, table: pa.Table) -> list[tuple[int | None, pa.Table]]:
        if not self._by_collection:
            return [(None, table)]
        import pyarrow.compute as compute

        numbers = table.column("collection_id").unique().to_pylist()
        if len(numbers) == 1:
            return [(numbers[0], table)]
        ids = table.column("collection_id")
        return [(n, table.filter(compute.is_null(ids) if n is None else compute.equal(ids, n))) for n in numbers]

    def _open(self, number: int | None, schema: pa.Schema) -> _Part:
        assert self.names is not None
        directory = self.directory
        if self._by_collection:
            name = _NULL if number is None else quote(self.names[number], safe="")
            directory = directory / f"collection={name}"
            directory.mkdir(exist_ok=True)
        format = FORMATS[self.format]
        path = directory / f"part-{self._number + 1:08d}{format.suffixes[0]}"
        file = path.with_name(f".{path.name}.new").open("wb")
        part = self._parts[number] = _Part(path, file, format.open(file, schema, self.names))
        return part

    def _flush(self) -> None:
        import pyarrow

        for part in self._parts.values():
            if part.pending:
                with _named(part.path):
                    part.writer.write_table(pyarrow.concat_tables(part.pending))
                part.pending.clear()
        self._pending = 0


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What cannot be written does not say by itself where that was."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _lock(directory: Path) -> int | None:
    """Keep other copies out, as two that a timer started would remove each other's files. Windows has no such lock."""
    if os.name == "nt":
        return None
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise LocalProtocolError(f"{directory}: another copy is writing to it") from None
    return descriptor
