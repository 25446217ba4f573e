"""Resume arithmetic: what to read of one vbucket, and from which position the next read resumes.

Nothing in this module asks the cluster: high seqnos, uuids and purge seqnos are arguments. docs/spark-semantics.md
proves that reads which follow these rules miss nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dcp.errors import RollbackError
from dcp.position import UNKNOWN_END, StreamPosition
from dcp.spark.options import Options

# Number of earlier snapshot ends that a position remembers as rollback targets. It bounds the size of an offset.
_MAX_MARKS = 32


@dataclass(frozen=True, slots=True)
class Range:
    """Seqnos to read of one vbucket: those after `start`, up to and including `end`.

    undone_from: the seqno that the reader had reached, if the cluster has lost the changes between `start` and it;
        the reader has to undo them. None if nothing was lost.
    whole: True to read on to the end of the snapshot that `end` lies in. False to drop the rows after `end`.
    """

    start: StreamPosition
    end: int
    undone_from: int | None = None
    whole: bool = True

    @property
    def vbucket(self) -> int:
        """Number of the vbucket."""
        return self.start.vbucket

    @property
    def size(self) -> int:
        """Number of seqnos in the range."""
        return self.end - self.start.seqno


def range_of(start: StreamPosition, end: int, high: int, uuid: int, options: Options) -> Range:
    """Return the range from `start` to `end`, or the rollback that has to come first.

    high, uuid: the vbucket's high seqno, and the uuid of a history that contains it.
    Raises RollbackError if the vbucket lost changes before `start` and the option onRollback is `fail`.
    """
    if high >= start.seqno:
        return Range(narrowed(start, high, uuid), max(end, start.seqno))
    if options.on_rollback == "fail":
        raise RollbackError(start.vbucket, start.seqno, high)
    return Range(start.rolled_back(high), max(min(end, high), start.rolled_back(high).seqno), start.seqno)


def shortened(part: Range, wanted: Mapping[int, int]) -> Range:
    """Return the range up to the last seqno that passes the collection filter; unchanged where that is unknown.

    wanted: that seqno by vbucket. It must have been queried after the end of the range was, or changes of the filter's
    collections could lie between the two and be skipped.
    """
    return replace(part, end=max(part.start.seqno, min(part.end, wanted.get(part.vbucket, part.end))))


def narrowed(start: StreamPosition, high: int, uuid: int) -> StreamPosition:
    """Replace the unknown window end of a planned position with the vbucket's high seqno.

    Only the tasks saw where the snapshot around a planned end really ended. While the history is still the same, that
    was not above the high seqno of now, so a window up to `high` contains the true one.
    """
    if start.snapshot_end != UNKNOWN_END or not uuid or start.vbuuid != uuid:
        return start
    # At the high seqno itself, nothing can follow in the snapshot: the position is a snapshot's end.
    begin = start.seqno if high == start.seqno else start.snapshot_start
    return replace(start, snapshot_start=begin, snapshot_end=high)


def needs_stream(part: Range, uuid: int) -> bool:
    """True if a task has to open a stream: for new changes, for a rollback, or for a new history.

    A new history counts even at the same seqno: it may have lost changes and received as many others.
    """
    return part.size > 0 or part.undone_from is not None or (part.start.seqno > 0 and part.start.vbuuid != uuid)


def position_after(part: Range, uuid: int, purged: int | None) -> StreamPosition:
    """Return the position from which the read after this range resumes. docs/spark-semantics.md says why it is safe.

    purged: the vbucket's purge seqno, up to which deletions may be missing; None if no node reported it.
    """
    start = part.start
    if part.end and start.vbuuid != uuid:
        # The start may have been rolled back in the new history, so no earlier seqno is known to be whole.
        return StreamPosition(start.vbucket, uuid, part.end, 0, UNKNOWN_END)
    if part.size <= 0:
        return start
    safe = start.seqno if start.complete else start.snapshot_start
    ends = (safe, *start.marks) if start.complete else start.marks
    least = UNKNOWN_END if purged is None else purged
    if safe < least:
        # The node may answer the task with a rollback to 0, and the new rows then lack the versions that were replaced
        # since: the reader's state is whole nowhere before the end of that snapshot.
        safe = 0
    marks = sorted({mark for mark in ends if mark and least <= mark <= safe}, reverse=True)
    return replace(
        start, seqno=part.end, snapshot_start=safe, snapshot_end=UNKNOWN_END, marks=tuple(marks[:_MAX_MARKS])
    )
