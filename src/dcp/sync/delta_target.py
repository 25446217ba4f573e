"""A Delta table. The state is in the metadata of each commit, whose transaction identifier is the state's number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dcp.errors import UsageError
from dcp.sync.changes import DELETED, IDENTITY, Transaction
from dcp.sync.state import SyncState
from dcp.sync.target import TargetError, check_unchanged

if TYPE_CHECKING:
    import deltalake

# Name of the state in the metadata of a commit, and of the sequence of transactions.
_STATE, _APPLICATION = "dcp.sync", "dcp-sync"
# Transactions between two compactions of small files.
_COMPACT_EVERY = 20


class DeltaTarget:
    """Delta table at a path or URL of an object store, whose credentials come from its tools' environment."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.shown = url if not parts.netloc else f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._url = url if "://" in url else str(Path(url).absolute())
        self._table: deltalake.DeltaTable | None = None

    def load(self) -> SyncState | None:
        import deltalake

        with self._errors():
            if not deltalake.DeltaTable.is_deltatable(self._url):
                return None
            self._table = deltalake.DeltaTable(self._url)
            found = self._state(self._table)
        if found is None:
            raise UsageError(f"{self.shown}: expected a new table, or one of dcp sync, found another one")
        return found

    def commit(self, transaction: Transaction) -> None:
        import deltalake

        properties = deltalake.CommitProperties(
            custom_metadata={_STATE: transaction.state.to_json()},
            app_transactions=[deltalake.Transaction(_APPLICATION, transaction.state.number)],
        )
        with self._errors():
            if self._table is None:
                deltalake.write_deltalake(self._url, transaction.rows, mode="error", commit_properties=properties)
                self._table = deltalake.DeltaTable(self._url)
                return
            # Other tools may have added versions, such as compactions. Later ones are conflicts.
            self._table.update_incremental()
            check_unchanged(self.shown, self._state(self._table), transaction)
            if transaction.only_new:
                deltalake.write_deltalake(self._table, transaction.rows, mode="append", commit_properties=properties)
                self._table.update_incremental()
            else:
                self._merge(self._table, transaction, properties)
            if transaction.state.number % _COMPACT_EVERY == 0:
                same = deltalake.CommitProperties(custom_metadata=properties.custom_metadata)
                self._table.optimize.compact(commit_properties=same)
                # Files that no version of the last week has.
                self._table.vacuum(dry_run=False, commit_properties=same)

    def count(self) -> int:
        with self._errors():
            return 0 if self._table is None else int(self._table.count())

    def close(self) -> None:
        self._table = None

    def _merge(self, table: deltalake.DeltaTable, transaction: Transaction, properties: Any) -> None:
        import pyarrow

        rows, deleted = transaction.rows, transaction.deleted
        changed = pyarrow.concat_tables(
            [
                rows.append_column(DELETED, pyarrow.repeat(False, rows.num_rows)),
                deleted.append_column(DELETED, pyarrow.repeat(True, deleted.num_rows)),
            ],
            promote_options="default",
        )
        merger = (
            table.merge(
                changed,
                " and ".join(f"here.{name} = there.{name}" for name in IDENTITY),
                source_alias="there",
                target_alias="here",
                commit_properties=properties,
            )
            .when_matched_delete(f"there.{DELETED}")
            .when_matched_update_all(except_cols=[DELETED])
            .when_not_matched_insert_all(f"not there.{DELETED}", except_cols=[DELETED])
        )
        gone = [
            f"here.{column} in ({', '.join(map(str, sorted(numbers)))})"
            for column, numbers in (("_vbucket", transaction.emptied), ("_collection_id", transaction.dropped))
            if numbers
        ]
        if gone:
            merger = merger.when_not_matched_by_source_delete(" or ".join(gone))
        merger.execute()

    def _state(self, table: deltalake.DeltaTable) -> SyncState | None:
        """Return the state of the present version: of the last commit that has one, before what RESTORE took back."""
        newest = table.version()
        for limit in (8, None):
            for entry in table.history(limit):
                if entry["version"] > newest:
                    continue
                if _STATE in entry:
                    return SyncState.from_json(entry[_STATE])
                if entry["operation"] == "RESTORE" and "version" in entry["operationParameters"]:
                    newest = int(entry["operationParameters"]["version"])
        return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as error:
            raise TargetError(f"{self.shown}: {error}") from error
