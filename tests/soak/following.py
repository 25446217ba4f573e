"""Consumer of a soak: it restarts, pauses, and keeps its documents in bounded memory."""

from __future__ import annotations

import threading
import time
from collections import Counter
from random import Random
from typing import Any

import dcp
from tests.client.consumer import Row

COLUMNS = ["event", "vbucket", "seqno", "collection_id", "key", "value", "snapshot_end"]
# Rows of a vbucket that a rollback can undo at least.
_UNDONE = 300


class TooDeepError(Exception):
    """Rollback to a seqno whose rows were merged with later ones."""


class BoundedLog:
    """Documents of a consumer, and the latest `undone` rows of each vbucket, so that a rollback can undo these.

    Rows before them are merged: the newest of each document stays.
    """

    def __init__(self, undone: int) -> None:
        self._undone = undone
        self._rows: dict[int, list[Row]] = {}
        # Seqno up to which the rows of a vbucket are merged.
        self._merged: dict[int, int] = {}
        self.rollbacks = 0

    def take(self, batch: dcp.Batch) -> None:
        """Apply the rows of a batch. Raises TooDeepError if they cannot be undone; the log is of no use then."""
        for row in batch.to_arrow().to_pylist():
            vbucket, seqno = row["vbucket"], row["seqno"]
            log = self._rows.setdefault(vbucket, [])
            if row["event"] == "rollback":
                self._undo(vbucket, seqno)
                continue
            assert not log or log[-1].seqno < seqno, f"vbucket {vbucket}: seqno {seqno} after {log[-1].seqno}"
            log.append(Row(seqno, row["event"], row["collection_id"] or 0, row["key"], row["value"]))
            # Not at each row: merging takes time by the length of the log.
            if len(log) % self._undone == 0:
                self._merge(vbucket)

    def _undo(self, vbucket: int, seqno: int) -> None:
        self.rollbacks += 1
        if 0 < seqno < self._merged.get(vbucket, 0):
            raise TooDeepError
        if seqno == 0:
            self._merged.pop(vbucket, None)
        self._rows[vbucket] = [row for row in self._rows[vbucket] if row.seqno <= seqno]

    def _merge(self, vbucket: int) -> None:
        log = self._rows[vbucket]
        old, new = log[: -self._undone], log[-self._undone :]
        if not old:
            return
        newest = {(row.collection_id, row.key): row for row in old}
        self._rows[vbucket] = sorted(row for row in newest.values() if row.event == "mutation") + new
        self._merged[vbucket] = old[-1].seqno

    def state(self) -> dict[bytes, tuple[bytes, int]]:
        """Return value and seqno of each document of the default collection."""
        newest = {row.key: row for log in self._rows.values() for row in log if not row.collection_id}
        return {key: (row.value, row.seqno) for key, row in newest.items() if row.event == "mutation"}


class SoakConsumer:
    """A thread that follows a bucket, and resumes from its checkpoint after each restart and failure.

    url: connection string of a node that is always up.
    options, stream: arguments of `connect` and `Client.stream`.
    """

    def __init__(self, name: str, url: str, options: dict[str, Any], stream: dict[str, Any], seed: int) -> None:
        self.name = name
        self.done: Counter[str] = Counter()
        self.bug: BaseException | None = None
        # Set once nothing may disturb the consumer any more.
        self.calm = threading.Event()
        self._url, self._options, self._stream = url, options, stream
        self._random = Random(f"{name} {seed}")
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._log = BoundedLog(_UNDONE)
        self._checkpoint: dcp.Checkpoint | None = None
        self._client: dcp.Client | None = None
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def state(self) -> dict[bytes, tuple[bytes, int]]:
        with self._lock:
            return self._log.state()

    def lag(self) -> int | None:
        """Return the lag in changes; None while there is no client, or it does not know."""
        client = self._client
        lag = client and client.stats().lag
        return lag.items if lag else None

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._follow()
        except BaseException as bug:
            self.bug = bug

    def _follow(self) -> None:
        """Follow the bucket until the next restart."""
        until = time.monotonic() + self._random.expovariate(1 / 30)
        try:
            with dcp.connect(self._url, **self._options) as client:
                stream = client.stream(self._checkpoint or "beginning", columns=COLUMNS, **self._stream)
                self._client = client
                while not self._stopped.is_set() and (self.calm.is_set() or time.monotonic() < until):
                    self._take(stream)
            self.done["restarts"] += 1
        except (dcp.TransportError, dcp.RemoteProtocolError) as error:
            self.done[f"restarts after {type(error).__name__}"] += 1
            self._stopped.wait(0.1)
        except TooDeepError:
            # As a consumer that cannot undo so much: it begins anew.
            self.done["restarts from the beginning"] += 1
            with self._lock:
                self._log, self._checkpoint = BoundedLog(_UNDONE), None
        finally:
            self._client = None

    def _take(self, stream: dcp.ChangeStream) -> None:
        try:
            batch = stream.next(0.5)
        except dcp.TimeoutError:
            return
        assert batch is not None
        with self._lock:
            before = self._log.rollbacks
            self._log.take(batch)
            self._checkpoint = stream.checkpoint
            self.done["rollbacks"] += self._log.rollbacks - before
        self.done["rows"] += len(batch)
        if not self.calm.is_set() and self._random.random() < 0.01:
            self.done["pauses"] += 1
            self._stopped.wait(self._random.choice((0.2, 1.0, 5.0)))
