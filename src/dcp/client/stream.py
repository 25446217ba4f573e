"""What a consumer iterates over."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace

from dcp.checkpoint import Checkpoint
from dcp.client.follow.batch_queue import Item
from dcp.client.follow.follower import Follower
from dcp.client.options import check_timeout
from dcp.client.stats import Counters
from dcp.client.time_search import Places
from dcp.client.work import Work
from dcp.columns.batch import Batch
from dcp.columns.cas_filter import CasFilter


class ChangeStream:
    """Batches of changes, in the order of each vbucket.

    Taking the next batch says that the one before is processed: `checkpoint` is the position behind the
    last one that was handed out. `found` tells of each vbucket where it was at a time that `start` or `end`
    is, and how that was found; it is empty where neither is a time.
    """

    def __init__(
        self,
        client: object,
        follower: Follower,
        work: Work,
        empty: Checkpoint,
        found: Mapping[str, Places],
        cut: CasFilter | None,
    ) -> None:
        # It has to be there as long as the stream is.
        self._client = client
        self.found = found
        self._follower = follower
        self._work = work
        self._empty = empty
        self._cut = cut
        self._item: Item | None = None
        # Nodes send a snapshot whole, and with it rows that are behind an end.
        begins = follower.marks
        self._ends = {n: max(place.seqno, begins[n].position.seqno) for n, place in found.get("end", {}).items()}
        # The threads do not hold the stream: they end when nobody does.
        weakref.finalize(self, work.stop).atexit = False

    def __iter__(self) -> ChangeStream:
        return self

    def __next__(self) -> Batch:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def next(self, timeout: float | None = None) -> Batch | None:
        """The next batch; None when the stream is at its end. TimeoutError if none comes for so many seconds."""
        check_timeout(timeout)
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
        found = (mark.position for _, mark in sorted(self._follower.marks.items()))
        taken = (here.short_of(self._ends.get(here.vbucket, here.seqno)) for here in found)
        return replace(self._empty, positions=tuple(taken))

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return self._follower.counters

    @property
    def closed(self) -> bool:
        return self._work.closed

    def close(self) -> None:
        """End it; nothing comes any more."""
        self._work.close()

    def __enter__(self) -> ChangeStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
