"""The stream of changes that a consumer iterates over."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from dcp import _codec
from dcp._codec import LazyPosition
from dcp.checkpoint import Checkpoint, filter_of
from dcp.client.follow.batch_queue import QueuedBatch, no_changes
from dcp.client.follow.follower import Follower, RunningStream
from dcp.client.follow.vbucket import consumed_seqno
from dcp.client.row_format import RowFormat
from dcp.client.stats import Counters
from dcp.client.stream_range import StreamRange
from dcp.columns.batch import Batch
from dcp.columns.path_columns import PathColumns
from dcp.errors import ClosedError, TimeoutError, UsageError
from dcp.value_grammar import duration


class ChangeStream:
    """Iterator of the batches of a stream. Made by Client.stream().

    Changes of one vbucket are in the order of their seqnos. Taking the next batch acknowledges the one before:
    its node may send more, and `checkpoint` is the position after the last batch that was taken. Used by one thread at
    a time. Close it, or use it in a `with` statement; a stream that is not referenced any more stops by itself.

    It is an Arrow stream as well: `pyarrow.table(stream)`, `polars.DataFrame(stream)` and DuckDB's `from stream` take
    the batches that are left, and wait for its end. In asyncio, use `async for batch in stream`.

    schema: columns of the batches.
    found: for `start` and `end`, where they are times, the position of each vbucket then, and how it was found.
    """

    def __init__(
        self,
        client: object,
        follower: Follower,
        running: RunningStream,
        template: Checkpoint,
        range: StreamRange,
        format: RowFormat,
        names: PathColumns | None,
    ) -> None:
        # An abandoned client closes its connections: the stream keeps it alive.
        self._client = client
        self.schema = format.schema if names is None else names.schema
        self.found = range.found
        self._follower, self._running = follower, running
        self._template, self._row_filter, self._names = template, format.filter, names
        self._item: QueuedBatch | None = None
        # Nodes send snapshots whole, and so rows after the end of the stream. These are removed, and must not be part
        # of the checkpoint.
        self._last_seqnos = range.last_seqnos
        # A stream that begins above its end stays where it is, unless it is rolled back.
        self._ends = {n: max(end, range.begins[n].seqno) for n, end in range.last_seqnos.items()}
        # The stream's threads hold the follower, not this object, so that abandoning it is noticed.
        self._abandoned = weakref.finalize(self, running.stop)
        self._abandoned.atexit = False

    def __repr__(self) -> str:
        selected, counts = filter_of(self._template), self._follower.counters
        return (
            f"<ChangeStream of {self._template.bucket!r}, {selected}: {'closed' if self.closed else 'open'}, "
            f"vbuckets={len(self._follower.positions)}, changes={counts.rows}>"
        )

    def __iter__(self) -> ChangeStream:
        return self

    def __next__(self) -> Batch:
        batch = self.next()
        if batch is None:
            raise StopIteration
        return batch

    def __aiter__(self) -> ChangeStream:
        return self

    async def __anext__(self) -> Batch:
        batch = await self.anext()
        if batch is None:
            raise StopAsyncIteration
        return batch

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        if self.closed:
            # A second read would look like a bucket without changes.
            raise ClosedError("the stream has ended or was closed, and is read once: open another one")
        return _codec.arrow_stream(self.__arrow_c_schema__(), self)

    def next(self, timeout: float | str | timedelta | None = None) -> Batch | None:
        """Return the next batch; None at the end of the stream.

        timeout: seconds to wait, or a duration such as "500ms"; None to wait without a limit.

        Raises dcp.TimeoutError if no batch arrives in time; the stream continues, and may be asked again. Raises
        ClosedError if the stream, or its client, was closed before its end, and UsageError in a process that was forked
        from the one that opened the stream. Any other DcpError ends the stream; the checkpoint is then the position
        after the last batch that was taken.
        """
        return self._next(None if timeout is None else _seconds(timeout))

    async def anext(self, timeout: float | str | timedelta | None = None) -> Batch | None:
        """Return the next batch without blocking the event loop. Otherwise as `next`.

        A task that is cancelled while it waits loses no batch.
        """
        import asyncio

        seconds = None if timeout is None else _seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def notice() -> None:
            # On a thread of the stream, for which a loop that has ended is no problem of its own.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(changed.set)

        with self._follower.listening(notice):
            while True:
                changed.clear()
                with suppress(TimeoutError):
                    return self._next(0)
                left = None if deadline is None else deadline - time.monotonic()
                try:
                    await asyncio.wait_for(changed.wait(), left)
                except asyncio.TimeoutError:
                    raise no_changes(seconds or 0.0) from None

    def _next(self, seconds: float | None) -> Batch | None:
        self._running.check_process()
        while True:
            if self._item is not None:
                self._follower.processed(self._item)
                self._item = None
            before = dict(self._follower.positions) if self._names is not None else {}
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
            self._limit(item.rolled_back)
            batch = item.batch
            if self._row_filter is not None:
                reached = {vbucket: consumed_seqno(position) for vbucket, position in item.positions.items()}
                batch = self._row_filter(batch, reached)
            # A batch of which the filter leaves nothing is acknowledged in the next turn.
            if len(batch):
                return batch if self._names is None else self._with_names(self._names, batch, before)

    def _with_names(self, names: PathColumns, batch: Batch, before: dict[int, LazyPosition]) -> Batch:
        """Add the names of collections. A new one is asked for; if no node answers, the batch was not taken."""
        try:
            return names(batch)
        except Exception:
            self.close()
            self._follower.positions.update(before)
            raise

    def _limit(self, rolled_back: Mapping[int, int]) -> None:
        """Limit the checkpoint of a vbucket that was rolled back: rows after its end are removed from then on."""
        for vbucket, seqno in rolled_back.items():
            if vbucket in self._ends:
                self._ends[vbucket] = max(self._last_seqnos[vbucket], seqno)

    @property
    def checkpoint(self) -> Checkpoint:
        """Position after the last batch that was taken, to resume from in this or any other process."""
        return self.deferred_checkpoint()()

    def deferred_checkpoint(self) -> Callable[[], Checkpoint]:
        """Return a function that returns the present value of `checkpoint`, also after further batches were taken.

        For callers that remember a position with each batch and need few of them: the work is done in the function.
        """
        positions, ends = dict(self._follower.positions), dict(self._ends)

        def checkpoint() -> Checkpoint:
            reached = (reached.position for _, reached in sorted(positions.items()))
            limited = (here.short_of(ends.get(here.vbucket, here.seqno)) for here in reached)
            return replace(self._template, positions=tuple(limited))

        return checkpoint

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
