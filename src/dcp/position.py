"""Positions of streams: the failover log of a vbucket, the position to resume from, and how it advances."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from dcp.errors import RemoteProtocolError, UsageError
from dcp.json_reader import MAX_U64

# End of a snapshot without an announced end. A position with it is inside its snapshot.
UNKNOWN_END = MAX_U64

# Servers keep 25 entries of a failover log.
MOST_BRANCHES = 25


class Branch(NamedTuple):
    """One history of a vbucket. It began when the vbucket was at `seqno`."""

    vbuuid: int
    seqno: int


@dataclass(frozen=True, slots=True)
class FailoverLog:
    """Histories (vbuuids) of one vbucket, newest first. A failover starts a new one.

    branches: (vbuuid, seqno) pairs; `seqno` is the vbucket's high seqno when the history began. The oldest
        history usually began at 0.

    Two logs tell up to which seqno two nodes, or a node and a consumer, have the same changes: see `common`.
    """

    branches: tuple[Branch, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> FailoverLog:
        """Return the log of these (vbuuid, seqno) pairs, newest first."""
        return cls(tuple(map(Branch._make, pairs)))

    def __iter__(self) -> Iterator[Branch]:
        return iter(self.branches)

    def __len__(self) -> int:
        return len(self.branches)

    @property
    def newest(self) -> Branch:
        """Current history. IndexError if the log is empty."""
        return self.branches[0]

    def begin(self, vbuuid: int, seqno: int) -> FailoverLog:
        """Return the log with a new history that begins at `seqno`. Histories that began later are dropped."""
        kept = self.cut(seqno).branches[: MOST_BRANCHES - 1]
        return FailoverLog((Branch(vbuuid, seqno), *kept))

    def cut(self, seqno: int) -> FailoverLog:
        """Return the log as it is after a rollback to `seqno`: without the histories that began above it."""
        return FailoverLog(tuple(branch for branch in self.branches if branch.seqno <= seqno))

    def end_of(self, vbuuid: int, high_seqno: int) -> int | None:
        """Return the seqno at which a history ended: the start of the next newer one.

        The newest history ends at `high_seqno`. None if the log has no such vbuuid. If it has the vbuuid twice,
        the older entry counts.
        """
        end = None
        upper = high_seqno
        for branch in self.branches:
            if branch.vbuuid == vbuuid:
                end = upper
            upper = branch.seqno
        return end

    def common(self, other: FailoverLog) -> int:
        """Return the seqno up to which both logs have the same history; 0 if they share none."""
        # Newest first: the first shared vbuuid is the newest one that both have.
        for branch in other.branches:
            end = self.end_of(branch.vbuuid, MAX_U64)
            if end is not None:
                return min(end, other.end_of(branch.vbuuid, MAX_U64) or 0)
        return 0


NO_LOG = FailoverLog(())


class ResumePoint(NamedTuple):
    """Fields of a stream request that say where the consumer is, under the names they have on the wire."""

    start_seqno: int
    vbuuid: int
    snapshot_start: int
    snapshot_end: int


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Position of a consumer in one vbucket: it has everything up to `seqno` of the history `vbuuid`.

    vbucket: number of the vbucket.
    vbuuid: newest history that contains `seqno`; 0 at the beginning.
    seqno: last seqno that the consumer has.
    snapshot_start, snapshot_end: window of the snapshot that `seqno` lies in, both equal to `seqno` where the
        snapshot is complete. Default 0. An unknown window is 0 to UNKNOWN_END.
    manifest_uid: newest collections manifest that the stream reported; 0 if none.
    purge_seqno: newest purge seqno that the node reported; 0 if none.
    failover_log: histories that the node reported when it accepted the stream.
    marks: seqnos below `seqno` at which snapshots ended, newest first. A consumer that goes back to a seqno
        between two marks lacks versions there, too, so a rollback ends on a mark.

    The window belongs to the position. Inside a snapshot the consumer lacks versions that newer ones of the same
    snapshot replaced; after a failover that lost the end of the window, only its start is safe to go back to.

    Raises UsageError if `seqno` lies outside the window, or `marks` are not in order.
    """

    vbucket: int
    vbuuid: int = 0
    seqno: int = 0
    snapshot_start: int = 0
    snapshot_end: int = 0
    manifest_uid: int = 0
    purge_seqno: int = 0
    failover_log: FailoverLog = NO_LOG
    marks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.snapshot_start <= self.seqno <= self.snapshot_end <= MAX_U64:
            raise UsageError(
                f"vbucket {self.vbucket}: expected a seqno inside its snapshot, "
                f"found {self.seqno} and {self.snapshot_start} to {self.snapshot_end}"
            )
        marks = self.marks
        if marks and any(newer <= older for newer, older in zip((self.seqno + 1, *marks), marks, strict=False)):
            raise UsageError(
                f"vbucket {self.vbucket}: expected marks up to {self.seqno}, newest first, found {self.marks}"
            )

    @property
    def complete(self) -> bool:
        """True if `seqno` is the end of its snapshot: the consumer's state is consistent."""
        return self.seqno == self.snapshot_end

    @property
    def history(self) -> FailoverLog:
        """Failover log of the position, with the position's own vbuuid in it."""
        if not self.vbuuid or any(branch.vbuuid == self.vbuuid for branch in self.failover_log):
            return self.failover_log
        return FailoverLog.of([(self.vbuuid, 0)])

    def resume_point(self) -> ResumePoint:
        """Return what a stream request has to say to resume here.

        With an unknown window the node answers with a rollback to 0.
        """
        if self.seqno == 0:
            # At the beginning there is no history to compare, so none is named.
            return ResumePoint(0, 0, 0, 0)
        return ResumePoint(self.seqno, self.vbuuid, self.snapshot_start, self.snapshot_end)

    def accepted(self, log: FailoverLog) -> StreamPosition:
        """Return the position after the node accepted the stream and reported its failover log.

        Raises RemoteProtocolError if the log is empty.
        """
        if not log.branches:
            raise RemoteProtocolError(f"vbucket {self.vbucket}: expected a failover log of 1 entry or more, found none")
        # Not `replace`, which takes several times as long: every stream comes here.
        window = self.snapshot_start, self.snapshot_end
        known = self.manifest_uid, self.purge_seqno
        return StreamPosition(self.vbucket, log.newest.vbuuid, self.seqno, *window, *known, log, self.marks)

    def rolled_back(self, seqno: int) -> StreamPosition:
        """Return the position to resume from after the node asked for a rollback to `seqno`.

        It is the highest mark not above `seqno`, or 0 where no such mark is known. Everything above it has to be
        undone. A `seqno` that is not below the position also gives 0: each rollback has to move back, or a broken
        node could ask for rollbacks forever.
        """
        seqno = next((mark for mark in self.marks if mark <= seqno), 0) if seqno < self.seqno else 0
        if seqno == 0:
            return StreamPosition(self.vbucket)
        return replace(
            self,
            vbuuid=next((branch.vbuuid for branch in self.failover_log if branch.seqno <= seqno), self.vbuuid),
            seqno=seqno,
            snapshot_start=seqno,
            snapshot_end=seqno,
            # Purge seqnos of two histories cannot be compared: the same number may stand for other deletions.
            purge_seqno=0,
            failover_log=self.failover_log.cut(seqno),
            marks=tuple(mark for mark in self.marks if mark < seqno),
        )

    def short_of(self, seqno: int) -> StreamPosition:
        """Return the position of a consumer that ignored all changes above `seqno`.

        Its window reaches from the last snapshot end that is not above `seqno`.
        """
        if self.seqno <= seqno:
            return self
        start = next((known for known in (self.snapshot_start, *self.marks) if known <= seqno), 0)
        return replace(self, seqno=seqno, snapshot_start=start, marks=tuple(m for m in self.marks if m <= start))

    def under_older_uuid(self) -> StreamPosition | None:
        """Return the same seqno in the previous history, if the current one began exactly here; else None.

        Worth a request before a rollback to 0: a node that was down during the failover knows only the previous
        history.
        """
        branches = self.failover_log.branches
        if len(branches) < 2 or not self.complete or branches[0] != (self.vbuuid, self.seqno):
            return None
        return replace(self, vbuuid=branches[1].vbuuid, purge_seqno=0, failover_log=FailoverLog(branches[1:]))

    def within(self, seqno: int) -> StreamPosition:
        """Return the part of the position that holds if its history is shared up to `seqno` only."""
        if self.snapshot_end <= seqno:
            return self
        return self.rolled_back(min(seqno, self.seqno if self.complete else self.snapshot_start))


class AnnouncedSnapshot(NamedTuple):
    """A snapshot whose marker arrived, but none of its rows yet."""

    start: int
    end: int
    purge_seqno: int


class Progress(NamedTuple):
    """A position while its stream runs. Every step returns a new Progress.

    position: may be resumed from at any time.
    announced: snapshot whose marker arrived, until its first row arrives.
    first: True until the first marker after the request was accepted.
    disorder: highest seqno of an out-of-order snapshot that has not ended; None outside of one.
    """

    position: StreamPosition
    announced: AnnouncedSnapshot | None = None
    first: bool = True
    disorder: int | None = None

    @property
    def end(self) -> int:
        """Highest seqno that may arrive before the next marker."""
        return self.position.snapshot_end if self.announced is None else self.announced.end

    def accepted(self, log: FailoverLog) -> Progress:
        """Start over from the position: the node accepted a stream request."""
        return Progress(self.position.accepted(log))

    def marker(self, start: int, end: int, purge_seqno: int = 0) -> Progress:
        """Begin a snapshot. A `start` inside the snapshot before continues that one."""
        here = self.position
        if self.disorder is not None or start > end or end < here.seqno:
            self._refuse(f"a snapshot that ends at {here.seqno} or above", f"{start} to {end}")
        known_end = max(here.snapshot_end, self.announced.end if self.announced else 0)
        if not self.first and start > known_end:
            # A node begins the next snapshot only after the end of the one before, even if a filter kept the
            # last rows of that one from this stream. So the snapshot before is complete.
            here = replace(here, snapshot_start=here.seqno, snapshot_end=here.seqno)
        return Progress(here, AnnouncedSnapshot(start, end, purge_seqno or here.purge_seqno), first=False)

    def seen(self, seqno: int) -> Progress:
        """Advance to `seqno`, that of a row or of SEQNO_ADVANCED.

        Of several rows between two markers, one call for the last is enough. Out of order, one call for the
        highest seqno is.
        """
        if self.disorder is not None:
            return self._replace(disorder=max(self.disorder, seqno))
        here = self.position
        start, end, purge_seqno, marks = here.snapshot_start, here.snapshot_end, here.purge_seqno, here.marks
        if self.announced is not None:
            # The window begins at the last seqno at the latest: versions right after it may have been replaced
            # by this snapshot's.
            start = min(self.announced.start, here.seqno if here.complete else start)
            marks = _thinned_marks((here.seqno, *marks) if here.complete else marks, start)
            end, purge_seqno = self.announced.end, self.announced.purge_seqno
        if not here.seqno <= seqno <= end:
            self._refuse(f"a seqno from {here.seqno} to {end}", str(seqno))
        if seqno == end:
            start = seqno
        # Not `replace`, which takes several times as long: streams come here for every control message.
        moved = StreamPosition(
            here.vbucket, here.vbuuid, seqno, start, end, here.manifest_uid, purge_seqno, here.failover_log, marks
        )
        return Progress(moved, None, self.first)

    def with_rows(self, last_seqno: int) -> Progress:
        """Advance to the last row that arrived, if it is new."""
        return self.seen(last_seqno) if last_seqno > self.position.seqno else self

    def passed(self, ends: Sequence[int], start: int, end: int) -> Progress:
        """Advance over snapshots that arrived whole, and begin the next one, from `start` to `end`.

        ends: ends of these snapshots, oldest first; that of the present one is the first. Each snapshot begins after
            the end of the one before.
        """
        here = self.seen(ends[0]).position
        if len(ends) > 1:
            last = ends[-1]
            marks = _thinned_marks((*reversed(ends[:-1]), *here.marks), last)
            here = replace(here, seqno=last, snapshot_start=last, snapshot_end=last, marks=marks)
        return Progress(here, AnnouncedSnapshot(start, end, here.purge_seqno), first=False)

    def manifest(self, uid: int) -> Progress:
        """Record the manifest uid of a system event, unless a newer one is known."""
        return self._replace(position=replace(self.position, manifest_uid=max(uid, self.position.manifest_uid)))

    def disorder_begins(self) -> Progress:
        """Enter an out-of-order snapshot: the position stays where it is until `disorder_ends`."""
        if self.disorder is not None or not self.first:
            self._refuse("an out-of-order snapshot at the beginning only", "another one")
        return self._replace(disorder=0)

    def disorder_ends(self) -> Progress:
        """Leave an out-of-order snapshot: the position moves to its highest seqno, and is complete there."""
        if self.disorder is None:
            self._refuse("the beginning of an out-of-order snapshot", "its end")
        seqno = max(self.disorder, self.position.seqno)
        return Progress(replace(self.position, seqno=seqno, snapshot_start=seqno, snapshot_end=seqno))

    def _refuse(self, expected: str, found: str) -> NoReturn:
        raise RemoteProtocolError(f"vbucket {self.position.vbucket}: expected {expected}, found {found}")


def _thinned_marks(marks: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Return the marks up to `most`, fewer the further back: one for each power of 4 of the distance.

    So a position keeps about 32 marks at most, and a rollback loses little beyond what it has to.
    """
    if not marks:
        return ()
    newest, ascending = marks[0], marks[::-1]
    low, at = bisect_left(ascending, 1), bisect_left(ascending, most + 1)
    kept: list[int] = []
    while low < at:
        power = ((newest - ascending[at - 1]).bit_length() + 1) // 2
        # The oldest mark of this power, in one step: many small snapshots leave a hundred of them.
        at = bisect_left(ascending, newest - 4**power + 1, low, at)
        kept.append(ascending[at])
    return tuple(kept)
