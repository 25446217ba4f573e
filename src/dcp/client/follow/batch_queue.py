"""What the consumer gets, one after the other, and what of it has to wait for disks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dcp.client.follow.node_link import Link
from dcp.client.follow.persistence import History, Persistence, needs_of
from dcp.columns.batch import Batch
from dcp.errors import TimeoutError
from dcp.position import StreamPosition
from dcp.session.session import Delivery
from dcp.session.stream import LazyPosition


@dataclass(eq=False, slots=True)
class Item:
    """What the consumer gets next, and where streams stand then."""

    batch: Batch
    marks: dict[int, LazyPosition]
    link: Link | None = None
    counted: int = 0
    # What has to be on disk before.
    needs: dict[History, int] = field(default_factory=dict)


class Queue:
    """Of one stream, under its lock. `marks`: where the consumer stands with each vbucket.

    persistence: who knows what is on disk, if rows have to wait for that. done: whether nothing more will come.
    """

    def __init__(
        self,
        lock: threading.RLock,
        marks: dict[int, LazyPosition],
        persistence: Persistence | None,
        done: Callable[[], bool],
    ) -> None:
        self.marks = marks
        self.error: Exception | None = None
        self.closed = False
        self.changed = threading.Condition(lock)
        self._persistence, self._done = persistence, done
        self._items: deque[Item] = deque()

    # For the consumer.

    def next(self, timeout: float | None = None) -> Item | None:
        """What came next; None when all is done. TimeoutError after so many seconds without anything."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while not self._ready():
                if self.error is not None:
                    raise self.error
                if self.closed or (not self._items and self._done()):
                    return None
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"nothing came for {timeout:g} s; nothing may have changed: ask for more")
                # Ctrl-C does not end a wait without a time limit everywhere.
                self.changed.wait(min(1.0, 1.0 if left is None else left))
            return self._take()

    def _ready(self) -> bool:
        """Whether there is something that the consumer may have. What has no rows it need not see."""
        while self._items and (self._persistence is None or self._persistence.covers(self._items[0].needs)):
            if len(self._items[0].batch):
                return True
            self.processed(self._take())
        return False

    def _take(self) -> Item:
        item = self._items.popleft()
        self.marks.update(item.marks)
        return item

    def processed(self, item: Item) -> None:
        """The consumer is done with it: the server may send more."""
        if item.link is not None and item.counted:
            with self.changed:
                item.link.processed(item.counted)

    # For what comes.

    def deliver(self, link: Link, delivery: Delivery) -> None:
        marks = {vbucket: mark for (vbucket, _), mark in delivery.positions.items()}
        needs = {} if self._persistence is None else needs_of(marks.values())
        link.unprocessed += delivery.flow_bytes
        item = Item(delivery.batch, marks, link, delivery.flow_bytes, needs)
        if len(item.batch) or needs:
            self.put(item)
            return
        # Nothing for the consumer to process: but it may still be at what came before.
        if self._items:
            last = self._items[-1]
            last.marks = last.marks | marks
        else:
            self.marks.update(marks)
        self.processed(item)

    def put(self, item: Item) -> None:
        self._items.append(item)
        self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """What came before it is still handed out."""
        self.error = self.error or error
        self.changed.notify_all()

    def close(self) -> None:
        self.closed = True
        self.changed.notify_all()

    # For what waits for disks.

    def held(self) -> list[Item]:
        with self.changed:
            return list(self._items)

    def told(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def broken(self, bug: Exception) -> None:
        with self.changed:
            self.fail(bug)

    def forget(self, number: int) -> set[int]:
        """Drop all from the first batch on in which a vbucket waits for disks. Whose rows were in it."""
        first = next((place for place, item in enumerate(self._items) if item.needs and number in item.marks), None)
        if first is None:
            return set()
        return {other for _ in range(len(self._items) - first) for other in self._items.pop().marks}

    def kept(self, number: int) -> StreamPosition:
        """Where a vbucket stands behind all that waits."""
        marks = next((item.marks for item in reversed(self._items) if number in item.marks), self.marks)
        return marks[number].position
