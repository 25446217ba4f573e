"""What a task does: stream its vbuckets into batches of the size that Spark likes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa

import dcp
from dcp.checkpoint import Checkpoint
from dcp.client import ChangeStream, Client
from dcp.client.dialects import TAP
from dcp.client.rollback import EVENT, rollback_rows, with_rollback
from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.errors import ServerError, TransportError
from dcp.position import StreamPosition
from dcp.spark.options import Options
from dcp.spark.planner import Partition, still_there
from dcp.spark.projection import View
from dcp.spark.worker import hosted

# What Spark handles best is 1 to 4 MiB; buffers above 16 MiB are slow there. What came is the less the fewer columns
# are wanted: only what is too small is put together, which takes a copy.
_ASKED, _LEAST, _MOST = 3 << 20, 1 << 20, 4 << 20
_LINGER = 0.25
# No wait is longer, since nobody wakes a worker whose query has ended.
_NAP = 0.2
# After so many silent seconds a task looks whether its end can still be reached, and how long it does without nodes.
_SILENCE, _PATIENCE = 5.0, 60.0


def rows(partition: Partition, options: Options, *, followed: bool = False) -> Iterator[pa.RecordBatch]:
    """The changes of a partition. `followed`: another read comes, which finds what got lost up to its end."""
    # It sees for itself whether it gets on. Each look of its client would be a connection of each task to each node.
    with hosted() as gone, dcp.connect(options.login.into(options.url), stats_interval=0) as client:
        there = still_there(options, partial(client.manifest, partition.manifest_uid)) if followed else options
        view = View(options, partial(_paths, client), partition.cuts)
        for batch in _undone(partition, view.decoded):
            yield view(batch)
        if there is None:
            return
        stream = stream_of(client, partition, there, view.decoded)
        # Over TAP an end is where the node says that all was sent.
        watch = _Watch(client, stream, {} if options.dialect == TAP else partition.end, followed)
        yield from sized(_seen(_batches(stream, watch, gone), view, lambda: _is_past(stream, partition)))


def _paths(client: Client) -> Mapping[int, str]:
    """The collections, also while changes come: a node has one connection with a task."""
    paths = client.collections()
    client.hang_up()
    return paths


def _seen(batches: Iterable[Batch], view: View, is_past: Callable[[], bool]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """What is left of each batch, and its bytes."""
    for batch in batches:
        seen = view(batch.to_arrow())
        if seen.num_rows == len(batch):
            yield seen, batch.nbytes
            continue
        if seen.num_rows:
            yield seen, seen.nbytes
        if is_past():
            return


def _is_past(stream: ChangeStream, partition: Partition) -> bool:
    """Whether nothing that comes is wanted any more. Of a range that begins at its end, what is undone may come."""
    cuts = {part.vbucket: part.end for part in partition.ranges if part.size > 0 and not part.whole}
    return len(cuts) == len(partition.ranges) and all(here.seqno >= cuts[here.vbucket] for here in stream.checkpoint)


def stream_of(client: Client, partition: Partition, options: Options, columns: tuple[str, ...]) -> ChangeStream:
    """The changes of a partition as they come."""
    ends = Checkpoint(tuple(StreamPosition(vbucket, 0, end, end, end) for vbucket, end in partition.end.items()))
    start, end = ("beginning", "now") if options.dialect == TAP else (partition.start, ends)
    return client.stream(
        start,
        end,
        scope=options.scope,
        collections=options.collections,
        vbuckets=partition.vbuckets,
        columns=columns,
        types="plain",
        batch_bytes=_ASKED,
        linger=_LINGER,
        on_rollback=options.on_rollback,
        ignore_purged=not options.fail_on_data_loss,
    )


def _undone(partition: Partition, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """A row for each vbucket that the plan found to have lost what the reader had."""
    undone = [(part, part.undone_from) for part in partition.ranges if part.undone_from is not None]
    if undone:
        make = rollback_rows(Decoder(with_rollback("dcp"), columns, events=(EVENT,), types="plain"))
        for part, seqno in undone:
            yield make(part.vbucket, seqno, part.start.seqno, EVENT).to_arrow()


def _batches(stream: ChangeStream, watch: _Watch, gone: Callable[[], bool]) -> Iterator[Batch]:
    while not gone():
        try:
            batch = stream.next(_NAP)
        except TimeoutError:
            if watch.nothing():
                return
            continue
        if batch is None:
            return
        watch.something()
        yield batch


def sized(batches: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    """Small ones put together, large ones cut. Each comes with its bytes, which Arrow would count anew."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch, bytes_ in batches:
        waiting.append(batch)
        size += bytes_
        if size >= _LEAST:
            yield from _cut(_joined(waiting), size)
            waiting, size = [], 0
    if waiting:
        yield from _cut(_joined(waiting), size)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _cut(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Halves of halves. A row larger than the limit stays whole."""
    if size <= _MOST or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from _cut(part, part.nbytes)


class _Watch:
    """Ends a task that waits for what cannot come."""

    def __init__(self, client: Client, stream: ChangeStream, ends: Mapping[int, int], followed: bool) -> None:
        self._client, self._stream, self._ends, self._followed = client, stream, ends, followed
        self._unreachable_since: float | None = None
        self.something()

    def something(self) -> None:
        self._look_at = time.monotonic() + _SILENCE

    def nothing(self) -> bool:
        """Whether all that there is has come, although the end was planned further."""
        if time.monotonic() < self._look_at:
            return False
        over = False
        try:
            over = self._check(self._client.high_seqnos())
            self._client.hang_up()
            self._unreachable_since = None
        except TransportError:
            self._unreachable_since = self._unreachable_since or time.monotonic()
            if time.monotonic() - self._unreachable_since > _PATIENCE:
                raise
        self._look_at = time.monotonic() + _SILENCE
        return over

    def _check(self, highs: dict[int, int]) -> bool:
        waits = over = 0
        for position in self._stream.checkpoint:
            end = self._ends.get(position.vbucket, 0)
            high = highs.get(position.vbucket, end)
            if position.seqno < end and high < end and not self._followed:
                raise ServerError(
                    f"vbucket {position.vbucket}: planned up to seqno {end}, but the cluster lost changes since and "
                    f"ends at {high}: plan the read again"
                )
            waits += position.seqno < end
            over += high <= position.seqno < end
        return 0 < over == waits
