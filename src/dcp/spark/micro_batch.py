"""`spark.readStream.format("dcp")`: each micro-batch is a planned read that goes on from the one before.

docs/spark-semantics.md says why nothing is missed although Spark logs the end of a batch before its tasks run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

import dcp
from dcp.client import Client
from dcp.client.dialects import TAP
from dcp.errors import LocalProtocolError, TransportError
from dcp.position import StreamPosition
from dcp.spark.offsets import Positions, from_offset, to_offset
from dcp.spark.options import Options
from dcp.spark.planner import (
    Range,
    divide,
    narrowed,
    newest,
    owners_of,
    position_after,
    positions,
    range_of,
)
from dcp.spark.share import Share
from dcp.spark.task import rows

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # Before Spark 4.2.
    SupportsTriggerAvailableNow = object

log = logging.getLogger("dcp.spark")

# Spark asks about 90 times a second whether there is something new.
_FRESH = 1.0
# How long the driver does without nodes.
_PATIENCE = 60.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Made on the driver, where it keeps a client, and for the executors, where only `read` is called."""

    def __init__(self, options: Options) -> None:
        if options.dialect == TAP:
            raise LocalProtocolError("readStream: TAP numbers no changes, so no batch can go on from another: use read")
        self._options = options if options.start is not None else replace(options, start="now")
        self._client: Client | None = None
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] | None = None
        self._seen: tuple[float, dict[int, int], dict[int, int]] | None = None
        self._target: dict[int, int] | None = None
        # Positions that turned out to be ends of snapshots.
        self._whole: Positions = {}
        self._unreachable_since: float | None = None

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks twice, and has to get the same.
        if self._first is None:
            assert self._options.start is not None
            self._first = to_offset(positions(self._connected(), self._options.start, self._options))
        return self._first

    def getDefaultReadLimit(self) -> Any:
        most = self._options.max_offsets
        return _limit("ReadMaxRows", most) if most else _limit("ReadAllAvailable")

    def prepareForTriggerAvailableNow(self) -> None:
        self._target, _ = newest(self._connected(), self._options)

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        begin = start or self._last or self.initialOffset()
        try:
            highs, uuids = self._newest()
            self._unreachable_since = None
        except TransportError as error:
            self._unreachable_since = self._unreachable_since or time.monotonic()
            if time.monotonic() - self._unreachable_since > _PATIENCE:
                raise
            log.warning("%s; trying again", error)
            return dict(begin)
        ends = highs
        if self._target is not None:
            ends = {vbucket: min(high, self._target.get(vbucket, high)) for vbucket, high in highs.items()}
        starts = from_offset(begin)
        most = getattr(limit, "max_rows", None)
        if most is not None:
            ends = limited(starts, ends, most)
        self._last = to_offset(self._after(here, ends, highs, uuids) for here in starts.values())
        return self._last

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        # What the tasks of the batch before saw is not above what is asked for now.
        self._seen = None
        highs, uuids = self._newest()
        ends = from_offset(end)
        ranges = []
        for vbucket, here in from_offset(start).items():
            if vbucket not in highs or ends.get(vbucket, here) == here:
                continue
            to = ends[vbucket].seqno
            # An end below the start was planned when the vbucket had no more than that; what came since is for
            # later. A batch that is read again may end at what was lost since.
            high = min(to, highs[vbucket]) if to < here.seqno else highs[vbucket]
            ranges.append(self._range(here, min(to, high), high, uuids[vbucket]))
            # The tasks may go further than what has been seen of the end so far.
            self._whole.pop(vbucket, None)
        self._seen = None
        found = divide(ranges, owners_of(self._connected(), ranges), self._options.min_partitions or 1)
        return [Share(partition) for partition in found]

    def read(self, share: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(share, Share):
            yield from rows(share.partition, self._options)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Positions are in Spark's checkpoint only."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Client:
        if self._client is None:
            self._client = dcp.connect(self._options.login.into(self._options.url))
        return self._client

    def _newest(self) -> tuple[dict[int, int], dict[int, int]]:
        """High seqnos, and then uuids, as in every plan; no older than since the last batch was planned."""
        if self._seen is None or time.monotonic() - self._seen[0] > _FRESH:
            self._seen = time.monotonic(), *newest(self._connected(), self._options)
        return self._seen[1], self._seen[2]

    def _range(self, start: StreamPosition, end: int, high: int, uuid: int) -> Range:
        whole = self._whole.get(start.vbucket)
        known = whole if whole is not None and (whole.seqno, whole.vbuuid) == (start.seqno, start.vbuuid) else start
        return range_of(known, end, high, uuid, self._options)

    def _after(
        self, start: StreamPosition, ends: Mapping[int, int], highs: Mapping[int, int], uuids: Mapping[int, int]
    ) -> StreamPosition:
        """The same as `start` where there is nothing new: else Spark would run an empty batch."""
        if start.vbucket not in highs:
            return start
        high, uuid = highs[start.vbucket], uuids[start.vbucket]
        if high == start.seqno:
            self._whole[start.vbucket] = narrowed(start, high, uuid)
            return start
        part = self._range(start, ends[start.vbucket], high, uuid)
        return position_after(part, uuid) if part.size > 0 or part.undone_from is not None else start


def limited(starts: Positions, highs: Mapping[int, int], most: int) -> dict[int, int]:
    """Ends such that about `most` seqnos lie between, each vbucket having its share of what is left."""
    left = {vbucket: max(0, high - starts[vbucket].seqno) for vbucket, high in highs.items() if vbucket in starts}
    total = sum(left.values())
    if total <= most:
        return dict(highs)
    return {vbucket: highs[vbucket] - rest + min(rest, -(-most * rest // total)) for vbucket, rest in left.items()}


def _limit(name: str, *arguments: int) -> Any:
    """A limit in the words of Spark 4.2 and newer; older ones never ask."""
    from pyspark.sql.streaming import datasource as limits

    return getattr(limits, name)(*arguments)
