"""`spark.readStream.format("dcp")`: each micro-batch is a planned read that resumes where the one before ended.

Spark logs the end of a batch before its tasks run, so `latestOffset` decides what a batch reads without seeing a row of
it. docs/spark-semantics.md says why nothing is missed nevertheless.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dcp.checkpoint import Checkpoint
from dcp.client.follow.settings import TAP
from dcp.errors import DcpError, LocalProtocolError, ServerError, UsageError
from dcp.position import UNKNOWN_END, StreamPosition
from dcp.spark.admission import bytes_per_seqno, limited_ends
from dcp.spark.driver_view import ClusterState, DriverView
from dcp.spark.offsets import from_offset, to_offset
from dcp.spark.options import Options
from dcp.spark.planner import Partition, divide, highs_and_uuids, owners_of, positions
from dcp.spark.ranges import Range, needs_stream, position_after, range_of, shortened
from dcp.spark.retry import DEFAULTS, OutageTimer, Timing, retry
from dcp.spark.task import read_partition

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Before Spark 4.2.
    SupportsTriggerAvailableNow = object

log = logging.getLogger("dcp.spark")


class TaskPartition(InputPartition):  # type: ignore[misc]
    """A partition of a plan, in the class that Spark requires to send it to a task."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(None)
        self.partition = partition


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Planner of micro-batches, and reader of their partitions.

    Spark creates one instance on the driver, which keeps a client and plans, and others for the executors, which only
    call `read`. So a new instance must not connect. Raises UsageError for options that a stream cannot have.
    """

    def __init__(self, options: Options, timing: Timing = DEFAULTS) -> None:
        if options.dialect == TAP:
            raise UsageError("readStream: TAP has no seqnos to resume a batch from: use spark.read")
        if options.end is not None:
            raise UsageError(
                "option endingOffsets: readStream has no end: use trigger(availableNow=True), or spark.read"
            )
        self._options = options if options.start is not None else replace(options, start="now")
        self._timing = timing
        self._view = DriverView(self._options, timing)
        self._initial: dict[str, Any] | None = None
        self._latest: dict[str, Any] | None = None
        # The state in which nothing was new after an offset, and that offset: the same pair needs no second query.
        self._idle: tuple[ClusterState, dict[str, Any]] | None = None
        # High seqnos at which a query with trigger(availableNow=True) ends.
        self._target: dict[int, int] | None = None
        # When minOffsetsPerTrigger began to hold a batch back. -inf: the first batch never waits.
        self._waiting_since = -math.inf
        # Positions that turned out to be ends of snapshots, by vbucket: known only while the query runs.
        self._snapshot_ends: dict[int, StreamPosition] = {}
        self._outage = OutageTimer(timing.outage)

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset that a new query starts from. Spark asks twice and needs the same answer."""
        if self._initial is None:
            assert self._options.start is not None
            self._initial = to_offset(positions(self._view.client, self._options.start, self._options))
        return self._initial

    def _start_of_batch(self) -> dict[str, Any]:
        """Return the start offset where Spark passes none: before 4.2.

        A restarted query does not get its logged offset then, so `now` may be anywhere in a snapshot: its window begins
        at 0.
        """
        if self._initial is not None:
            return self._initial
        now = from_offset(self.initialOffset())
        self._initial = None
        widened = (
            replace(position, snapshot_start=0, snapshot_end=UNKNOWN_END, marks=()) if position.seqno else position
            for position in now
        )
        return to_offset(replace(now, positions=tuple(widened)))

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of a batch, from the options. Spark passes it back to `latestOffset`."""
        options = self._options
        for name, value in (
            ("ReadMaxRows", options.max_offsets),
            ("ReadMaxBytes", options.max_bytes),
            ("ReadMinRows", options.min_offsets),
        ):
            if value:
                return _read_limit(name, value)
        return _read_limit("ReadAllAvailable")

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the cluster is now: the query ends there."""
        self._target, _ = highs_and_uuids(self._view.client, self._options, self._timing.retry)

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return where the next batch ends; `start` itself if there is nothing to read, or while no node answers."""
        begin = dict(start or self._latest or self._start_of_batch())
        try:
            self._latest = self._next(begin, limit)
            self._outage.answered()
        except DcpError as error:
            if not error.retriable or self._outage.timed_out():
                raise
            # The same offset again means "nothing new" to Spark, which asks again at the next trigger.
            log.warning("%s; retrying for up to %g s", error, self._timing.outage)
            return begin
        return self._latest

    def _next(self, begin: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return where the next batch ends. With failOnDataLoss=false, observe the cluster again after an error."""
        try:
            return self._end_of_batch(begin, self._view.current(), limit)
        except (LocalProtocolError, ServerError) as error:
            if self._options.fail_on_data_loss or error.retriable:
                raise
        # A collection may have been dropped between two queries.
        self._view.invalidate()
        return self._end_of_batch(begin, self._view.current(), limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return, for the progress of the query, each vbucket's high seqno and the number of seqnos yet to be read."""
        state = self._view.last
        if state is None or self._latest is None:
            return None
        # If the last check found only changes of other collections, there is no backlog.
        idle = self._idle is not None and self._idle == (state, self._latest)
        behind = 0 if idle else sum(from_offset(self._latest).lag(state.highs).values())
        return {"behind": behind, "seqnos": {str(vbucket): seqno for vbucket, seqno in sorted(state.highs.items())}}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of the batch between two offsets. Spark may ask again for a batch that failed."""
        # Needs a fresh state: the snapshots that tasks of the batch before saw ended at or below the high seqnos of
        # now, not at or below those that the driver remembers.
        self._view.invalidate()
        state, wanted = retry(self._view.client, self._state_and_wanted, self._timing.retry)
        ends = from_offset(end).by_vbucket()
        ranges = []
        for here in self._view.checked(from_offset(start), state):
            vbucket = here.vbucket
            if vbucket not in state.highs or ends.get(vbucket, here) == here:
                continue
            to, high = ends[vbucket].seqno, state.highs[vbucket]
            # An end below the start was logged when a failover had left the vbucket with no more than that; what was
            # written since is for later batches. A repeated batch may end at a seqno that was lost since.
            known = min(to, high) if to < here.seqno else high
            part = self._range(here, min(to, known), known, state.uuids[vbucket])
            # The next batch delivers what follows the end in its snapshot. The last batch of availableNow has no next
            # one, and needs the complete snapshot for every key to have its state.
            whole = self._target is not None and to >= self._target.get(vbucket, 0)
            part = shortened(replace(part, whole=whole), wanted)
            if needs_stream(part, state.uuids[vbucket]):
                ranges.append(part)
            # The tasks may read snapshots that end after all that the driver has seen so far.
            self._snapshot_ends.pop(vbucket, None)
        # The tasks now read up to what was observed: the next batch needs a newer observation.
        self._view.invalidate()
        found = divide(ranges, owners_of(self._view.client, ranges), self._options.min_partitions or 1)
        return [TaskPartition(replace(partition, manifest_uid=self._view.manifest_uid)) for partition in found]

    def _state_and_wanted(self) -> tuple[ClusterState, dict[int, int]]:
        """Return the state of the cluster, and after it the last seqnos that pass the collection filter."""
        state = self._view.current()
        return state, self._view.filtered_highs(state)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, on an executor."""
        if isinstance(partition, TaskPartition):
            yield from read_partition(partition.partition, self._options, followed=True, timing=self._timing)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: positions are kept in Spark's checkpoint only."""

    def stop(self) -> None:
        """Close the driver's client."""
        self._view.close()

    def _waits_for_more(self, begin: dict[str, Any], state: ClusterState, limit: Any) -> bool:
        """True while minOffsetsPerTrigger holds the batch back."""
        least, ours = self._options.min_offsets, ("max_rows", "max_bytes", "min_rows")
        # Spark passes a limit without any of these where a batch shall have everything.
        if least is None or self._target is not None or not any(hasattr(limit, name) for name in ours):
            return False
        late = time.monotonic() - self._waiting_since >= self._options.max_delay
        return not late and sum(from_offset(begin).lag(state.highs).values()) < least

    def _end_of_batch(self, begin: dict[str, Any], state: ClusterState, limit: Any) -> dict[str, Any]:
        """Return where the next batch ends; `begin` itself if nothing is new, or Spark would run an empty batch."""
        if self._idle == (state, begin) or self._waits_for_more(begin, state, limit):
            return begin
        here = self._view.checked(from_offset(begin), state)
        target = self._target or {}
        ends = {vbucket: min(high, target.get(vbucket, high)) for vbucket, high in state.highs.items()}
        if self._positions_after(here, ends, state, {}) == here or not self._view.has_changes(here, state):
            self._idle = state, begin
            return begin
        most = self._max_seqnos(here, ends, state, limit)
        if most is not None:
            # Only ends are limited. Starts stay, so what is cut off is in the next batch.
            ends = limited_ends(here.by_vbucket(), ends, most)
        self._waiting_since = time.monotonic()
        return to_offset(self._positions_after(here, ends, state, self._view.purge_seqnos(here)))

    def _max_seqnos(self, here: Checkpoint, ends: Mapping[int, int], state: ClusterState, limit: Any) -> int | None:
        """Return how many seqnos the batch may have; None without a limit."""
        rows = getattr(limit, "max_rows", None)
        # Spark passes one limit only. Where that is maxOffsetsPerTrigger, maxBytesPerTrigger comes from the options.
        size = getattr(limit, "max_bytes", self._options.max_bytes if rows else None)
        if size is None:
            return rows
        ranges = [
            self._range(start, ends[start.vbucket], state.highs[start.vbucket], state.uuids[start.vbucket])
            for start in here
            if start.vbucket in ends
        ]
        each = bytes_per_seqno(self._view.client, self._options, ranges)
        limits = [rows, max(1, int(size / each)) if each else None]
        return min((most for most in limits if most is not None), default=None)

    def _positions_after(
        self, here: Checkpoint, ends: Mapping[int, int], state: ClusterState, purged: Mapping[int, int]
    ) -> Checkpoint:
        """Return the checkpoint after a batch from `here` to `ends`."""
        after = (self._position_after(position, ends, state, purged.get(position.vbucket)) for position in here)
        return replace(here, positions=tuple(after))

    def _position_after(
        self, start: StreamPosition, ends: Mapping[int, int], state: ClusterState, purged: int | None
    ) -> StreamPosition:
        """Return the position of one vbucket after a batch. Remember `start` if it is the end of a snapshot."""
        if start.vbucket not in state.highs:
            return start
        high, uuid = state.highs[start.vbucket], state.uuids[start.vbucket]
        part = self._range(start, ends[start.vbucket], high, uuid)
        if needs_stream(part, uuid):
            return position_after(part, uuid, purged)
        if high == start.seqno:
            self._snapshot_ends[start.vbucket] = part.start
        return start

    def _range(self, start: StreamPosition, end: int, high: int, uuid: int) -> Range:
        """Return the range from a logged position, or from what has since become known of that position."""
        exact = self._snapshot_ends.get(start.vbucket)
        known = exact if exact is not None and (exact.seqno, exact.vbuuid) == (start.seqno, start.vbuuid) else start
        return range_of(known, end, high, uuid, self._options)


def _read_limit(name: str, *arguments: int) -> Any:
    """Return a limit of Spark 4.2 and newer. Older versions never ask for one."""
    from pyspark.sql.streaming import datasource as limits

    return getattr(limits, name)(*arguments)
