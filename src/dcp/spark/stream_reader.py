"""`spark.readStream.format("dcp")`: each micro-batch is a planned read that resumes where the one before ended.

Spark logs the end of a batch before its tasks run, so `latestOffset` decides what a batch reads without seeing a row of
it. docs/spark-semantics.md says why nothing is missed nevertheless.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from dcp.client.follow.settings import TAP
from dcp.cluster_map import format_vbuckets
from dcp.errors import CheckpointError, DcpError, LocalProtocolError, ServerError, TransportError, UsageError
from dcp.position import UNKNOWN_END
from dcp.spark.admission import bytes_per_seqno, limited_ends
from dcp.spark.driver_view import ClusterState, DriverView
from dcp.spark.failures import portable, short_errors, with_short_errors
from dcp.spark.offsets import LoggedPosition, Offset, from_offset, to_offset
from dcp.spark.options import Options
from dcp.spark.planner import Partition, partitions_of, positions, settled_heads
from dcp.spark.ranges import shortened
from dcp.spark.resume import Start, observed, position_after, restart_at, start_at
from dcp.spark.retry import DEFAULTS, OutageTimer, Timing, retry
from dcp.spark.task import read_partition

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Before Spark 4.2.
    SupportsTriggerAvailableNow = object


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
                "option endingOffsets, endingTimestamp: readStream has no end: use trigger(availableNow=True), or "
                "spark.read"
            )
        self._options = options if options.start is not None else replace(options, start="now")
        self._timing = timing
        self._view = DriverView(self._options, timing)
        self._initial: dict[str, Any] | None = None
        self._latest: dict[str, Any] | None = None
        # The state in which nothing was new after an offset, and that offset.
        self._idle: tuple[ClusterState, dict[str, Any]] | None = None
        # High seqnos at which a query with trigger(availableNow=True) ends.
        self._target: dict[int, int] | None = None
        # When minOffsetsPerTrigger began to hold a batch back. -inf: the first batch never waits.
        self._waiting_since = -math.inf
        # Since when nothing is new; None while there is.
        self._idle_since: float | None = None
        # What was observed of positions after their batch, by vbucket: logged with the next batch, or when idle.
        self._observed: dict[int, LoggedPosition] = {}
        # High seqnos of the last observation with persistedOnly.
        self._highs_before: dict[int, int] = {}
        # True while the offset to start from is a guess: Spark before 4.2 does not pass the logged one.
        self._guessed = False
        self._outage = OutageTimer(options.node_timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        # Executors only read: they need nothing of what the driver observed.
        return portable(StreamReader, self._options, self._timing), ()

    @short_errors
    def initialOffset(self) -> dict[str, Any]:
        """Return the offset that a new query starts from. Spark asks twice and needs the same answer."""
        if self._initial is None:
            assert self._options.start is not None
            here = positions(self._view.client, self._options.start, self._options)
            self._initial = to_offset(Offset.of(here, self._options.row_selection))
        return self._initial

    def _start_of_batch(self) -> dict[str, Any]:
        """Return the start offset where Spark passes none: before 4.2.

        A restarted query does not get its logged offset then, and `now` is not where its reader is: nothing is known of
        the reader's state there.
        """
        if self._initial is not None:
            return self._initial
        now = from_offset(self.initialOffset())
        self._initial, self._guessed = None, True
        unknown = (replace(here, until=UNKNOWN_END, floors=()) if here.seqno else here for here in now)
        return to_offset(replace(now, positions=tuple(unknown)))

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

    @short_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the cluster is now: the query ends there."""
        self._target = settled_heads(self._view.client, self._options, self._options.node_timeout).high_seqnos

    @short_errors
    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return where the next batch ends; `start` itself if there is nothing to read, or while no node answers."""
        begin = dict(start or self._latest or self._start_of_batch())
        while True:
            try:
                self._latest = self._next(begin, limit)
                self._outage.answered()
                return self._latest
            except DcpError as error:
                self._outage.failed(error)
            # The same offset again means "nothing new" to Spark, which asks again at the next trigger, but takes it for
            # the end of a query with availableNow.
            if self._target is None:
                return begin
            time.sleep(max(0.0, self._timing.interval))

    def _next(self, begin: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Return where the next batch ends. With failOnDataLoss=false, observe the cluster again after an error."""
        try:
            return self._end_of_batch(begin, self._view.current(), limit)
        except (LocalProtocolError, ServerError) as error:
            if self._options.fail_on_data_loss or error.retriable:
                raise
        # A collection may have been dropped between two queries.
        self._view.hurry()
        return self._end_of_batch(begin, self._view.current(), limit)

    @short_errors
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return, for the progress of the query, each vbucket's high seqno and the number of seqnos yet to be read.

        While nodes are away, that number is unknown; the reason and the duration are reported instead.
        """
        if (problem := self._outage.problem) is not None:
            return {"behind": None, "waiting": {"seconds": round(self._outage.seconds), "problem": str(problem)}}
        state = self._view.last
        if state is None or self._latest is None:
            return None
        # If the last check found only changes of other collections, there is no backlog.
        idle = self._idle is not None and self._idle == (state, self._latest)
        behind = 0 if idle else sum(from_offset(self._latest).lag(state.highs).values())
        seqnos = {str(vbucket): seqno for vbucket, seqno in sorted(state.highs.items())}
        lagging = {"lagging": self._view.lagging} if self._options.persisted_only else {}
        return {"behind": behind, **lagging, "seqnos": seqnos}

    @short_errors
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of the batch between two offsets. Spark may ask again for a batch that failed."""
        observed = self._view.unused() if end == self._latest else None
        self._view.hurry()
        query = partial(self._state_and_wanted, observed)
        state, wanted = retry(self._view.client, query, self._options.node_timeout)
        ends, ranges = from_offset(end).by_vbucket(), []
        for here in self._view.checked(from_offset(start), state):
            vbucket = here.vbucket
            to = ends.get(vbucket, here)
            if vbucket not in state.vbuckets or to == here or not to.is_read:
                continue
            # A repeated batch may end at a seqno that was lost since.
            if to.persisted and not self._options.persisted_only:
                raise CheckpointError(
                    "option persistedOnly: expected true, as the batch to be repeated was planned with it, found "
                    "false; set it until that batch is done"
                )
            begin = restart_at(here, to, state.vbuckets[vbucket])
            most = min(to.seqno, state.vbuckets[vbucket].high)
            # The next batch delivers what follows the end in its snapshot. The last batch of availableNow has no next
            # one, and needs the complete snapshot for every key to have its state.
            whole = self._target is not None and to.seqno >= self._target.get(vbucket, 0)
            part = shortened(replace(begin.range(most, self._options), whole=whole), wanted)
            if part.size > 0 or part.undone_from is not None:
                ranges.append(part)
            # The tasks may read snapshots that end after all that the driver has seen so far.
            self._observed.pop(vbucket, None)
        # The tasks now read up to what was observed: the next batch needs a newer observation.
        self._view.hurry()
        found = partitions_of(self._view.client, ranges, self._options.min_partitions, self._view.manifest_uid)
        return [TaskPartition(partition) for partition in found]

    def _state_and_wanted(self, observed: ClusterState | None) -> tuple[ClusterState, dict[int, int]]:
        """Return the state of the cluster, and after it the last seqnos that pass the collection filter.

        observed: state that is new enough; None to observe the cluster.
        """
        state = observed or self._view.current()
        return state, self._view.filtered_highs(state)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, on an executor."""
        if isinstance(partition, TaskPartition):
            rows = read_partition(partition.partition, self._options, followed=True, timing=self._timing)
            yield from with_short_errors(rows)

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
        if self._waits_for_more(begin, state, limit):
            return begin
        here = self._view.checked(from_offset(begin), state)
        starts = {
            position.vbucket: self._start(position, state) for position in here if position.vbucket in state.highs
        }
        ends = self._ends(starts, state)
        new = any(start.has_work(ends[vbucket]) for vbucket, start in starts.items())
        if not new or not self._view.has_changes(starts.values(), state):
            # What waits for a disk is a backlog, and changes of other collections are none.
            waits = not new and any(start.has_work(state.highs[vbucket]) for vbucket, start in starts.items())
            self._idle = None if waits else (state, begin)
            return self._settled(begin, here, starts, state)
        most = self._max_seqnos(starts, ends, state, limit)
        if most is not None:
            # Only ends are limited. Starts stay, so what is cut off is in the next batch.
            ends = limited_ends({vbucket: start.floor.seqno for vbucket, start in starts.items()}, ends, most)
        purged = self._view.purge_seqnos(here)
        if self._guessed:
            # The reader may be anywhere below: its tasks start there, and no floor is known.
            starts, purged = {vbucket: start for vbucket, start in starts.items() if start.has_work(ends[vbucket])}, {}
        self._waiting_since, self._idle_since, self._guessed = time.monotonic(), None, False
        return self._logged(here, starts, ends, state, purged)

    def _ends(self, starts: Mapping[int, Start], state: ClusterState) -> dict[int, int]:
        """Return the last seqno that each vbucket may be read to."""
        target = self._target or {}
        ends = {vbucket: min(high, target.get(vbucket, high)) for vbucket, high in state.highs.items()}
        if not self._options.persisted_only:
            return ends
        wanted = [vbucket for vbucket, start in starts.items() if ends[vbucket] > start.floor.seqno]
        persisted = self._view.persisted_seqnos(state, wanted)
        # A task waits until the disks have the whole snapshot that its end lies in. A disk that lacks what an earlier
        # observation saw would hold up the batch, and other vbuckets with it.
        before, self._highs_before = self._highs_before, state.highs
        slow = {vbucket for vbucket in wanted if persisted[vbucket] < before.get(vbucket, state.highs[vbucket])}
        ready = {
            vbucket: starts[vbucket].floor.seqno if vbucket in slow else min(ends[vbucket], seqno)
            for vbucket, seqno in persisted.items()
        }
        if target and wanted and not any(ready[vbucket] > starts[vbucket].floor.seqno for vbucket in wanted):
            lagging = ", ".join(f"{node} ({count} seqnos)" for node, count in self._view.lagging.items())
            raise TransportError(
                f"vbuckets {format_vbuckets(wanted)}: changes are not on the disk of every copy, as persistedOnly "
                f"requires; behind: {lagging or 'no node owns them'}; check the nodes, or fail them over"
            )
        return ends | ready

    def _start(self, here: LoggedPosition, state: ClusterState) -> Start:
        """Return where the next batch starts in a vbucket, from all that was observed since the last one."""
        known = self._observed.get(here.vbucket)
        if known is not None and (known.seqno, known.vbuuid) == (here.seqno, here.vbuuid):
            here = known
        elif not self._guessed:
            here = self._observed[here.vbucket] = observed(here, state.vbuckets[here.vbucket])
        return start_at(here, state.vbuckets[here.vbucket])

    def _settled(
        self, begin: dict[str, Any], here: Offset, starts: Mapping[int, Start], state: ClusterState
    ) -> dict[str, Any]:
        """Return an offset with all that was observed of its positions; `begin` itself while it is too early for that.

        Its batch has no rows. Without it, the next run would not know that the last batch ended at ends of snapshots,
        and a failover in between would make it read that batch again.
        """
        if self._idle_since is None:
            self._idle_since = time.monotonic()
        early = self._target is None and time.monotonic() - self._idle_since < self._timing.settling
        if early or self._guessed or any(start.undone_from is not None for start in starts.values()):
            return begin
        return self._logged(here, starts, {vbucket: start.floor.seqno for vbucket, start in starts.items()}, state, {})

    def _logged(
        self,
        here: Offset,
        starts: Mapping[int, Start],
        ends: Mapping[int, int],
        state: ClusterState,
        purged: Mapping[int, int],
    ) -> dict[str, Any]:
        """Return the offset after a batch."""
        persisted = self._options.persisted_only
        after = (
            position_after(starts[vbucket], ends[vbucket], state.vbuckets[vbucket], purged.get(vbucket), persisted)
            if (vbucket := position.vbucket) in starts
            else position
            for position in here
        )
        return to_offset(Offset(here.identity, tuple(after), self._options.row_selection))

    def _max_seqnos(
        self, starts: Mapping[int, Start], ends: Mapping[int, int], state: ClusterState, limit: Any
    ) -> int | None:
        """Return how many seqnos the batch may have; None without a limit."""
        rows = getattr(limit, "max_rows", None)
        # Spark passes one limit only. Where that is maxOffsetsPerTrigger, maxBytesPerTrigger comes from the options.
        size = getattr(limit, "max_bytes", self._options.max_bytes if rows else None)
        if size is None:
            return rows
        ranges = [start.range(ends[vbucket], self._options) for vbucket, start in starts.items()]
        each = bytes_per_seqno(self._view.client, self._options, ranges)
        limits = [rows, max(1, int(size / each)) if each else None]
        return min((most for most in limits if most is not None), default=None)


def _read_limit(name: str, *arguments: int) -> Any:
    """Return a limit of Spark 4.2 and newer. Older versions never ask for one."""
    from pyspark.sql.streaming import datasource as limits

    return getattr(limits, name)(*arguments)
