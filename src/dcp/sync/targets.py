"""Targets by their name: the path of a DuckDB or Parquet file, a Delta table, or a table of an Iceberg catalog."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dcp.errors import UsageError
from dcp.sync.delta_target import DeltaTarget
from dcp.sync.duckdb_target import DuckdbTarget
from dcp.sync.iceberg_target import IcebergTarget
from dcp.sync.parquet_target import ParquetTarget
from dcp.sync.target import SyncTarget, TargetError, without_credentials

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

# Formats by the suffix of their names. Iceberg tables are not named by a path.
SUFFIXES = {".duckdb": "duckdb", ".delta": "delta", ".parquet": "parquet"}
FORMATS = (*SUFFIXES.values(), "iceberg")
_ICEBERG = "iceberg"


def open_target(name: str, format: str | None = None, table: str | None = None) -> SyncTarget:
    """Return the target with a name.

    name: path, URL of an object store, or iceberg://CATALOG/NAMESPACE.TABLE. format: one of `FORMATS`; None for that
        of the suffix. table: name of the table in a DuckDB file.

    Raises UsageError if it is none of these.
    """
    try:
        parts = urlsplit(name)
    except ValueError:
        raise UsageError("target: expected a path or a URL, found a malformed URL") from None
    scheme = parts.scheme if "://" in name else ""
    found = _ICEBERG if scheme == _ICEBERG else format or SUFFIXES.get(PurePosixPath(parts.path or name).suffix)
    if found is None or found not in FORMATS or (found == _ICEBERG) != (scheme == _ICEBERG):
        raise UsageError(
            f"target: expected a name that ends in {', '.join(SUFFIXES)}, or iceberg://CATALOG/NAMESPACE.TABLE, "
            "or a path with --format"
        )
    if table is not None and found != "duckdb":
        raise UsageError("table: expected it for a DuckDB file only")
    if found == _ICEBERG:
        identifier = parts.path.strip("/")
        if not parts.netloc or "." not in identifier or "@" in parts.netloc:
            raise UsageError("target: expected iceberg://CATALOG/NAMESPACE.TABLE")
        return IcebergTarget(_catalog(parts.netloc), identifier)
    if found == "duckdb":
        if scheme:
            raise UsageError(f"target: expected the path of a DuckDB file, found a URL of {scheme}://")
        return DuckdbTarget(Path(name), table or "documents")
    return DeltaTarget(name) if found == "delta" else ParquetTarget(name)


def _catalog(name: str) -> Catalog:
    """Return a catalog of PyIceberg's configuration. Raises UsageError if it is not there, or wrong."""
    from pyiceberg.catalog import load_catalog

    try:
        return load_catalog(name)
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"target: catalog {name!r}: {without_credentials(str(error))}; configure it in ~/.pyiceberg.yaml, or by "
            f"PYICEBERG_CATALOG__{name.upper()}__URI"
        ) from None
    except Exception as error:
        # Those of the catalog's own library, such as requests.
        raise TargetError(f"iceberg://{name}: {type(error).__name__}: {error}") from error
