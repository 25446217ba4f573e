"""Where a stream stands: histories of vbuckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

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
