"""Tables of every kind: their names for `dcp sync`, and their rows as other libraries read them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from dcp.embedded import Cluster
from dcp.sync import open_target
from dcp.sync.iceberg_target import IcebergTarget
from dcp.sync.target import SyncTarget

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

KINDS = ("duckdb", "delta", "parquet", "iceberg")
# Catalog of PyIceberg that the environment configures.
CATALOG = "local"


@dataclass(frozen=True)
class TableOf:
    """One table of a kind in a directory."""

    kind: str
    directory: Path

    @property
    def name(self) -> str:
        """Name for `dcp sync`."""
        return f"iceberg://{CATALOG}/shop.docs" if self.kind == "iceberg" else str(self.directory / f"t.{self.kind}")

    @property
    def environment(self) -> dict[str, str]:
        """Configuration of the catalog for another process."""
        return {
            f"PYICEBERG_CATALOG__{CATALOG.upper()}__URI": f"sqlite:///{self.directory}/catalog.db",
            f"PYICEBERG_CATALOG__{CATALOG.upper()}__WAREHOUSE": f"file://{self.directory}/warehouse",
        }

    @property
    def catalog(self) -> SqlCatalog:
        """Catalog of the table. PyIceberg reads the environment once in a process."""
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog(
            CATALOG, uri=f"sqlite:///{self.directory}/catalog.db", warehouse=f"file://{self.directory}/warehouse"
        )

    def open(self) -> SyncTarget:
        """Return the table as `dcp sync` opens it."""
        return IcebergTarget(self.catalog, "shop.docs") if self.kind == "iceberg" else open_target(self.name)

    def drop(self) -> None:
        """Drop the table, as its users do."""
        if self.kind == "duckdb":
            import duckdb

            with duckdb.connect(self.name) as database:
                database.execute("drop table documents")
        elif self.kind == "delta":
            shutil.rmtree(self.name)
        elif self.kind == "parquet":
            Path(self.name).unlink()
        else:
            self.catalog.drop_table("shop.docs")

    def read(self) -> pa.Table:
        """Return all rows."""
        if self.kind == "duckdb":
            import duckdb

            with duckdb.connect(self.name, read_only=True) as database:
                return database.sql("from documents").to_arrow_table()
        if self.kind == "delta":
            import deltalake

            return pa.table(deltalake.DeltaTable(self.name).to_pyarrow_table())
        if self.kind == "parquet":
            return parquet.read_table(self.name)
        return self.catalog.load_table("shop.docs").scan().to_arrow()


def rows_of(table: pa.Table) -> dict[tuple[str, bytes], tuple[Any, ...]]:
    """Return the documents of a table by collection and key, as `truth_of` has them. Fail if a key is there twice."""
    found = {
        (row["collection"], row["key"].encode()): (
            row["value"].encode() if row["bad_value"] is None else row["bad_value"],
            row["_cas"],
            row["_seqno"],
            row["_vbucket"],
        )
        for row in table.to_pylist()
    }
    assert len(found) == table.num_rows
    return found


def truth_of(cluster: Cluster, collections: Iterable[str] | None = None) -> dict[tuple[str, bytes], tuple[Any, ...]]:
    """Return what a table of some collections has to contain; of all for None."""
    existing = cluster.collection_ids()
    return {
        (path, key): (found.value, found.cas, found.seqno, found.vbucket)
        for path in (existing if collections is None else collections)
        if path in existing
        for key, found in cluster.truth(path).items()
    }
