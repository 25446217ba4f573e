"""File systems of pyarrow, and of fsspec for those that pyarrow lacks, by URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from dcp.errors import UsageError

if TYPE_CHECKING:
    from pyarrow import fs


def file_system(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path in it. Raises UsageError if there is none."""
    import pyarrow
    from pyarrow import fs

    scheme = urlsplit(url).scheme
    try:
        return cast("tuple[fs.FileSystem, str]", fs.FileSystem.from_uri(url))
    except pyarrow.ArrowInvalid as error:
        if not str(error).startswith("Unrecognized filesystem"):
            # The error may show the URL, and the URL a secret.
            raise UsageError(f"expected a URL that pyarrow can read, found another one of {scheme}://") from None
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UsageError(f"{scheme}:// needs another library: {error}") from None
    except ValueError as error:
        raise UsageError(
            f"expected a path, or a URL of s3, gs, abfs, hdfs, file or a file system of fsspec, found {scheme}://"
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(cast("Any", system))), path


def shown_url(url: str) -> str:
    """Return a URL without password and options, which may be secrets."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2] if parts.password else parts.netloc
    return f"{parts.scheme}://{host}{parts.path}"
