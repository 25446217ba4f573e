"""Work of a task on an executor: stream vbuckets, and yield their rows in batches of the size that suits Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

import dcp
from dcp.checkpoint import Checkpoint
from dcp.client import ChangeStream, Client
from dcp.client.follow.settings import TAP
from dcp.client.row_format import ROLLBACK, report_row, with_report_rows
from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.errors import DcpError, ServerError, TransportError
from dcp.position import UNKNOWN_END, StreamPosition
from dcp.spark.kept_client import kept_client
from dcp.spark.newest import NewestVersions
from dcp.spark.options import Options
from dcp.spark.planner import Partition, without_dropped
from dcp.spark.projection import Projection
from dcp.spark.ranges import Range
from dcp.spark.retry import DEFAULTS, OutageTimer, Timing
from dcp.spark.worker import task_in_worker
from dcp.wire.memcached import Status

# Bytes of a batch. Spark is fastest with 1 to 4 MiB, and slow with buffers above 16 MiB. The client is asked for 3 MiB
# on the wire; fewer columns leave less of it, and only batches below 1 MiB are joined, which takes a copy.
WIRE_BYTES, MIN_BYTES, _MAX_BYTES = 3 << 20, 1 << 20, 4 << 20
# Seconds for which the client collects rows into a batch.
_LINGER = 0.25
# Seconds for which a task waits until every copy has its rows on disk: servers fail a node over after two minutes.
_PERSISTED_WITHIN = 300.0
# Seconds between two attempts to connect.
_PAUSE = 1.0
# Longest wait for a batch in seconds. Nothing wakes up a worker whose query has ended: it has to look.
_WAIT = 0.2


def read_partition(
    partition: Partition,
    options: Options,
    *,
    followed: bool = False,
    timing: Timing = DEFAULTS,
    min_bytes: int = MIN_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a partition.

    followed: True in a stream, whose next batch finds out if changes were lost up to the end of this partition. False
        in a batch read, where a lost end is an error.
    min_bytes: smaller batches are joined to at least this size, except the last one.
    """
    # The task finds stalled vbuckets itself (_StallCheck): with stats_interval, each task would keep a connection to
    # each node for that.
    connect = partial(_connected, partition, options)
    with (
        task_in_worker() as is_closed,
        kept_client(options.login_url(), connect, partial(_knows, partition)) as client,
    ):
        remaining = without_dropped(options, partial(client.manifest, partition.manifest_uid)) if followed else options
        projection = Projection(options, partial(_collection_paths, client), partition.cuts)
        for record in _planned_rollbacks(partition, options, projection.wire_columns):
            yield projection.columns(record)
        if remaining is None:
            return
        if options.newest_only and not followed:
            # What a rollback takes back may have been delivered, and its row would come after it.
            remaining = replace(remaining, on_rollback="fail")
        stream = stream_of(client, partition, remaining, projection.wire_columns)
        # A TAP stream ends where the node says that it has sent everything: there are no seqnos to compare.
        ends = {} if options.dialect == TAP else partition.end
        stalls = _StallCheck(client, stream, ends, remaining, followed, timing)
        batches = _batches(stream, stalls, is_closed)
        rows = _selected(batches, projection, lambda: _is_complete(stream, partition))
        if options.newest_only:
            rows = NewestVersions(ends)(rows)
        yield from resized(((projection.columns(batch), size) for batch, size in rows), min_bytes)


def _knows(partition: Partition, client: Client) -> bool:
    """Return True if a client has a map of the planned bucket with the node of a partition.

    All nodes of an older map, and of the URL, may have left the cluster since.
    """
    return client.map.uuid == partition.bucket_uuid and partition.node in client.node_addresses


def _connected(partition: Partition, options: Options) -> Client:
    """Return a connected client. Wait for nodes that are away: the driver reached them."""
    outage = OutageTimer(options.node_timeout)
    while True:
        try:
            return dcp.connect(options.login_url(partition.addresses), stats_interval=0)
        except TransportError as error:
            outage.failed(error)
        time.sleep(_PAUSE)


def _collection_paths(client: Client) -> Mapping[int, str]:
    """Return the collections' paths by id, over a connection that is closed again: a task keeps one to its node."""
    paths = client.collections()
    client.close_idle()
    return paths


def _selected(
    batches: Iterable[Batch], projection: Projection, is_complete: Callable[[], bool]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the wanted rows of each batch with their size in bytes, until nothing more is wanted."""
    for batch in batches:
        rows = projection.rows(batch.to_arrow())
        if rows.num_rows == len(batch):
            yield rows, batch.nbytes
            continue
        if rows.num_rows:
            yield rows, rows.nbytes
        # Rows were dropped: perhaps because all vbuckets are past their ends.
        if is_complete():
            return


def _is_complete(stream: ChangeStream, partition: Partition) -> bool:
    """True if every vbucket has passed the end after which its rows are dropped.

    A range without seqnos is there for a rollback that its node may ask for, so it is read to the end of its stream.
    """
    cuts = {part.vbucket: part.end for part in partition.ranges if part.size > 0 and not part.whole}
    return len(cuts) == len(partition.ranges) and all(here.seqno >= cuts[here.vbucket] for here in stream.checkpoint)


def stream_of(client: Client, partition: Partition, options: Options, columns: tuple[str, ...]) -> ChangeStream:
    """Return a client's stream over the ranges of a partition."""
    # An unknown snapshot end asks for the rest of the snapshot in which the end lies: it has the rows that replaced
    # earlier versions of keys.
    ends = Checkpoint(tuple(StreamPosition(vbucket, 0, end, 0, UNKNOWN_END) for vbucket, end in partition.end.items()))
    start, end = ("beginning", "now") if options.dialect == TAP else (partition.start, ends)
    return client.stream(
        start,
        end,
        scope=options.scope,
        collections=options.collections,
        vbuckets=partition.vbuckets,
        columns=columns,
        batch_bytes=WIRE_BYTES,
        linger=_LINGER,
        on_rollback=options.on_rollback,
        ignore_purged=not options.fail_on_data_loss,
        persisted_only=options.persisted_only,
        persisted_within=_PERSISTED_WITHIN,
        out_of_order=options.out_of_order,
        history=options.history,
        **options.decoding,
        **options.selection,
    )


def _planned_rollbacks(partition: Partition, options: Options, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield a rollback row for each vbucket whose changes the driver found lost when it planned the read."""
    lost: list[tuple[Range, int]] = [
        (part, part.undone_from) for part in partition.ranges if part.undone_from is not None
    ]
    if lost:
        make = report_row(Decoder(with_report_rows("dcp"), columns, events=(ROLLBACK,), **options.decoding))
        for part, seqno in lost:
            yield make(part.vbucket, seqno, part.start.seqno, ROLLBACK).to_arrow()


def _batches(stream: ChangeStream, stalls: _StallCheck, is_closed: Callable[[], bool]) -> Iterator[Batch]:
    """Yield the stream's batches until it ends, Spark closes the connection, or its end cannot be reached any more."""
    while not is_closed():
        try:
            batch = stream.next(_WAIT)
        except TimeoutError:
            if stalls.ended():
                return
            continue
        if batch is None:
            return
        stalls.received()
        yield batch


def resized(batches: Iterable[tuple[pa.RecordBatch, int]], min_bytes: int = MIN_BYTES) -> Iterator[pa.RecordBatch]:
    """Join small batches and split large ones. Each comes with its size, which Arrow would have to count again."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch, bytes_ in batches:
        waiting.append(batch)
        size += bytes_
        if size >= min_bytes:
            yield from _split(_joined(waiting), size)
            waiting, size = [], 0
    if waiting:
        yield from _split(_joined(waiting), size)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches as one; a single one without a copy."""
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _split(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Halve a batch until each part is within the limit. A single row above the limit stays whole."""
    if size <= _MAX_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from _split(part, part.nbytes)


class _StallCheck:
    """Detects, while nothing arrives, that a failover lost the planned end: the stream would wait for ever."""

    def __init__(
        self,
        client: Client,
        stream: ChangeStream,
        ends: Mapping[int, int],
        options: Options,
        followed: bool,
        timing: Timing,
    ) -> None:
        self._client, self._stream, self._ends, self._followed = client, stream, ends, followed
        self._options = options
        self._silence = timing.silence
        self._outage = OutageTimer(options.node_timeout)
        self.received()

    def received(self) -> None:
        """Note that a batch arrived."""
        self._check_at = time.monotonic() + self._silence

    def ended(self) -> bool:
        """True if everything that still exists up to the planned ends has arrived. Queries the cluster after a silence.

        Raises ServerError in a batch read whose end was lost, TransportError if no node has answered for too long.
        """
        if time.monotonic() < self._check_at:
            return False
        ended = False
        try:
            ended = self._compare(self._highs())
            # A task keeps one connection to its node, and none to others.
            self._client.close_idle()
            self._outage.answered()
        except DcpError as error:
            self._outage.failed(error)
        self._check_at = time.monotonic() + self._silence
        return ended

    def _highs(self) -> dict[int, int]:
        try:
            return self._client.high_seqnos()
        except ServerError as error:
            if error.status != Status.EACCESS:
                raise
        # The user may read some collections only.
        scope, collections = self._options.scope, self._options.collections
        return self._client.heads(list(self._ends), scope=scope, collections=collections).high_seqnos

    def _compare(self, highs: dict[int, int]) -> bool:
        """True if every vbucket that is still before its end is at its high seqno, and there is one."""
        unfinished = exhausted = 0
        for position in self._stream.checkpoint:
            end = self._ends.get(position.vbucket, 0)
            high = highs.get(position.vbucket, end)
            if position.seqno < end and high < end and not self._followed:
                raise ServerError(
                    f"vbucket {position.vbucket}: planned up to seqno {end}, but the cluster lost changes in a "
                    f"failover and has only {high}: plan the read again"
                )
            unfinished += position.seqno < end
            exhausted += high <= position.seqno < end
        return 0 < exhausted == unfinished
