"""Output directory of `dcp copy`: complete files, and one checkpoint that covers all of them.

A commit closes its files, syncs them to disk, renames them to their final names, and then replaces the checkpoint.
Files and checkpoint carry the number of their commit. A crash in between leaves files above the checkpoint's number:
the next run removes them and copies their changes again. So no change is lost or duplicated, and every file that a
reader sees is complete.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote, urlsplit

from dcp.checkpoint import Checkpoint, naming
from dcp.cli.checkpoint_args import checkpoint_name, is_checkpoint, number_of
from dcp.cli.copy_directory import hidden_name, open_directory
from dcp.cli.file_formats import FORMATS, TableWriter, format_of
from dcp.cli.json_rows import CollectionNames
from dcp.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes that are buffered over all open files before they are written. While they are, as many more may be buffered.
_MAX_BUFFERED = 64 << 20
# Partition of rows without a collection, as Hive, Spark and Arrow name it. A rollback concerns every collection.
_NULL_PARTITION = "collection=__HIVE_DEFAULT_PARTITION__"
# File with the options that decide what the rows are. Readers of directories skip it, as they do the checkpoint.
_OPTIONS = "_options.json"


@dataclass
class _OpenFile:
    """A file that is being written."""

    name: str
    file: BinaryIO
    writer: TableWriter
    rows: int = 0
    buffered: list[pa.Table] = field(default_factory=list)


class CopyOutput:
    """Files of a copy, committed and open. `checkpoint` is where to resume; None for a new directory.

    out: path or URL of the directory.

    Raises UsageError if the directory has other files, or if another copy writes to it.
    """

    def __init__(self, out: str | Path, format: str | None = None) -> None:
        self.names: CollectionNames | None = None
        # Totals of this run's commits.
        self.files, self.bytes = 0, 0
        self.events: Counter[str] = Counter()
        self._by_collection = False
        # By collection id; None for rows without one, and for the only file of a copy that is not partitioned.
        self._open_files: dict[int | None, _OpenFile] = {}
        self._buffered = 0
        # Formats are written without the GIL: meanwhile the next rows arrive.
        self._thread = ThreadPoolExecutor(1, "dcp copy")
        self._write: Future[None] | None = None
        self.checkpoint: Checkpoint | None = None
        self._number = 0
        self.format = format or format_of(_path_of(str(out)))
        self._directory = open_directory(out)
        self.shown = self._directory.shown
        try:
            self._resume()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the directory. Files that were not committed are removed, and a new directory that is still empty."""
        self._thread.shutdown()
        for part in self._open_files.values():
            with suppress(OSError):
                # A writer of Parquet would close itself later, when its file is closed.
                part.writer.close()
            self._directory.discard(part.name, part.file)
        self._open_files.clear()
        self._directory.close()

    @property
    def checkpoint_path(self) -> str:
        """Path or URL of the current checkpoint."""
        return self._directory.path(checkpoint_name(self._number))

    @property
    def rows(self) -> int:
        """Number of rows since the last commit."""
        return sum(part.rows for part in self._open_files.values())

    def begin(self, checkpoint: Checkpoint, names: CollectionNames, options: Mapping[str, str] | None = None) -> None:
        """Prepare for the rows of a stream that starts at `checkpoint`.

        options: flags that decide what the rows are, with their values.

        A directory without rows is partitioned if the stream has several collections; another one stays as it is.
        Raises UsageError if the directory is a copy with other options.
        """
        options = options or {}
        self._check_options(options)
        # Decided with the first rows of a directory: mixing both layouts would hide files from readers of partitions.
        parts = [name for name in self._directory.names() if _is_part(name)]
        several = len(checkpoint.collections or names) > 1
        self._by_collection = any("/" in name for name in parts) if parts else several
        self.names = names
        if self.checkpoint is None:
            if options:
                self._directory.replace(_OPTIONS, json.dumps(dict(options)))
            # From here on the directory is known as a copy's, even if the first commit never happens.
            self._directory.replace(checkpoint_name(self._number), checkpoint.to_json())

    def _check_options(self, options: Mapping[str, str]) -> None:
        """Raise UsageError if the copy was begun with other options: its files would not go together."""
        has_some = self.checkpoint is not None and _OPTIONS in self._directory.names()
        try:
            before = json.loads(self._directory.read(_OPTIONS)) if has_some else {}
        except ValueError:
            path = self._directory.path(_OPTIONS)
            raise UsageError(f"{path}: expected the options of a copy as JSON, found something else") from None
        if self.checkpoint is not None and before != dict(options):
            raise UsageError(
                f"{self.shown}: expected {_flags(before)}, as it was begun with, found {_flags(options)}; "
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
        self._finish_write()
        for part in self._open_files.values():
            with naming(self._directory.path(part.name)):
                part.writer.close()
                self.bytes += self._directory.complete(part.name, part.file)
        self._directory.publish([part.name for part in self._open_files.values()])
        self.files += len(self._open_files)
        self._open_files.clear()
        # The checkpoint comes last: it must not cover a file that a crash can still take away.
        before, self._number = checkpoint_name(self._number), self._number + 1
        self._directory.replace(checkpoint_name(self._number), checkpoint.to_json())
        self._directory.remove(before)

    def _resume(self) -> None:
        """Load the checkpoint of the run before, and remove what it left unfinished."""
        names = self._directory.names()
        saved = sorted(filter(is_checkpoint, names), key=number_of)
        if saved:
            self.checkpoint, self._number = self._load(saved[-1]), number_of(saved[-1])
        # The check comes first: nothing is removed from a directory that is no copy.
        self._check(names, has_checkpoint=bool(saved))
        # What the checkpoint does not cover, and older checkpoints.
        for name in names:
            if _is_unfinished(name) or name in saved[:-1] or (_is_part(name) and number_of(name) > self._number):
                self._directory.remove(name)

    def _load(self, name: str) -> Checkpoint:
        try:
            return Checkpoint.from_json(self._directory.read(name))
        except CheckpointError as wrong:
            raise CheckpointError(f"{self._directory.path(name)}: {wrong}") from None

    def _check(self, names: list[str], *, has_checkpoint: bool) -> None:
        """Raise UsageError unless the directory is empty or a copy in the same format."""
        # All that a crash leaves of a copy which had no checkpoint yet.
        unfinished = {hidden_name(checkpoint_name(0)), hidden_name(_OPTIONS), _OPTIONS}
        if not has_checkpoint and not unfinished.issuperset(names):
            raise UsageError(
                f"{self.shown}: expected a new directory, or one that a copy wrote, found files and no checkpoint"
            )
        others = {PurePosixPath(name).suffix for name in names if _is_part(name)} - {FORMATS[self.format].suffixes[0]}
        if others:
            raise UsageError(f"{self.shown}: has {', '.join(sorted(others))} files, not {self.format}")

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
        format = FORMATS[self.format]
        name = f"part-{self._number + 1:08d}{format.suffixes[0]}"
        if self._by_collection:
            collection = None if number is None else self.names[number]
            name = f"{_partition_name(collection, self._directory.max_name)}/{name}"
        file = self._directory.create(name)
        part = self._open_files[number] = _OpenFile(name, file, format.open(file, schema, self.names))
        return part

    def _flush(self) -> None:
        """Begin to write buffered rows to their files, once those before are written."""
        self._finish_write()
        buffered = [(part, part.buffered) for part in self._open_files.values() if part.buffered]
        for part, _ in buffered:
            part.buffered = []
        self._buffered = 0
        self._write = self._thread.submit(self._write_all, buffered)

    def _finish_write(self) -> None:
        """Wait for the write that has begun. Raises what went wrong in it."""
        write, self._write = self._write, None
        if write is not None:
            write.result()

    def _write_all(self, buffered: list[tuple[_OpenFile, list[pa.Table]]]) -> None:
        import pyarrow

        for part, tables in buffered:
            with naming(self._directory.path(part.name)):
                part.writer.write_table(pyarrow.concat_tables(tables))


def _flags(options: Mapping[str, str]) -> str:
    """Return options as they are given on the command line."""
    return (
        " ".join(f"--{name} {value!r}" for name, value in options.items()) or "none of --schema, --where and --columns"
    )


def _path_of(out: str) -> PurePosixPath:
    """Return a path with the suffix of the output. A URL may have a password."""
    return PurePosixPath(urlsplit(out).path if "://" in out else out)


def _is_part(name: str) -> bool:
    """Return whether a file has rows of the copy."""
    directory, _, file = name.rpartition("/")
    return file.startswith("part-") and _is_of_copy(directory)


def _is_unfinished(name: str) -> bool:
    """Return whether a run left a file before it was complete."""
    directory, _, file = name.rpartition("/")
    return file.startswith(".") and file.endswith(".new") and _is_of_copy(directory)


def _is_of_copy(directory: str) -> bool:
    """Return whether a copy writes into a subdirectory. Others belong to somebody else."""
    return not directory or (directory.startswith("collection=") and "/" not in directory)


def _partition_name(collection: str | None, most: int) -> str:
    """Return the name of a collection's subdirectory, shortened to what the file system allows.

    Hive escapes special characters in names of partitions as %XX, and so does quote(). A shortened name ends in a part
    of the SHA-256 of the whole, so that it is the same in every run and no other collection's.
    """
    if collection is None:
        return _NULL_PARTITION
    name = f"collection={quote(collection, safe='')}"
    if len(name) <= most:
        return name
    digest = hashlib.sha256(collection.encode()).hexdigest()[:16]
    # An escape that the cut would leave incomplete is dropped.
    return f"{re.sub('%.?$', '', name[: most - len(digest) - 1])}~{digest}"
