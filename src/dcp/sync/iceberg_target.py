"""An Iceberg table. The state is in the properties of each snapshot, so a rollback of the table includes it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dcp.errors import DcpError, UsageError
from dcp.sync.changes import REMOVED_BY, Transaction
from dcp.sync.state import SyncState
from dcp.sync.target import TargetError, check_unchanged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table import Transaction as IcebergTransaction

# Name of the state in the properties of a snapshot.
_STATE = "dcp.sync"
# Bytes of a file: those that are rewritten for a change are read and written as a whole.
_FILE_SIZE = 128 << 20
# Files below this size are joined once there are more of them.
_SMALL, _MOST_SMALL = 16 << 20, 16
# Snapshots that are kept: each has a state, and all are in the file of metadata that each commit writes.
_MOST_SNAPSHOTS = 20


class IcebergTarget:
    """Table of a catalog. `identifier`: namespace and table, with dots between them."""

    def __init__(self, catalog: Catalog, identifier: str) -> None:
        self.shown = f"iceberg://{catalog.name}/{identifier}"
        self._catalog, self._identifier = catalog, identifier
        self._table: Table | None = None

    def load(self) -> SyncState | None:
        from pyiceberg.exceptions import NoSuchTableError

        with self._errors():
            try:
                self._table = self._catalog.load_table(self._identifier)
            except NoSuchTableError:
                return None
            return self._state(self._table)

    def commit(self, transaction: Transaction) -> None:
        with self._errors():
            if self._table is None:
                self._table = self._create(transaction.rows.schema)
            self._table.refresh()
            check_unchanged(self.shown, self._state(self._table), transaction)
            properties = {_STATE: _packed(transaction.state.to_json())}
            with self._table.transaction() as change:
                rewritten = [] if transaction.only_new else self._to_rewrite(self._table, transaction)
                self._overwrite(change, rewritten, transaction, properties)
            self._expire(self._table)

    def count(self) -> int:
        with self._errors():
            return 0 if self._table is None else self._table.scan().count()

    def close(self) -> None:
        self._table = None

    def _create(self, schema: pa.Schema) -> Table:
        """Create the table without rows. Until it has some, another run takes it for its own."""
        for field in schema:
            _check_type(field.name, field.type)
        namespace = self._identifier.rpartition(".")[0]
        self._catalog.create_namespace_if_not_exists(namespace)
        # A commit that something else precedes is not repeated, but prepared again.
        properties = {"write.target-file-size-bytes": str(_FILE_SIZE), "commit.retry.num-retries": "0", _STATE: "1"}
        return self._catalog.create_table(self._identifier, schema, properties=properties)

    def _to_rewrite(self, table: Table, transaction: Transaction) -> list[FileScanTask]:
        """Return the files with rows that the transaction removes, and small ones if there are many."""
        tasks = list(table.scan().plan_files())
        small = [task for task in tasks if task.file.file_size_in_bytes < _SMALL]
        joined = small if len(small) > _MOST_SMALL else []
        return [task for task in tasks if task in joined or self._has_removed(table, task, transaction)]

    def _has_removed(self, table: Table, task: FileScanTask, transaction: Transaction) -> bool:
        import pyarrow.compute as compute

        batches = _read(table, [task], REMOVED_BY)
        return any(compute.any(transaction.removes_from(batch)).as_py() for batch in batches)

    def _overwrite(
        self,
        change: IcebergTransaction,
        tasks: list[FileScanTask],
        transaction: Transaction,
        properties: dict[str, str],
    ) -> None:
        """Replace files by new ones without the removed rows and with the new ones, as one snapshot."""
        import pyarrow
        from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow

        assert self._table is not None
        metadata = change.table_metadata
        schema = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
        rows = transaction.rows.cast(schema)

        def batches() -> Iterator[pa.RecordBatch]:
            import pyarrow.compute as compute

            for batch in _read(self._table, tasks):
                kept = batch.filter(compute.invert(transaction.removes_from(batch)))
                yield from pyarrow.Table.from_batches([kept]).cast(schema).to_batches()
            yield from rows.to_batches()

        reader = pyarrow.RecordBatchReader.from_batches(schema, batches())
        with _overwriting(change, self._table, properties) as snapshot:
            for task in tasks:
                snapshot.delete_data_file(task.file)
            for file in _dataframe_to_data_files(table_metadata=metadata, df=reader, io=self._table.io):
                if file.record_count:
                    snapshot.append_data_file(file)

    def _expire(self, table: Table) -> None:
        """Remove all but the newest snapshots from the metadata."""
        snapshots = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
        if len(snapshots) >= 2 * _MOST_SNAPSHOTS:
            old = [snapshot.snapshot_id for snapshot in snapshots[:-_MOST_SNAPSHOTS]]
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def _state(self, table: Table) -> SyncState | None:
        """Return the state of the present snapshot, or of its nearest ancestor that has one, as after a compaction."""
        snapshot = table.current_snapshot()
        while snapshot is not None:
            if snapshot.summary is not None and (text := snapshot.summary.additional_properties.get(_STATE)):
                return SyncState.from_json(_unpacked(text))
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        if table.current_snapshot() is not None or _STATE not in table.properties:
            raise UsageError(f"{self.shown}: expected a new table, or one of dcp sync, found another one")
        return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except DcpError:
            raise
        except Exception as error:
            # Those of SQLAlchemy, requests, an object store: a catalog has no error of its own for them.
            raise TargetError(f"{self.shown}: {type(error).__name__}: {error}") from error


def _check_type(name: str, type: pa.DataType) -> None:
    """Raise UsageError for a type whose nulls PyIceberg writes as empty values."""
    import pyarrow

    if pyarrow.types.is_list(type) or pyarrow.types.is_map(type):
        below = type.value_type if pyarrow.types.is_list(type) else type.item_type
        if pyarrow.types.is_struct(below):
            raise UsageError(
                f"schema: {name}: PyIceberg writes null as an empty value where an array or map has structs; "
                "take json as its type, or another kind of table"
            )
        _check_type(name, below)
    elif pyarrow.types.is_struct(type):
        for field in type:
            _check_type(f"{name}.{field.name}", field.type)


def _overwriting(change: IcebergTransaction, table: Table, properties: dict[str, str]) -> Any:
    """Return the producer of a snapshot that replaces files."""
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class Overwriting(_OverwriteFiles):
        def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
            # Those in which earlier snapshots say what they deleted would become more with each transaction.
            return [
                manifest
                for manifest in manifests
                if manifest.has_added_files()
                or manifest.has_existing_files()
                or manifest.added_snapshot_id == self.snapshot_id
            ]

    before = change.table_metadata.current_snapshot()
    operation = Operation.APPEND if before is None else Operation.OVERWRITE
    return Overwriting(operation=operation, transaction=change, io=table.io, snapshot_properties=properties)


def _read(table: Table | None, tasks: Iterable[FileScanTask], names: Iterable[str] | None = None) -> Iterator[Any]:
    """Yield the batches of some files, with some of the columns."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    assert table is not None
    schema = table.schema() if names is None else table.schema().select(*names)
    yield from ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_record_batches(tasks)


def _packed(text: str) -> str:
    """Return a text in a tenth of its size: the states of all snapshots are in one file."""
    return base64.b64encode(zlib.compress(text.encode())).decode()


def _unpacked(text: str) -> str:
    return zlib.decompress(base64.b64decode(text)).decode()
