"""A table in a DuckDB file. The state is a row of the table `dcp_sync`, changed in the transaction of the rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dcp.errors import UsageError
from dcp.sync.changes import IDENTITY, Transaction
from dcp.sync.state import SyncState
from dcp.sync.target import TargetError, check_unchanged

if TYPE_CHECKING:
    import duckdb

# Seconds for which another process may keep the file open.
_LONGEST_WAIT = 60.0
_STATES = "dcp_sync"


class DuckdbTarget:
    """Table of a file, which is open during transactions only, so that other processes can read it in between."""

    def __init__(self, path: Path, table: str) -> None:
        self.shown = f"{path}, table {table}"
        self._path, self._name = path, table
        self._quoted = '"' + table.replace('"', '""') + '"'
        if table.casefold() == _STATES:
            raise UsageError(f"table: expected another name than {_STATES}, which has the checkpoints")

    def load(self) -> SyncState | None:
        if not self._path.exists():
            return None
        with self._open() as database:
            return self._load(database)

    def commit(self, transaction: Transaction) -> None:
        with self._open() as database:
            database.begin()
            database.execute(f"create table if not exists {_STATES} (table_name varchar, state varchar)")
            check_unchanged(self.shown, self._load(database), transaction)
            self._apply(database, transaction)
            database.execute(f"delete from {_STATES} where table_name = ?", [self._name])
            database.execute(f"insert into {_STATES} values (?, ?)", [self._name, transaction.state.to_json()])
            database.commit()

    def count(self) -> int:
        with self._open() as database:
            return _number(database, f"select count(*) from {self._quoted}")

    def close(self) -> None:
        pass

    def _apply(self, database: duckdb.DuckDBPyConnection, transaction: Transaction) -> None:
        database.register("dcp_rows", transaction.rows)
        if transaction.before is None:
            database.execute(f"create table {self._quoted} as from dcp_rows limit 0")
        if not transaction.only_new:
            database.register("dcp_keys", transaction.changed_keys)
            same = " and ".join(f"here.{name} = dcp_keys.{name}" for name in IDENTITY)
            database.execute(f"delete from {self._quoted} as here using dcp_keys where {same}")
        for column, gone in (("_vbucket", transaction.emptied), ("_collection_id", transaction.dropped)):
            if gone:
                database.execute(f"delete from {self._quoted} where {column} in (select unnest(?))", [sorted(gone)])
        database.execute(f"insert into {self._quoted} by name from dcp_rows")

    def _load(self, database: duckdb.DuckDBPyConnection) -> SyncState | None:
        tables = [row[0] for row in database.execute("select table_name from duckdb_tables()").fetchall()]
        exists = self._name.casefold() in map(str.casefold, tables)
        found = []
        # The state of a table that was dropped is of no use.
        if exists and _STATES in tables:
            query = f"select state from {_STATES} where table_name = ?"
            found = database.execute(query, [self._name]).fetchall()
        if found:
            return SyncState.from_json(found[0][0])
        if exists:
            raise UsageError(f"{self.shown}: expected a new table, or one of dcp sync, found another one")
        return None

    @contextmanager
    def _open(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open the file, once no other process has it open."""
        import duckdb

        try:
            with self._connected() as database:
                yield database
        except duckdb.Error as error:
            raise TargetError(f"{self.shown}: {error}") from error

    def _connected(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        deadline = time.monotonic() + _LONGEST_WAIT
        while True:
            try:
                return duckdb.connect(str(self._path))
            except duckdb.IOException as error:
                if "lock" not in str(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(0.1)


def _number(database: duckdb.DuckDBPyConnection, query: str) -> int:
    row = database.execute(query).fetchone()
    return int(row[0]) if row else 0
