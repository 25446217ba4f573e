"""Output directory of `dcp copy`: complete files, and one checkpoint that covers all of them.

A commit closes its files, syncs them to disk, renames them to their final names, and then replaces the checkpoint.
Files and checkpoint carry the number of their commit. A crash in between leaves files above the checkpoint's number:
the next run removes them and copies their changes again. So no change is lost or duplicated, and every file that a
reader sees is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from dcp.checkpoint import Checkpoint, CheckpointFile, filter_of, naming, replace_file, sync_directory
from dcp.cli.checkpoint_args import copy_checkpoint, copy_checkpoints, load, number_of
from dcp.cli.file_formats import FORMATS, TableWriter
from dcp.cli.json_rows import CollectionNames
from dcp.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes that are buffered over all open files before they are written.
_MAX_BUFFERED = 64 << 20
# Partition of rows without a collection, as Hive, Spark and Arrow name it. A rollback concerns every collection.
_NULL_PARTITION = "collection=__HIVE_DEFAULT_PARTITION__"
# File with the options that decide what the rows are. Readers of directories skip it, as they do the checkpoint.
_OPTIONS = "_options.json"
# Bytes in a name, where the system does not say: NTFS, as most others, has 255 characters.
_MAX_NAME = 255


@dataclass
class _OpenFile:
    """A file that is being written, under a hidden name, which readers of directories skip."""

    path: Path
    file: BinaryIO
    writer: TableWriter
    rows: int = 0
    buffered: list[pa.Table] = field(default_factory=list)

    @property
    def hidden(self) -> Path:
        """Path until the commit."""
        return self.path.with_name(f".{self.path.name}.new")


class CopyOutput:
    """Files of a copy, committed and open. `checkpoint` is where to resume; None for a new directory.

    Raises UsageError if the directory has other files, or if another copy writes to it.
    """

    def __init__(self, directory: Path, format: str) -> None:
        self.directory, self.format = directory, format
        self.names: CollectionNames | None = None
        # Totals of this run's commits.
        self.files, self.bytes = 0, 0
        self.events: Counter[str] = Counter()
        self._by_collection = False
        # By collection id; None for rows without one, and for the only file of a copy that is not partitioned.
        self._open_files: dict[int | None, _OpenFile] = {}
        self._buffered = 0
        self._created = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        self.checkpoint: Checkpoint | None = None
        self._number = 0
        self._lock = _lock(directory)
        try:
            self._resume()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock on the directory. Remove a new one that is still empty: the copy never began."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._created:
            with suppress(OSError):
                self.directory.rmdir()

    @property
    def partitioned(self) -> bool:
        """True if each collection has a subdirectory."""
        return next(self.directory.glob("collection=*"), None) is not None

    @property
    def checkpoint_path(self) -> Path:
        """Path of the current checkpoint."""
        return copy_checkpoint(self.directory, self._number)

    @property
    def rows(self) -> int:
        """Number of rows since the last commit."""
        return sum(part.rows for part in self._open_files.values())

    def begin(self, checkpoint: Checkpoint, names: CollectionNames, options: Mapping[str, str] | None = None) -> None:
        """Prepare for the rows of a stream that starts at `checkpoint`.

        options: flags that decide what the rows are, with their values.

        A new directory is partitioned if the stream has several collections; an existing one stays as it is.
        Raises UsageError if the directory is a copy of other collections, or with other options.
        """
        if self.checkpoint is not None and filter_of(checkpoint) != (before := filter_of(self.checkpoint)):
            raise UsageError(
                f"{self.directory}: expected a copy of {filter_of(checkpoint)}, found one of {before}; "
                "copy the same as before, or into a new directory"
            )
        options = options or {}
        self._check_options(options)
        several = len(checkpoint.collections or names) > 1
        # Decided once for a directory: mixing both layouts would hide files from readers of partitions.
        self._by_collection = self.partitioned or (self.checkpoint is None and several)
        self.names = names
        if self.checkpoint is None:
            if options:
                replace_file(self.directory / _OPTIONS, json.dumps(dict(options)))
            # From here on the directory is known as a copy's, even if the first commit never happens.
            CheckpointFile(self.checkpoint_path).save(checkpoint)

    def _check_options(self, options: Mapping[str, str]) -> None:
        """Raise UsageError if the copy was begun with other options: its files would not go together."""
        path = self.directory / _OPTIONS
        try:
            with naming(path):
                before = json.loads(path.read_text("utf-8")) if self.checkpoint is not None and path.exists() else {}
        except ValueError:
            raise UsageError(f"{path}: expected the options of a copy as JSON, found something else") from None
        if self.checkpoint is not None and before != dict(options):
            raise UsageError(
                f"{self.directory}: expected {_flags(before)}, as it was begun with, found {_flags(options)}; "
                "copy the same as before, or into a new directory"
            )

    def has_room(self, rows: int, max_rows: int) -> bool:
        """True if each open file can take this many more rows."""
        return all(part.rows + rows <= max_rows for part in self._open_files.values())

    def add(self, table: pa.Table) -> None:
        """Add the rows of a table to the open files."""
        self.events.update({row["values"]: row["counts"] for row in table.column("event").value_counts().to_pylist()})
        for number, rows in self._divide(table):
            part = self._open_files.get(number) or self._open(number, rows.schema)
            part.rows += rows.num_rows
            part.buffered.append(rows)
        # Over all files together: with many collections, a limit for each could exhaust the memory.
        self._buffered += table.nbytes
        if self._buffered >= _MAX_BUFFERED:
            self._flush()

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make everything that was added durable, and `checkpoint` with it."""
        self._flush()
        for part in self._open_files.values():
            with naming(part.path):
                part.writer.close()
                part.file.flush()
                os.fsync(part.file.fileno())
                self.bytes += part.file.tell()
                part.file.close()
        for part in self._open_files.values():
            part.hidden.replace(part.path)
        # A rename is durable only once its directory is synced, a new subdirectory once its parent is.
        for directory in {part.path.parent for part in self._open_files.values()}:
            sync_directory(directory)
        if any(part.path.parent != self.directory for part in self._open_files.values()):
            sync_directory(self.directory)
        self.files += len(self._open_files)
        self._open_files.clear()
        # The checkpoint comes last: it must not cover a file that a crash can still take away.
        before, self._number = self.checkpoint_path, self._number + 1
        CheckpointFile(self.checkpoint_path).save(checkpoint)
        before.unlink(missing_ok=True)

    def _resume(self) -> None:
        """Load the checkpoint of the run before, and remove what it left unfinished."""
        saved = copy_checkpoints(self.directory)
        if saved:
            self.checkpoint, self._number = load(saved[-1]), number_of(saved[-1]) or 0
        # The check comes first: nothing is removed from a directory that is no copy.
        self._check(bool(saved))
        self._clean_up()

    def _check(self, has_checkpoint: bool) -> None:
        """Raise UsageError unless the directory is empty or a copy in the same format."""
        # All that a crash leaves of a copy which had no checkpoint yet.
        unfinished = {f".{self.checkpoint_path.name}.new", f".{_OPTIONS}.new", _OPTIONS}
        if not has_checkpoint and any(path.name not in unfinished for path in self.directory.iterdir()):
            raise UsageError(
                f"{self.directory}: expected a new directory, or one that a copy wrote, found files and no checkpoint"
            )
        others = {path.suffix for path in self._committed()} - {FORMATS[self.format].suffixes[0]}
        if others:
            raise UsageError(f"{self.directory}: has {', '.join(sorted(others))} files, not {self.format}")

    def _committed(self) -> list[Path]:
        """Return the files with final names."""
        return [path for pattern in ("part-*", "collection=*/part-*") for path in self.directory.glob(pattern)]

    def _clean_up(self) -> None:
        """Remove files that the checkpoint does not cover, and older checkpoints."""
        for pattern in (".*.new", "collection=*/.*.new"):
            for unfinished in self.directory.glob(pattern):
                unfinished.unlink()
        for path in self._committed():
            if (number_of(path) or 0) > self._number:
                path.unlink()
        for older in copy_checkpoints(self.directory)[:-1]:
            older.unlink()

    def _divide(self, table: pa.Table) -> list[tuple[int | None, pa.Table]]:
        """Return the rows of each collection, if the copy is partitioned."""
        if not self._by_collection:
            return [(None, table)]
        import pyarrow.compute as compute

        numbers = table.column("collection_id").unique().to_pylist()
        if len(numbers) == 1:
            return [(numbers[0], table)]
        ids = table.column("collection_id")
        return [(n, table.filter(compute.is_null(ids) if n is None else compute.equal(ids, n))) for n in numbers]

    def _open(self, number: int | None, schema: pa.Schema) -> _OpenFile:
        """Open a file for a collection."""
        assert self.names is not None
        directory = self.directory
        if self._by_collection:
            directory /= _NULL_PARTITION if number is None else _directory_name(directory, self.names[number])
            directory.mkdir(exist_ok=True)
        format = FORMATS[self.format]
        path = directory / f"part-{self._number + 1:08d}{format.suffixes[0]}"
        file = path.with_name(f".{path.name}.new").open("wb")
        part = self._open_files[number] = _OpenFile(path, file, format.open(file, schema, self.names))
        return part

    def _flush(self) -> None:
        """Write buffered rows to their files."""
        import pyarrow

        for part in self._open_files.values():
            if part.buffered:
                with naming(part.path):
                    part.writer.write_table(pyarrow.concat_tables(part.buffered))
                part.buffered.clear()
        self._buffered = 0


def _flags(options: Mapping[str, str]) -> str:
    """Return options as they are given on the command line."""
    return " ".join(f"--{name} {value!r}" for name, value in options.items()) or "neither --schema nor --where"


def _directory_name(directory: Path, collection: str) -> str:
    """Return the name of a collection's subdirectory, shortened to what the file system allows.

    Hive escapes special characters in names of partitions as %XX, and so does quote(). A shortened name ends in a part
    of the SHA-256 of the whole, so that it is the same in every run and no other collection's.
    """
    name = f"collection={quote(collection, safe='')}"
    most = os.pathconf(directory, "PC_NAME_MAX") if hasattr(os, "pathconf") else _MAX_NAME
    if len(name) <= most:
        return name
    digest = hashlib.sha256(collection.encode()).hexdigest()[:16]
    # An escape that the cut would leave incomplete is dropped.
    return f"{re.sub('%.?$', '', name[: most - len(digest) - 1])}~{digest}"


def _lock(directory: Path) -> int | None:
    """Lock a directory against other copies, and return the lock's file descriptor.

    Two copies, started by a timer for instance, would remove each other's files. Windows has no such lock: None.
    """
    if os.name == "nt":
        return None
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"{directory}: another copy is writing to it") from None
    return descriptor
