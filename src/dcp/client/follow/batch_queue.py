"""The queue of batches between links and consumer, and the checkpoint of what the consumer has taken."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dcp._codec import LazyPosition
from dcp.client.follow.node_link import NodeLink
from dcp.client.follow.persistence import Persistence, VbucketHistory, needed_seqnos
from dcp.columns.batch import Batch
from dcp.errors import ClosedError, TimeoutError
from dcp.position import StreamPosition
from dcp.session.session import Delivery

# A wait without a time limit cannot be interrupted by Ctrl-C on every system.
_LONGEST_WAIT = 1.0


def no_changes(seconds: float) -> TimeoutError:
    """Return the error for a wait that was in vain."""
    return TimeoutError(f"no changes within {seconds:g} s; there may be none: call again to keep waiting")


@dataclass(eq=False, slots=True)
class QueuedBatch:
    """A batch, with the position of each of its vbuckets after it.

    link, counted: where to acknowledge its bytes once the consumer has processed it.
    size: bytes of memory that the link accounts for until then.
    needs: seqnos that every copy has to persist before it is delivered (`persisted_only`).
    rolled_back: for a rollback row, the seqno that its vbucket went back to. `positions` does not tell: it may have
        moved on since, and positions of other vbuckets may have joined it.
    """

    batch: Batch
    positions: dict[int, LazyPosition]
    link: NodeLink | None = None
    counted: int = 0
    size: int = 0
    needs: dict[VbucketHistory, int] = field(default_factory=dict)
    rolled_back: dict[int, int] = field(default_factory=dict)


class Changes(threading.Condition):
    """Condition that calls a listener as well, on the thread that notifies."""

    listener: Callable[[], None] | None = None

    def notify_all(self) -> None:
        """Wake all that wait, and call the listener."""
        super().notify_all()
        if self.listener is not None:
            self.listener()


class BatchQueue:
    """Batches in the order of their arrival. Guarded by the stream's lock, of which `changed` is a condition.

    positions: where the consumer stands with each vbucket; they move when it takes a batch, never before.
    persistence: decides when a batch may be delivered; None to deliver at once.
    finished: returns True if no more batches can arrive.
    """

    def __init__(
        self,
        lock: threading.RLock,
        positions: dict[int, LazyPosition],
        persistence: Persistence | None,
        finished: Callable[[], bool],
    ) -> None:
        self.positions = positions
        self.error: Exception | None = None
        self.closed = False
        self.changed = Changes(lock)
        self._persistence, self._finished = persistence, finished
        self._items: deque[QueuedBatch] = deque()
        # True if batches were queued when the stream was closed: its end was not delivered.
        self._dropped = False

    # For the consumer.

    def next(self, timeout: float | None = None) -> QueuedBatch | None:
        """Return the next batch with rows; None at the end of the stream.

        Raises TimeoutError after `timeout` seconds without a batch, ClosedError if the stream was closed before its
        end, and the stream's error after the batches that arrived before it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while not self._has_deliverable():
                if self.error is not None:
                    raise self.error
                if not self._items and self._finished() and not self._dropped:
                    return None
                if self.closed:
                    raise ClosedError("the stream was closed before its end; resume from its checkpoint")
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise no_changes(timeout or 0.0)
                self.changed.wait(_LONGEST_WAIT if left is None else min(_LONGEST_WAIT, left))
            return self._take()

    def _has_deliverable(self) -> bool:
        """Return True if the first batch may be delivered. Batches without rows are taken on the way."""
        while self._items and (self._persistence is None or self._persistence.covers(self._items[0].needs)):
            if len(self._items[0].batch):
                return True
            self.processed(self._take())
        return False

    def _take(self) -> QueuedBatch:
        item = self._items.popleft()
        self.positions.update(item.positions)
        return item

    def processed(self, item: QueuedBatch) -> None:
        """Acknowledge a batch that the consumer has processed, so that its node may send more."""
        if item.link is not None and item.size:
            with self.changed:
                item.link.processed(item.counted, item.size)

    # For the links.

    def deliver(self, link: NodeLink, delivery: Delivery) -> None:
        """Append a link's batch. One without rows only moves positions, unless it has to wait to be persisted."""
        if self.error is not None:
            # Links run until the consumer has met the error. A vbucket that was to roll back may be streamed meanwhile.
            return
        positions = {vbucket: reached for (vbucket, _), reached in delivery.positions.items()}
        needs = {} if self._persistence is None else needed_seqnos(positions.values())
        link.unprocessed += delivery.flow_bytes
        link.held += delivery.size
        # The window counts these bytes until the consumer has processed the batch.
        item = QueuedBatch(delivery.batch, positions, link, delivery.flow_bytes, delivery.size, needs)
        if len(item.batch) or needs:
            self.append(item)
            return
        # The positions must not overtake rows that are still queued: they move with the last of them.
        if self._items:
            last = self._items[-1]
            last.positions = last.positions | positions
        else:
            self.positions.update(positions)
        self.processed(item)

    def append(self, item: QueuedBatch) -> None:
        """Append a batch, unless the stream has an error: what arrives after that is not delivered."""
        if self.error is None:
            self._items.append(item)
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after the batches that are queued. The first error counts."""
        self.error = self.error or error
        self.changed.notify_all()

    def close(self) -> None:
        """End the stream now: queued batches are not delivered, nor kept."""
        self.closed = True
        self._dropped = self._dropped or bool(self._items)
        self._items.clear()
        self.changed.notify_all()

    # For `persisted_only`.

    def waiting(self) -> list[QueuedBatch]:
        """Return the queued batches."""
        with self.changed:
            return list(self._items)

    def on_persisted(self) -> None:
        """Wake the consumer: copies have persisted more."""
        with self.changed:
            self.changed.notify_all()

    def on_bug(self, bug: Exception) -> None:
        """End the stream with an error of the persistence thread."""
        with self.changed:
            self.fail(bug)

    def drop_from(self, vbucket: int) -> set[int]:
        """Drop the first batch in which a vbucket waits to be persisted, and all after it.

        Their bytes are acknowledged: a node that other vbuckets are streamed from would wait for them. Returns the
        vbuckets that have rows in the batches.
        """
        first = next(
            (index for index, item in enumerate(self._items) if item.needs and vbucket in item.positions), None
        )
        if first is None:
            return set()
        dropped = [self._items.pop() for _ in range(len(self._items) - first)]
        for item in dropped:
            self.processed(item)
        return {vbucket for item in dropped for vbucket in item.positions}

    def position_after_queued(self, vbucket: int) -> StreamPosition:
        """Return the position of a vbucket after all queued batches."""
        positions = next(
            (item.positions for item in reversed(self._items) if vbucket in item.positions), self.positions
        )
        return positions[vbucket].position
