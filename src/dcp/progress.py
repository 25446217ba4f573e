"""How a position advances while its stream runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

from dcp.errors import RemoteProtocolError
from dcp.position import FailoverLog, StreamPosition


class Announced(NamedTuple):
    """A snapshot of which only the marker arrived."""

    start: int
    end: int
    purge_seqno: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A position, and what of its stream is not yet part of it. Every step gives a new one.

    `position` may be resumed from at any time. `first`: no marker came since the request was
    accepted. `disorder`: the highest seqno of a snapshot out of order that has not ended.
    """

    position: StreamPosition
    announced: Announced | None = None
    first: bool = True
    disorder: int | None = None

    @property
    def end(self) -> int:
        """The highest seqno that may come before the next marker."""
        return self.position.snapshot_end if self.announced is None else self.announced.end

    def accepted(self, log: FailoverLog) -> Progress:
        """A stream request was answered with success: nothing of an earlier stream is left but the position."""
        return Progress(self.position.accepted(log))

    def marker(self, start: int, end: int, purge_seqno: int = 0) -> Progress:
        """A snapshot begins, or goes on where `start` lies inside the one before it."""
        here = self.position
        if self.disorder is not None or start > end or end < here.seqno:
            self._refuse(f"a snapshot that ends at {here.seqno} or above", f"{start} to {end}")
        known_end = max(here.snapshot_end, self.announced.end if self.announced else 0)
        if not self.first and start > known_end:
            # The snapshot before is complete, whatever of it was not for this stream.
            here = replace(here, snapshot_start=here.seqno, snapshot_end=here.seqno)
        return Progress(here, Announced(start, end, purge_seqno or here.purge_seqno), first=False)

    def seen(self, seqno: int) -> Progress:
        """Everything up to a row arrived, or up to what SEQNO_ADVANCED says.

        Of several rows between two markers the last one suffices; in disorder, the one with the highest seqno.
        """
        if self.disorder is not None:
            return replace(self, disorder=max(self.disorder, seqno))
        here = self.position
        start, end, purge_seqno, marks = here.snapshot_start, here.snapshot_end, here.purge_seqno, here.marks
        if self.announced is not None:
            # Not above the last seqno: versions right behind it may have been replaced by this snapshot's.
            start = min(self.announced.start, here.seqno if here.complete else start)
            marks = _marks((here.seqno, *marks) if here.complete else marks, start)
            end, purge_seqno = self.announced.end, self.announced.purge_seqno
        if not here.seqno <= seqno <= end:
            self._refuse(f"a seqno from {here.seqno} to {end}", str(seqno))
        if seqno == end:
            start = seqno
        moved = replace(here, seqno=seqno, snapshot_start=start, snapshot_end=end, purge_seqno=purge_seqno, marks=marks)
        return Progress(moved, first=self.first)

    def manifest(self, uid: int) -> Progress:
        """A system event told the uid of the manifest."""
        return replace(self, position=replace(self.position, manifest_uid=max(uid, self.position.manifest_uid)))

    def disorder_begins(self) -> Progress:
        """From here to `disorder_ends` rows come in any order: until then the position stays where it is."""
        if self.disorder is not None or not self.first:
            self._refuse("an out-of-order snapshot at the beginning only", "another one")
        return replace(self, disorder=0)

    def disorder_ends(self) -> Progress:
        if self.disorder is None:
            self._refuse("the beginning of an out-of-order snapshot", "its end")
        seqno = max(self.disorder, self.position.seqno)
        return Progress(replace(self.position, seqno=seqno, snapshot_start=seqno, snapshot_end=seqno))

    def _refuse(self, expected: str, found: str) -> NoReturn:
        raise RemoteProtocolError(f"vbucket {self.position.vbucket}: expected {expected}, found {found}")


def _marks(marks: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Those that a snapshot from `most` on leaves standing, the fewer the further back: one for each power of 4."""
    kept = {((marks[0] - mark).bit_length() + 1) // 2: mark for mark in marks if 0 < mark <= most}
    return tuple(sorted(kept.values(), reverse=True))
