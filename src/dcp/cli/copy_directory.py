"""The directory of a copy: on this machine, in an object store, or in another file system.

Files have names relative to it, with at most one subdirectory. Each becomes visible under its name as a whole: on this
machine, and on HDFS, by a rename; in an object store when the upload is complete.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol, cast
from urllib.parse import urlsplit

from dcp.checkpoint import naming, replace_file, sync_directory
from dcp.cli.arguments import WrongValue
from dcp.errors import UsageError
from dcp.sync.file_systems import file_system, shown_url

# Bytes in a name, where the system does not say: NTFS, as most others, has 255 characters.
_MAX_NAME = 255
# File systems in which a file is visible only once it is complete.
_OBJECT_STORES = ("s3", "gcs", "abfs")


class CopyDirectory(Protocol):
    """The operations of a copy on its directory.

    shown: its name for messages, without credentials. max_name: longest name of a file in bytes.
    """

    shown: str
    max_name: int

    def path(self, name: str) -> str:
        """Return the name of a file for messages."""

    def names(self) -> list[str]:
        """Return the names of all files."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    def replace(self, name: str, text: str) -> None:
        """Write a file. Readers see the old content or the new one, also after a crash."""

    def create(self, name: str) -> BinaryIO:
        """Open a new file, which readers of directories do not see yet."""

    def complete(self, name: str, file: BinaryIO) -> int:
        """Close a file that has all of its bytes, so that a crash does not take them away. Return their number."""

    def discard(self, name: str, file: BinaryIO) -> None:
        """Close a file that will not be completed, and remove it."""

    def publish(self, names: Sequence[str]) -> None:
        """Make complete files visible under their names."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def close(self) -> None:
        """Release what keeps other copies away. Remove a new directory that is still empty."""


def open_directory(out: str | Path) -> CopyDirectory:
    """Return the directory that a path or a URL names.

    Raises UsageError if another copy writes to it, or if there is no such file system.
    """
    text = str(out)
    if "://" not in text:
        return LocalDirectory(Path(text))
    if urlsplit(text).scheme == "file":
        return LocalDirectory(Path(urlsplit(text).path))
    return RemoteDirectory(text)


class LocalDirectory:
    """Directory of this machine. It is created, and locked against other copies."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.shown = str(directory)
        self._created = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        self.max_name = os.pathconf(directory, "PC_NAME_MAX") if hasattr(os, "pathconf") else _MAX_NAME
        self._lock = _lock(directory)

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def names(self) -> list[str]:
        below = (path for path in self._directory.glob("*/*") if path.is_file())
        top = (path for path in self._directory.iterdir() if path.is_file())
        return [path.relative_to(self._directory).as_posix() for path in (*top, *below)]

    def read(self, name: str) -> bytes:
        with naming(self._directory / name):
            return (self._directory / name).read_bytes()

    def replace(self, name: str, text: str) -> None:
        replace_file(self._directory / name, text)

    def create(self, name: str) -> BinaryIO:
        hidden = self._directory / hidden_name(name)
        hidden.parent.mkdir(exist_ok=True)
        return hidden.open("wb")

    def complete(self, name: str, file: BinaryIO) -> int:
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
        file.close()
        return size

    def discard(self, name: str, file: BinaryIO) -> None:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            (self._directory / hidden_name(name)).unlink(missing_ok=True)

    def publish(self, names: Sequence[str]) -> None:
        for name in names:
            (self._directory / hidden_name(name)).replace(self._directory / name)
        paths = [self._directory / name for name in names]
        # A rename is durable only once its directory is synced, a new subdirectory once its parent is.
        for directory in {path.parent for path in paths}:
            sync_directory(directory)
        if any(path.parent != self._directory for path in paths):
            sync_directory(self._directory)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._created:
            with suppress(OSError):
                self._directory.rmdir()


class RemoteDirectory:
    """Directory of a file system of pyarrow, or of fsspec for those that pyarrow lacks.

    Nothing keeps two copies from writing to it at once.
    """

    max_name = _MAX_NAME

    def __init__(self, url: str) -> None:
        try:
            self._system, path = file_system(url)
        except UsageError as error:
            raise WrongValue(f"OUT: {error}") from None
        self._path = path.rstrip("/")
        if not self._path:
            raise WrongValue("OUT: expected a bucket and a directory in it, found none")
        self.shown = shown_url(url)
        self._renames = self._system.type_name not in _OBJECT_STORES

    def path(self, name: str) -> str:
        return f"{self.shown.rstrip('/')}/{name}"

    def names(self) -> list[str]:
        from pyarrow import fs

        with naming(self.shown):
            found = self._system.get_file_info(fs.FileSelector(self._path, allow_not_found=True, recursive=True))
        return [info.path.removeprefix(f"{self._path}/") for info in found if info.type == fs.FileType.File]

    def read(self, name: str) -> bytes:
        with naming(self.path(name)), self._system.open_input_stream(self._full(name)) as file:
            return cast("bytes", file.read())

    def replace(self, name: str, text: str) -> None:
        file = self.create(name)
        with naming(self.path(name)):
            file.write(text.encode())
            self.complete(name, file)
        self.publish([name])

    def create(self, name: str) -> BinaryIO:
        with naming(self.path(name)):
            return cast("BinaryIO", self._system.open_output_stream(self._full(self._unpublished(name))))

    def complete(self, name: str, file: BinaryIO) -> int:
        size = file.tell()
        file.close()
        return size

    def discard(self, name: str, file: BinaryIO) -> None:
        # Closing is the only way to end an upload, and an upload that ends is an object.
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            self._system.delete_file(self._full(self._unpublished(name)))

    def publish(self, names: Sequence[str]) -> None:
        for name in names if self._renames else ():
            with naming(self.path(name)):
                self._system.move(self._full(hidden_name(name)), self._full(name))

    def remove(self, name: str) -> None:
        self._system.delete_file(self._full(name))

    def close(self) -> None:
        pass

    def _full(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _unpublished(self, name: str) -> str:
        return hidden_name(name) if self._renames else name


def hidden_name(name: str) -> str:
    """Return the name of a file until it is published, which readers of directories skip."""
    path = PurePosixPath(name)
    return str(path.with_name(f".{path.name}.new"))


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
