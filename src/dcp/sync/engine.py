"""The engine: streams changes, and applies them to a table in transactions that have their checkpoint."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dcp.checkpoint import Checkpoint
from dcp.client.client import Client
from dcp.client.filters import bucket_checkpoint, collection_path
from dcp.client.row_format import ROLLBACK
from dcp.client.stream import ChangeStream
from dcp.errors import DcpError, TimeoutError, TransportError, UsageError
from dcp.sync.changes import (
    DEFAULT_COLLECTION,
    PendingChanges,
    Transaction,
    check_names,
    empty_changes,
    split,
    stream_options,
)
from dcp.sync.state import SyncState, TableContent
from dcp.sync.target import SyncTarget

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("dcp.sync")

# Seconds of a wait for changes: the end of a run and the time of the next transaction are checked in between.
_WAIT = 0.5
# Bytes of changes at which a transaction begins, whatever its time is.
_MOST_PENDING = 128 << 20
# Seconds after which positions are stored that moved without changes: a purge must not overtake them.
_QUIET = 600.0
# Seconds before the first attempt after an error, and the most to which they grow.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
# Questions to a node that does not know the newest manifest yet, and seconds between them.
_MANIFEST_ATTEMPTS, _MANIFEST_PAUSE = 20, 0.5
# Collections of servers without collections.
_NO_COLLECTIONS = {DEFAULT_COLLECTION: "_default._default"}


def next_pause(before: float) -> float:
    """Return the seconds to wait after a failed attempt. before: those after the one before it; 0 for the first."""
    return min(max(2 * before, _FIRST_PAUSE), _LONGEST_PAUSE)


@dataclass
class SyncProgress:
    """Counts of a run, and where it stands.

    events: changes that arrived, by event. rows, deleted: rows that transactions wrote, and keys that they deleted.
    restarts: vbuckets whose rows were removed and read again. pending: changes that wait for the next transaction.
    last_error: error after which the run went on; empty if there was none since the last transaction.
    """

    events: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    rows: int = 0
    deleted: int = 0
    restarts: int = 0
    pending: int = 0
    last_error: str = ""


class Sync:
    """Keeps a table equal to a bucket, or to some of its collections.

    content: selection and schema of a new table; of one that exists, what is named has to be the same.
    persisted_only: apply only changes that no failover takes back.
    interval: seconds between transactions. most_pending: bytes of changes at which one begins earlier.
    stopped: called often; a run ends with a transaction once it returns True.
    on_progress: called whenever `progress` may have changed.

    Raises UsageError if the table has another content, or was written by something else, and CheckpointError if it is
    of another bucket.
    """

    def __init__(
        self,
        client: Client,
        target: SyncTarget,
        content: TableContent | None = None,
        *,
        persisted_only: bool = True,
        interval: float = 60.0,
        most_pending: int = _MOST_PENDING,
        stopped: Callable[[], bool] = lambda: False,
        on_progress: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.progress = SyncProgress()
        self._client, self._target = client, target
        self._persisted_only, self._interval, self._most_pending = persisted_only, interval, most_pending
        self._stopped, self._on_progress = stopped, on_progress
        self._clock, self._wait = clock, wait
        self._state = target.load()
        if self._state is not None:
            # Before names are asked for, which a recreated bucket may lack.
            remedy = "name a new table, or drop this one, which has the checkpoint, to fill it again"
            self._state.checkpoint.check_bucket(bucket_checkpoint(client.map), holder=target.shown, remedy=remedy)
        self._content = _content(content or TableContent(), self._state, target)
        self._forget()

    def run(self) -> SyncProgress:
        """Apply the changes up to now."""
        while self._stream("now"):
            pass
        return self.progress

    def follow(self) -> SyncProgress:
        """Apply changes until the run is stopped, or all collections of the table were dropped.

        Errors that may pass are retried.
        """
        pause = 0.0
        while not self._stopped():
            transactions = self.progress.transactions
            try:
                if not self._stream(None):
                    break
            except DcpError as error:
                if not error.retriable:
                    raise
                self._report(error)
                before = 0.0 if self.progress.transactions > transactions else pause
                pause = next_pause(before)
                self._recover(pause)
        return self.progress

    def _recover(self, pause: float) -> None:
        """Wait, and begin again with what the table has: a transaction that failed may be in it nevertheless."""
        until = self._clock() + pause
        while True:
            self._on_progress()
            if self._stopped():
                return
            if self._clock() < until:
                self._wait(min(_WAIT, until - self._clock()))
                continue
            try:
                self._state = self._target.load()
            except DcpError as error:
                if not error.retriable:
                    raise
                self._report(error)
                until = self._clock() + pause
            else:
                self._forget()
                return

    def _report(self, error: DcpError) -> None:
        self.progress.last_error = str(error)
        log.warning("%s; trying again", error)

    def _forget(self) -> None:
        """Forget all that is not in the table."""
        self._pending = PendingChanges()
        self._reached = Checkpoint() if self._state is None else self._state.checkpoint
        # Vbuckets whose rows the next transaction removes, and those of them that are streamed from 0 after it.
        self._emptied: set[int] = set()
        self._restarting: set[int] = set()
        self._committed_at = self._clock()

    # One stream.

    def _stream(self, end: str | None) -> bool:
        """Apply the changes of one stream. Return True if another one has to follow."""
        content = self._content
        paths = set(self._collections().values())
        names = [name for name in content.collections if name in paths]
        if self._state is not None and self._is_gone(names, paths):
            log.warning("%s: its collections were dropped: the table is empty now", self._target.shown)
            self._commit(final=True)
            return False
        if self._state is None:
            # The client says which names do not exist.
            names = list(content.collections)
        with self._client.stream(
            self._start(names),
            end,
            scope=content.scope,
            collections=names or None,
            persisted_only=self._persisted_only,
            **stream_options(content.schema),
        ) as stream:
            self._reached = stream.checkpoint
            self._follow(stream)
            self._reached = stream.checkpoint
            again = bool(self._restarting)
            self._commit(final=True)
        return again and not self._stopped()

    def _is_gone(self, names: list[str], paths: set[str]) -> bool:
        """Return True if every collection of the table was dropped, or its scope.

        names: those of its collections that exist. paths: all collections.
        """
        scope = self._content.scope
        if scope is None or any(path.startswith(f"{scope}.") for path in paths):
            return bool(self._content.collections) and not names
        try:
            # A scope may exist without collections.
            self._client.positions(scope=scope)
        except UsageError:
            return True
        return False

    def _start(self, names: list[str]) -> Checkpoint | None:
        """Return where the stream begins."""
        if self._state is None:
            return None
        checkpoint = self._state.checkpoint
        selected = self._client.positions(scope=self._content.scope, collections=names or None)
        if selected.scope == checkpoint.scope and {*selected.collections} <= {*checkpoint.collections}:
            return checkpoint
        # A scope or collection was dropped, and another one with its name was created.
        self._emptied = {*range(selected.num_vbuckets or 0)}
        return None

    def _follow(self, stream: ChangeStream) -> None:
        """Apply changes until the stream ends, the run is stopped, or vbuckets have to be streamed from 0."""
        import pyarrow

        while not self._stopped():
            if self._is_due():
                if self._restarting:
                    return
                # It moves without rows, too: past changes of other collections.
                self._reached = stream.checkpoint
                self._commit()
            try:
                batch = stream.next(_WAIT)
            except DcpError as error:
                if isinstance(error, TimeoutError) and not stream.closed:
                    self._on_progress()
                    continue
                # What arrived before is complete.
                self._reached = stream.checkpoint
                self._commit(final=True)
                raise
            if batch is None:
                return
            # Not `pyarrow.table`, which imports pandas: half a second before the first row.
            self._add(pyarrow.Table.from_batches([batch.to_arrow()]))
            self.progress.pending = len(self._pending)
            self._on_progress()

    def _is_due(self) -> bool:
        return self._pending.num_bytes >= self._most_pending or self._clock() >= self._committed_at + self._interval

    def _add(self, table: pa.Table) -> None:
        """Collect the changes of a batch."""
        import pyarrow
        import pyarrow.compute as compute

        if table.num_rows == 1 and table["event"][0].as_py() == ROLLBACK:
            self._roll_back(table["vbucket"][0].as_py(), table["seqno"][0].as_py())
            return
        if self._restarting:
            ignored = pyarrow.array(sorted(self._restarting), table["vbucket"].type)
            table = table.filter(compute.invert(compute.is_in(table["vbucket"], ignored)))
        for found in table["event"].value_counts():
            self.progress.events[found["values"].as_py()] += found["counts"].as_py()
        self._pending.add(table)

    def _roll_back(self, vbucket: int, seqno: int) -> None:
        """Undo the changes of a vbucket above a seqno.

        A table has one version of each row, and cannot go back. If lost changes are in it already, the rows of the
        vbucket are removed, and read again from the beginning.
        """
        self._pending.undo(vbucket, seqno)
        if self._table_seqno(vbucket) <= seqno:
            return
        self.progress.restarts += 1
        self._emptied.add(vbucket)
        if seqno:
            # The stream goes on above the seqno: what is below it needs another stream.
            self._pending.undo(vbucket, 0)
            self._restarting.add(vbucket)

    def _table_seqno(self, vbucket: int) -> int:
        """Return the seqno up to which the table will have the changes of a vbucket, without the pending ones."""
        if vbucket in self._emptied or self._state is None:
            return 0
        position = self._state.checkpoint.by_vbucket().get(vbucket)
        return 0 if position is None else position.seqno

    # Transactions.

    def _commit(self, *, final: bool = False) -> None:
        """Apply the pending changes. `final`: store the position even if nothing else has changed."""
        names, before = self._collections(), self._state
        known = set() if before is None else {*before.collection_ids}
        dropped = frozenset(known - names.keys())
        checkpoint = self._checkpoint()
        changes = self._pending.reduced()
        if changes is None and before is not None and not dropped and not self._emptied:
            late = final or self._clock() >= self._committed_at + _QUIET
            if not late or checkpoint == before.checkpoint:
                return
        if changes is None:
            changes = empty_changes(self._content.schema)
        only_new = not dropped and not self._emptied and self._is_new(changes)
        rows, deleted = split(changes, names)
        ids = (known | {*rows["_collection_id"].unique().to_pylist()}) - dropped
        number = 1 if before is None else before.number + 1
        state = SyncState(number, checkpoint, self._content, tuple(sorted(ids)))
        self._target.commit(
            Transaction(rows, deleted, frozenset(self._emptied), dropped, only_new, state=state, before=before)
        )
        log.info(
            "%s: transaction %d: %d rows written, %d deleted, %d vbuckets read again, %d collections dropped",
            self._target.shown,
            number,
            rows.num_rows,
            deleted.num_rows,
            len(self._emptied),
            len(dropped),
        )
        self._state = state
        self._pending = PendingChanges()
        self._emptied.clear()
        self._restarting.clear()
        self._committed_at = self._clock()
        progress = self.progress
        progress.transactions += 1
        progress.rows += rows.num_rows
        progress.deleted += deleted.num_rows
        progress.pending, progress.last_error = 0, ""
        self._on_progress()

    def _is_new(self, changes: pa.Table) -> bool:
        """Return True if the table has no row of any vbucket that has changes."""
        return not any(self._table_seqno(vbucket) for vbucket in changes["vbucket"].unique().to_pylist())

    def _checkpoint(self) -> Checkpoint:
        """Return the position after the pending changes. Vbuckets without one are at their beginning."""
        kept = (position for position in self._reached if position.vbucket not in self._restarting)
        return replace(self._reached, positions=tuple(kept))

    def _collections(self) -> Mapping[int, str]:
        """Return the paths of the collections that exist by id; at least those that the pending changes have."""
        newest = max((position.manifest_uid for position in self._reached), default=0)
        for _ in range(_MANIFEST_ATTEMPTS - 1):
            try:
                return self._client.manifest(newest).paths or _NO_COLLECTIONS
            except TransportError:
                self._wait(_MANIFEST_PAUSE)
        return self._client.manifest(newest).paths or _NO_COLLECTIONS


def _content(asked: TableContent, state: SyncState | None, target: SyncTarget) -> TableContent:
    """Return the content of a table. Raises UsageError if it has another one than was asked for."""
    paths = tuple(sorted(collection_path(name, asked.scope) for name in asked.collections))
    asked = replace(asked, collections=paths, scope=None if paths else asked.scope)
    if state is None:
        if asked.schema is not None:
            check_names(asked.schema)
        return asked
    found = state.content
    if (asked.scope or paths) and (asked.scope, paths) != (found.scope, found.collections):
        raise UsageError(
            f"{target.shown}: expected {_selection(found)}, which it has, found {_selection(asked)}; name a new table, "
            "or leave the selection out"
        )
    if asked.schema is not None and asked.schema != found.schema:
        kept = "documents as JSON text" if found.schema is None else f"the schema {found.schema!r}"
        raise UsageError(
            f"{target.shown}: expected {kept}, which it has, found the schema {asked.schema!r}; name a new table, or "
            "leave the schema out"
        )
    return found


def _selection(content: TableContent) -> str:
    if content.collections:
        return f"the collections {', '.join(content.collections)}"
    return "the whole bucket" if content.scope is None else f"the scope {content.scope}"
