"""What a consumer iterates over."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace

from dcp.checkpoint import Checkpoint
from dcp.client.follower import Follower
from dcp.client.queue import Item
from dcp.client.stats import Counters, Stats
from dcp.client.watch import FLOWING
from dcp.client.watcher import Watcher
from dcp.client.when import Places
from dcp.columns.batch import Batch
from dcp.columns.cut import Cut


class ChangeStream:
    """Batches of changes, in the order of each vbucket.

    Taking the next batch says that the one before is processed: `checkpoint` is the position behind the
    last one that was handed out.
    """

    def __init__(
        self,
        client: object,
        follower: Follower,
        empty: Checkpoint,
        watcher: Watcher,
        found: Mapping[str, Places],
        cut: Cut | None,
    ) -> None:
        # It has to be there as long as the stream is.
        self._client = client
        # Where each vbucket was at a time that `start` or `end` is, and how that was found.
        self.found = found
        self._follower = follower
        self._watcher = watcher
        self._empty = empty
        self._cut = cut
        self._item: Item | None = None
        self.closed = False
        # The threads do not hold the stream: they end when nobody does.
        weakref.finalize(self, _stop, follower, watcher).atexit = False

    def __iter__(self) -> ChangeStream:
        return self

    def __next__(self) -> Batch:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def next(self, timeout: float | None = None) -> Batch | None:
        """The next batch; None when the stream is at its end. TimeoutError if none comes for so many seconds."""
        while True:
            if self._item is not None:
                self._follower.processed(self._item)
                self._item = None
            item = self._follower.next(timeout)
            if item is None:
                self.close()
                return None
            self._item = item
            batch = item.batch if self._cut is None else self._cut(item.batch)
            if len(batch):
                return batch

    @property
    def checkpoint(self) -> Checkpoint:
        """Where to go on, in this or any other process: behind the last batch that was handed out."""
        marks = self._follower.marks
        return replace(self._empty, positions=tuple(marks[number].position for number in sorted(marks)))

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return self._follower.counters

    def stats(self, bucket: str) -> Stats:
        """What came of it, and how it stands."""
        seen = [] if self.closed else self._follower.seen()
        lags = self._watcher.lags()
        changes, size = self._watcher.rates
        counters = self._follower.counters
        return Stats(
            bucket,
            changes=counters.rows,
            bytes=counters.bytes,
            batches=counters.batches,
            changes_per_second=changes,
            bytes_per_second=size,
            rollbacks=counters.rollbacks,
            reconnects=counters.reconnects,
            stream_ends=dict(counters.stream_ends),
            vbuckets=len(seen),
            streams=sum(one.reason in FLOWING for one in seen),
            connections={} if self.closed else self._follower.windows(),
            lag=lags.get(None),
            collections={path: lag for path, lag in lags.items() if path is not None},
            stuck=dict(self._watcher.stuck),
        )

    def close(self) -> None:
        """End it; nothing comes any more."""
        self.closed = True
        self._watcher.close()
        self._follower.close()

    def __enter__(self) -> ChangeStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stop(follower: Follower, watcher: Watcher) -> None:
    """Let their threads end, and wait for none: whoever collects garbage may be one of them."""
    watcher.stop()
    follower.stop()
