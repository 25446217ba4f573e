"""Where a stream stands: histories of vbuckets, and the position that a stream can be resumed from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.json_reader import MAX_U64

# The end of a snapshot of which only the beginning of the vbucket is known to lie before it.
UNKNOWN_END = MAX_U64

# As many as a server keeps.
MOST_BRANCHES = 25


class Branch(NamedTuple):
    """One history of a vbucket: it began when the vbucket was at `seqno`."""

    vbuuid: int
    seqno: int


@dataclass(frozen=True, slots=True)
class FailoverLog:
    """The histories of a vbucket, newest first. The oldest one usually began at 0."""

    branches: tuple[Branch, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> FailoverLog:
        """From (vbuuid, seqno) pairs, newest first."""
        return cls(tuple(Branch(vbuuid, seqno) for vbuuid, seqno in pairs))

    def __iter__(self) -> Iterator[Branch]:
        return iter(self.branches)

    def __len__(self) -> int:
        return len(self.branches)

    @property
    def newest(self) -> Branch:
        return self.branches[0]

    def begin(self, vbuuid: int, seqno: int) -> FailoverLog:
        """A new history from `seqno` on. Histories that began later are abandoned."""
        kept = self.cut(seqno).branches[: MOST_BRANCHES - 1]
        return FailoverLog((Branch(vbuuid, seqno), *kept))

    def cut(self, seqno: int) -> FailoverLog:
        """Without the histories that began above `seqno`: what is left after a rollback to it."""
        return FailoverLog(tuple(branch for branch in self.branches if branch.seqno <= seqno))

    def end_of(self, vbuuid: int, high_seqno: int) -> int | None:
        """Where a history ended: at the start of the next newer one, or not yet; None if it is unknown here.

        The oldest one counts where a uuid is in the log twice.
        """
        end = None
        upper = high_seqno
        for branch in self.branches:
            if branch.vbuuid == vbuuid:
                end = upper
            upper = branch.seqno
        return end

    def common(self, other: FailoverLog) -> int:
        """Up to which seqno both tell the same history; 0 if they share none."""
        for branch in other.branches:
            end = self.end_of(branch.vbuuid, MAX_U64)
            if end is not None:
                return min(end, other.end_of(branch.vbuuid, MAX_U64) or 0)
        return 0


NO_LOG = FailoverLog(())


class ResumePoint(NamedTuple):
    """What a stream request says of the past, under the names of its fields."""

    start_seqno: int
    vbuuid: int
    snapshot_start: int
    snapshot_end: int


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """What a consumer has of one vbucket: everything up to `seqno` of the history `vbuuid`.

    Inside a snapshot it lacks the versions that newer ones of the same snapshot replaced. So the
    window (`snapshot_start`, `snapshot_end`) belongs to the position: after a failover that lost
    the window's end, only its start is safe to go back to. A window that nobody knows is from 0
    to UNKNOWN_END. `marks` are seqnos below at which snapshots ended, newest first: a consumer that
    goes back between two of them lacks versions there, too. `manifest_uid` and `purge_seqno` are
    the last that the producer told; 0 is none.
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
            raise LocalProtocolError(
                f"vbucket {self.vbucket}: expected a seqno inside its snapshot, "
                f"found {self.seqno} and {self.snapshot_start} to {self.snapshot_end}"
            )
        if any(newer <= older for newer, older in zip((self.seqno + 1, *self.marks), self.marks, strict=False)):
            raise LocalProtocolError(
                f"vbucket {self.vbucket}: expected marks up to {self.seqno}, newest first, found {self.marks}"
            )

    @property
    def complete(self) -> bool:
        """Whether no snapshot is half received: the state at `seqno` is consistent."""
        return self.seqno == self.snapshot_end

    @property
    def history(self) -> FailoverLog:
        """The histories it comes from, its own among them."""
        if not self.vbuuid or any(branch.vbuuid == self.vbuuid for branch in self.failover_log):
            return self.failover_log
        return FailoverLog.of([(self.vbuuid, 0)])

    def resume_point(self) -> ResumePoint:
        """What to ask for to go on from here. Where the window is unknown, the answer is a rollback to 0."""
        if self.seqno == 0:
            return ResumePoint(0, 0, 0, 0)
        return ResumePoint(self.seqno, self.vbuuid, self.snapshot_start, self.snapshot_end)

    def accepted(self, log: FailoverLog) -> StreamPosition:
        """The producer took the request, and told its histories."""
        if not log.branches:
            raise RemoteProtocolError(f"vbucket {self.vbucket}: expected a failover log of 1 entry or more, found none")
        return replace(self, vbuuid=log.newest.vbuuid, failover_log=log)

    def rolled_back(self, seqno: int) -> StreamPosition:
        """Back to where the producer said, or to the end of a snapshot below it. What lies above must be undone.

        Where no end is known, and where a seqno leads nowhere back, that is 0: so nothing is lost, and a
        producer cannot ask for ever.
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
            # What another history purged may have the same number.
            purge_seqno=0,
            failover_log=self.failover_log.cut(seqno),
            marks=tuple(mark for mark in self.marks if mark < seqno),
        )

    def short_of(self, seqno: int) -> StreamPosition:
        """The same for who took nothing above `seqno`: that lies in a window from where a snapshot ended below it."""
        if self.seqno <= seqno:
            return self
        start = next((place for place in (self.snapshot_start, *self.marks) if place <= seqno), 0)
        return replace(self, seqno=seqno, snapshot_start=start, marks=tuple(m for m in self.marks if m <= start))

    def under_older_uuid(self) -> StreamPosition | None:
        """The same place in the history before, if this one began right here.

        Worth a request before going back to 0: a node that never heard of the newest history may know the other.
        """
        branches = self.failover_log.branches
        if len(branches) < 2 or not self.complete or branches[0] != (self.vbuuid, self.seqno):
            return None
        return replace(self, vbuuid=branches[1].vbuuid, purge_seqno=0, failover_log=FailoverLog(branches[1:]))

    def within(self, seqno: int) -> StreamPosition:
        """What of it still holds where its history is known to be shared up to `seqno` only."""
        if self.snapshot_end <= seqno:
            return self
        return self.rolled_back(min(seqno, self.seqno if self.complete else self.snapshot_start))
