"""The stream of changes that a consumer iterates over."""

from __future__ import annotations

import weakref
from dataclasses import replace
from datetime import timedelta

from dcp.checkpoint import Checkpoint
from dcp.client.follow.batch_queue import QueuedBatch
from dcp.client.follow.follower import Follower, RunningStream
from dcp.client.follow.vbucket import consumed_seqno
from dcp.client.stats import Counters
from dcp.client.stream_range import StreamRange
from dcp.columns.batch import Batch
from dcp.columns.row_filter import RowFilter
from dcp.errors import UsageError
from dcp.value_grammar import duration


class ChangeStream:
    """Iterator of the batches of a stream. Made by Client.stream().

    Changes of one vbucket are in the order of their seqnos. Taking the next batch acknowledges the one before:
    its node may send more, and `checkpoint` is the position after the last batch that was taken. Used by one thread at
    a time. Close it, or use it in a `with` statement; a stream that is not referenced any more stops by itself.

    found: for `start` and `end`, where they are times, the position of each vbucket then, and how it was found.
    """

    def __init__(
        self,
        client: object,
        follower: Follower,
        running: RunningStream,
        template: Checkpoint,
        range: StreamRange,
        row_filter: RowFilter | None,
    ) -> None:
        # An abandoned client closes its connections: the stream keeps it alive.
        self._client = client
        self.found = range.found
        self._follower, self._running = follower, running
        self._template, self._row_filter = template, row_filter
        self._item: QueuedBatch | None = None
        # Nodes send snapshots whole, and so rows after the end of the stream. These are removed, and must not be part
        # of the checkpoint.
        self._last_seqnos = range.last_seqnos
        # A stream that begins above its end stays where it is, unless it is rolled back.
        self._ends = {n: max(end, range.begins[n].seqno) for n, end in range.last_seqnos.items()}
        # The stream's threads hold the follower, not this object, so that abandoning it is noticed.
        self._abandoned = weakref.finalize(self, running.stop)
        self._abandoned.atexit = False

    def __iter__(self) -> ChangeStream:
        return self

    def __next__(self) -> Batch:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def next(self, timeout: float | str | timedelta | None = None) -> Batch | None:
        """Return the next batch; None at the end of the stream.

        timeout: seconds to wait, or a duration such as "500ms"; None to wait without a limit.

        Raises dcp.TimeoutError if no batch arrives in time; the stream continues, and may be asked again. Raises
        ClosedError if the stream, or its client, was closed before its end, and UsageError in a process that was forked
        from the one that opened the stream. Any other DcpError ends the stream; the checkpoint is then the position
        after the last batch that was taken.
        """
        self._running.check_process()
        seconds = None if timeout is None else _seconds(timeout)
        while True:
            if self._item is not None:
                self._follower.processed(self._item)
                self._item = None
            try:
                item = self._follower.next(seconds)
            except Exception:
                # An error that ends the stream. The threads would go on receiving what is never read.
                if self._follower.failed:
                    self.close()
                raise
            if item is None:
                self.close()
                return None
            self._item = item
            if self._ends and item.link is None:
                self._limit(item)
            batch = item.batch
            if self._row_filter is not None:
                reached = {vbucket: consumed_seqno(position) for vbucket, position in item.positions.items()}
                batch = self._row_filter(batch, reached)
            # A batch of which the filter leaves nothing is acknowledged in the next turn.
            if len(batch):
                return batch

    def _limit(self, report: QueuedBatch) -> None:
        """Limit the checkpoint of a vbucket that was rolled back: rows after its end are removed from then on."""
        for vbucket, reached in report.positions.items():
            if vbucket in self._ends:
                self._ends[vbucket] = max(self._last_seqnos[vbucket], consumed_seqno(reached))

    @property
    def checkpoint(self) -> Checkpoint:
        """Position after the last batch that was taken, to resume from in this or any other process."""
        reached = (reached.position for _, reached in sorted(self._follower.positions.items()))
        positions = (here.short_of(self._ends.get(here.vbucket, here.seqno)) for here in reached)
        return replace(self._template, positions=tuple(positions))

    @property
    def counters(self) -> Counters:
        """Totals of this stream so far."""
        return self._follower.counters

    @property
    def closed(self) -> bool:
        """True after `close`, or the end of the stream."""
        return self._running.closed

    def close(self) -> None:
        """End the stream and close its connections. The checkpoint stays available."""
        self._running.close()
        # It keeps the follower, and an error that ended the stream keeps, by its traceback, this object.
        self._abandoned.detach()

    def __enter__(self) -> ChangeStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _seconds(timeout: float | str | timedelta) -> float:
    try:
        return duration(timeout)
    except ValueError as error:
        raise UsageError(f"timeout: expected None or {error}, found {timeout!r:.100}") from None
