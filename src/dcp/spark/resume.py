"""Resume arithmetic of a stream: where a batch starts to read a vbucket, and what its offset says of it.

As in `ranges`, high seqnos, failover logs and purge seqnos are arguments. docs/spark-semantics.md proves that batches
which follow these rules miss nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from dcp.errors import RollbackError
from dcp.position import MOST_BRANCHES, UNKNOWN_END, FailoverLog, StreamPosition
from dcp.spark.offsets import BEGINNING, Floor, LoggedPosition
from dcp.spark.options import Options
from dcp.spark.ranges import Range

# Floors are kept further apart the further back they are: one for each power of 2**_STEP of the distance. It bounds the
# size of an offset.
_STEP = 8


class ObservedVbucket(NamedTuple):
    """High seqno of a vbucket, and the log of a history that contains it."""

    high: int
    log: FailoverLog

    @property
    def vbuuid(self) -> int:
        """Present history."""
        return self.log.newest.vbuuid

    def history_of(self, seqno: int) -> int:
        """Return the oldest history that contains a seqno: the most copies know it."""
        return next((branch.vbuuid for branch in self.log if branch.seqno < seqno), self.vbuuid)

    def is_recent(self, vbuuid: int) -> bool:
        """True if it will be long until a history is dropped from the log."""
        return any(branch.vbuuid == vbuuid for branch in self.log.branches[: MOST_BRANCHES // 2])

    def kept(self, vbuuid: int, seqno: int) -> int:
        """Return the seqno up to which the cluster still has a history that a reader had read up to `seqno`."""
        if vbuuid == self.vbuuid and self.high >= seqno:
            return UNKNOWN_END - 1
        return self.log.end_of(vbuuid, self.high) or 0


class Start(NamedTuple):
    """Start of a batch in one vbucket.

    here: where the reader is, as far as that is known now.
    floor: where the batch resumes: `here` itself, or an earlier seqno, above which the reader has to undo all.
    older: floors below it that hold as well, newest first.
    """

    here: LoggedPosition
    floor: Floor
    older: tuple[Floor, ...] = ()

    @property
    def undone_from(self) -> int | None:
        """Seqno down from which the reader has to undo changes; None if it keeps all."""
        return self.here.seqno if self.floor.seqno < self.here.seqno else None

    def has_work(self, end: int) -> bool:
        """True if a batch up to `end` has something for the reader."""
        return end > self.floor.seqno or self.undone_from is not None

    def range(self, end: int, options: Options) -> Range:
        """Return the range up to `end`. Raises RollbackError if changes are to be undone and onRollback is `fail`."""
        seqno, marks = self.floor.seqno, tuple(floor.seqno for floor in self.older)
        if self.undone_from is not None and options.on_rollback == "fail":
            raise RollbackError(self.here.vbucket, self.here.seqno, seqno)
        # A node that fails over during the batch may lose what is below `until`: the next batch finds that, see docs.
        start = StreamPosition(self.here.vbucket, self.here.vbuuid, seqno, seqno, seqno, marks=marks)
        return Range(start if seqno else StreamPosition(self.here.vbucket), max(end, seqno), self.undone_from)


def start_at(here: LoggedPosition, state: ObservedVbucket) -> Start:
    """Return where a batch after `here` starts. Every attempt of the batch that ends at `here` has to be over."""
    here = observed(here, state)
    kept = state.kept(here.vbuuid, here.seqno)
    candidates = (Floor(here.seqno, here.until), *here.floors)
    return _newest(here, [floor for floor in candidates if floor.until <= kept])


def observed(here: LoggedPosition, state: ObservedVbucket) -> LoggedPosition:
    """Return a position with what an observation of the cluster tells of it, after the batch that ends at it.

    Only the tasks saw where the snapshots of the batch ended. If every copy had them on disk, no failover loses them:
    they are there as long as `here` is. Otherwise they are of the history of `here`, or of a newer one; while there is
    no newer one, they ended below the high seqno of now.
    """
    if here.is_read and here.persisted:
        return replace(here, until=here.seqno, persisted=False)
    if here.is_read and here.vbuuid == state.vbuuid and here.seqno <= state.high:
        return replace(here, until=state.high)
    return here


def restart_at(here: LoggedPosition, end: LoggedPosition, state: ObservedVbucket) -> Start:
    """Return where an attempt of the batch from `here` to `end`, which are logged, starts.

    No attempt may go back further than the floors of `end` that hold: later batches rely on them.
    """
    start = start_at(here, state)
    kept = state.kept(end.vbuuid, end.seqno)
    most = min(here.seqno, end.seqno)
    floors = [floor for floor in end.floors if floor.seqno <= most and floor.until <= kept]
    if start.floor.seqno <= most and (not floors or start.floor.seqno >= floors[0].seqno):
        return start
    return _newest(replace(start.here, vbuuid=end.vbuuid), floors)


def position_after(
    start: Start, end: int, state: ObservedVbucket, purged: int | None, persisted: bool = False
) -> LoggedPosition:
    """Return the position after a batch from `start` to `end`.

    purged: the vbucket's purge seqno, up to which deletions may be missing; None if no node reported it.
    persisted: True if the tasks deliver only what every copy has on disk.
    """
    here = start.here
    if not start.has_work(end):
        # An older history is in the logs of more copies, until it is dropped from them.
        vbuuid = here.vbuuid if state.is_recent(here.vbuuid) else state.vbuuid
        # Most vbuckets stay as they are, and making 1,000 positions anew takes a millisecond or two.
        same = (here.vbuuid, here.until, here.floors) == (vbuuid, start.floor.until, start.older)
        if same or not here.seqno:
            return here
        return replace(here, vbuuid=vbuuid, until=start.floor.until, floors=start.older)
    # The node may answer a task that starts below the purge seqno with a rollback to 0, and the new rows then lack the
    # versions that were replaced since: the reader's state is whole nowhere before the end of that snapshot.
    floors = [floor for floor in (start.floor, *start.older) if purged is not None and floor.seqno >= purged]
    end = max(end, start.floor.seqno)
    # What a task reads beyond `end` is of the present history, unless that is on every disk as well.
    vbuuid = state.history_of(end) if persisted else state.vbuuid
    return LoggedPosition(here.vbucket, vbuuid, end, UNKNOWN_END, _thinned(end, floors), persisted)


def _newest(here: LoggedPosition, floors: list[Floor]) -> Start:
    if not floors:
        return Start(here, BEGINNING)
    return Start(here, floors[0], tuple(floor for floor in floors[1:] if floor.seqno < floors[0].seqno))


def _thinned(seqno: int, floors: Iterable[Floor]) -> tuple[Floor, ...]:
    """Return the newest floor, and of the others the oldest one for each power of the distance."""
    newest, *others = [floor for floor in floors if floor.seqno] or [BEGINNING]
    kept = {(seqno - floor.seqno).bit_length() // _STEP: floor for floor in others}
    return tuple(floor for floor in (newest, *kept.values()) if floor.seqno)
