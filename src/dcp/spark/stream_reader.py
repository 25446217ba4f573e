"""`spark.readStream.format("dcp")`: each micro-batch is a planned read that goes on from the one before.

docs/spark-semantics.md says why nothing is missed although Spark logs the end of a batch before its tasks run.
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
from dcp.client.dialects import TAP
from dcp.errors import LocalProtocolError, ServerError, TransportError
from dcp.position import UNKNOWN_END, StreamPosition
from dcp.spark.admission import bytes_per_seqno, limited
from dcp.spark.driver_view import Lookout, Seen
from dcp.spark.offsets import from_offset, to_offset
from dcp.spark.options import Options
from dcp.spark.planner import (
    Range,
    divide,
    newest,
    owners_of,
    patiently,
    position_after,
    positions,
    range_of,
    shortened,
    worth_asking,
)
from dcp.spark.share import Share
from dcp.spark.task import rows

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Before Spark 4.2.
    SupportsTriggerAvailableNow = object

log = logging.getLogger("dcp.spark")

# How long the driver does without nodes.
_PATIENCE = 60.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Made on the driver, where it keeps a client, and for the executors, where only `read` is called."""

    def __init__(self, options: Options) -> None:
        if options.dialect == TAP:
            raise LocalProtocolError("readStream: TAP numbers no changes, so no batch can go on from another: use read")
        if options.end is not None:
            raise LocalProtocolError(
                "option endingOffsets: readStream has no end: use trigger(availableNow=True), or read"
            )
        self._options = options if options.start is not None else replace(options, start="now")
        self._lookout = Lookout(self._options)
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        # An offset behind which there was nothing new, and when.
        self._idle: tuple[Seen, dict[str, Any]] | None = None
        self._target: dict[int, int] | None = None
        # Since when there has been no batch. The first one waits for nothing.
        self._waits_since = -math.inf
        # Positions that turned out to be ends of snapshots.
        self._whole: dict[int, StreamPosition] = {}
        self._unreachable_since: float | None = None

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks twice, and has to get the same.
        if self._first is None:
            assert self._options.start is not None
            self._first = to_offset(positions(self._lookout.client, self._options.start, self._options))
        return self._first

    def _begin(self) -> dict[str, Any]:
        """Where a query is that nobody has told. Before Spark 4.2 that is one that was started again, and was who knows
        where: an end behind it is one of a window that begins at 0.
        """
        if self._first is not None:
            return self._first
        now = from_offset(self.initialOffset())
        self._first = None
        anywhere = (
            replace(position, snapshot_start=0, snapshot_end=UNKNOWN_END, marks=()) if position.seqno else position
            for position in now
        )
        return to_offset(replace(now, positions=tuple(anywhere)))

    def getDefaultReadLimit(self) -> Any:
        chosen = self._options
        for name, most in (
            ("ReadMaxRows", chosen.max_offsets),
            ("ReadMaxBytes", chosen.max_bytes),
            ("ReadMinRows", chosen.min_offsets),
        ):
            if most:
                return _limit(name, most)
        return _limit("ReadAllAvailable")

    def prepareForTriggerAvailableNow(self) -> None:
        self._target, _ = newest(self._lookout.client, self._options)

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        begin = dict(start or self._last or self._begin())
        try:
            self._last = self._next(begin, limit)
            self._unreachable_since = None
        except TransportError as error:
            self._unreachable_since = self._unreachable_since or time.monotonic()
            if time.monotonic() - self._unreachable_since > _PATIENCE:
                raise
            log.warning("%s; trying again", error)
            return begin
        return self._last

    def _next(self, begin: dict[str, Any], limit: Any) -> dict[str, Any]:
        try:
            return self._after(begin, self._lookout.look(), limit)
        except (LocalProtocolError, ServerError):
            if self._options.fail_on_data_loss:
                raise
        # A collection may have vanished between two questions.
        self._lookout.forget()
        return self._after(begin, self._lookout.look(), limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress of the query: where the cluster is, and how many seqnos lie behind the next batch."""
        seen = self._lookout.seen
        if seen is None or self._last is None:
            return None
        idle = self._idle is not None and self._idle == (seen, self._last)
        behind = 0 if idle else sum(from_offset(self._last).lag(seen.highs).values())
        return {"behind": behind, "seqnos": {str(vbucket): seqno for vbucket, seqno in sorted(seen.highs.items())}}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        # What the tasks of the batch before saw is not above what is asked for now.
        self._lookout.forget()
        seen, wanted = patiently(self._lookout.client, self._look)
        ends = from_offset(end).by_vbucket()
        ranges = []
        for here in self._lookout.checked(from_offset(start), seen):
            vbucket = here.vbucket
            if vbucket not in seen.highs or ends.get(vbucket, here) == here:
                continue
            to, high = ends[vbucket].seqno, seen.highs[vbucket]
            # An end below the start was planned when the vbucket had no more than that; what came since is for
            # later. A batch that is read again may end at what was lost since.
            known = min(to, high) if to < here.seqno else high
            part = self._range(here, min(to, known), known, seen.uuids[vbucket])
            # Behind an end that another batch follows, that one has the changes. The last one has to have the state.
            whole = self._target is not None and to >= self._target.get(vbucket, 0)
            part = shortened(replace(part, whole=whole), wanted)
            if worth_asking(part, seen.uuids[vbucket]):
                ranges.append(part)
            # The tasks may go further than what has been seen of the end so far.
            self._whole.pop(vbucket, None)
        self._lookout.forget()
        found = divide(ranges, owners_of(self._lookout.client, ranges), self._options.min_partitions or 1)
        return [Share(replace(partition, manifest_uid=self._lookout.manifest_uid)) for partition in found]

    def _look(self) -> tuple[Seen, dict[int, int]]:
        seen = self._lookout.look()
        return seen, self._lookout.wanted(seen)

    def read(self, share: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(share, Share):
            yield from rows(share.partition, self._options, followed=True)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Positions are in Spark's checkpoint only."""

    def stop(self) -> None:
        self._lookout.close()

    def _is_early(self, begin: dict[str, Any], seen: Seen, limit: Any) -> bool:
        """Whether more changes are to be waited for. Spark's other limits mean all that there is."""
        least, ours = self._options.min_offsets, ("max_rows", "max_bytes", "min_rows")
        if least is None or self._target is not None or not any(hasattr(limit, name) for name in ours):
            return False
        late = time.monotonic() - self._waits_since >= self._options.max_delay
        return not late and sum(from_offset(begin).lag(seen.highs).values()) < least

    def _after(self, begin: dict[str, Any], seen: Seen, limit: Any) -> dict[str, Any]:
        """Where the next batch ends: at `begin` if there is nothing new, else Spark would run an empty batch."""
        if self._idle == (seen, begin) or self._is_early(begin, seen, limit):
            return begin
        here = self._lookout.checked(from_offset(begin), seen)
        target = self._target or {}
        ends = {vbucket: min(high, target.get(vbucket, high)) for vbucket, high in seen.highs.items()}
        if self._behind(here, ends, seen, {}) == here or not self._lookout.is_for_us(here, seen):
            self._idle = seen, begin
            return begin
        most = self._most(here, ends, seen, limit)
        if most is not None:
            ends = limited(here.by_vbucket(), ends, most)
        self._waits_since = time.monotonic()
        return to_offset(self._behind(here, ends, seen, self._lookout.purged(here)))

    def _most(self, here: Checkpoint, ends: Mapping[int, int], seen: Seen, limit: Any) -> int | None:
        """How many seqnos the batch may have."""
        most = getattr(limit, "max_rows", None)
        size = getattr(limit, "max_bytes", self._options.max_bytes if most else None)
        if size is None:
            return most
        ranges = [
            self._range(start, ends[start.vbucket], seen.highs[start.vbucket], seen.uuids[start.vbucket])
            for start in here
            if start.vbucket in ends
        ]
        each = bytes_per_seqno(self._lookout.client, self._options, ranges)
        mosts = [most, max(1, int(size / each)) if each else None]
        return min((most for most in mosts if most is not None), default=None)

    def _behind(self, here: Checkpoint, ends: Mapping[int, int], seen: Seen, purged: Mapping[int, int]) -> Checkpoint:
        after = (self._position_after(position, ends, seen, purged.get(position.vbucket)) for position in here)
        return replace(here, positions=tuple(after))

    def _position_after(
        self, start: StreamPosition, ends: Mapping[int, int], seen: Seen, purged: int | None
    ) -> StreamPosition:
        if start.vbucket not in seen.highs:
            return start
        high, uuid = seen.highs[start.vbucket], seen.uuids[start.vbucket]
        part = self._range(start, ends[start.vbucket], high, uuid)
        if worth_asking(part, uuid):
            return position_after(part, uuid, purged)
        if high == start.seqno:
            self._whole[start.vbucket] = part.start
        return start

    def _range(self, start: StreamPosition, end: int, high: int, uuid: int) -> Range:
        whole = self._whole.get(start.vbucket)
        known = whole if whole is not None and (whole.seqno, whole.vbuuid) == (start.seqno, start.vbuuid) else start
        return range_of(known, end, high, uuid, self._options)


def _limit(name: str, *arguments: int) -> Any:
    """A limit in the words of Spark 4.2 and newer; older ones never ask."""
    from pyspark.sql.streaming import datasource as limits

    return getattr(limits, name)(*arguments)
