"""Models of a vbucket on its producer and of a reader, for the rules of resuming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from dcp.embedded.rollback import Resume, rollback_point
from dcp.position import FailoverLog, Progress, StreamPosition
from dcp.spark.ranges import Range

KEYS = st.lists(st.sampled_from("abc"), max_size=4)
LOSSES = st.none() | st.integers(0, 5)


@dataclass
class ModelVbucket:
    """Model of a vbucket on its producer: at each seqno the key, and the number of the write."""

    writes: list[tuple[str, int]] = field(default_factory=list)
    log: FailoverLog = field(default_factory=lambda: FailoverLog.of([(1, 0)]))
    count: int = 0

    def write(self, key: str) -> None:
        self.count += 1
        self.writes.append((key, self.count))

    def change(self, keys: list[str], lose: int | None) -> None:
        """Write keys, and then fail over with the loss of some writes; None is no failover."""
        for key in keys:
            self.write(key)
        if lose is not None:
            self.count += 1
            del self.writes[max(0, len(self.writes) - lose) :]
            self.log = self.log.begin(1000 + self.count, len(self.writes))

    @property
    def high(self) -> int:
        return len(self.writes)

    def state_at(self, seqno: int) -> dict[str, int]:
        return dict(self.writes[:seqno])


@dataclass
class ModelReader:
    """Model of a reader: keeps rows, and undoes them as rollbacks demand."""

    rows: dict[int, tuple[str, int]] = field(default_factory=dict)

    def undo(self, above: int) -> None:
        self.rows = {seqno: row for seqno, row in self.rows.items() if seqno <= above}

    @property
    def state(self) -> dict[str, int]:
        return {key: write for _, (key, write) in sorted(self.rows.items())}

    def read(
        self, part: Range, vbucket: ModelVbucket, snapshot: int, between: Callable[[], object] = lambda: None
    ) -> int:
        """Read a range as a task does. Return the seqno that the reader reached.

        snapshot: largest size of a snapshot. between: called after each snapshot, as by a node that fails then.
        """
        if part.undone_from is not None:
            self.undo(part.start.seqno)
        here = self._resumed(part.start, vbucket)
        while here.seqno < min(part.end, vbucket.high):
            end = min(here.seqno + snapshot, vbucket.high)
            newest = {key: seqno for seqno, (key, _) in enumerate(vbucket.writes[:end], 1) if seqno > here.seqno}
            progress = Progress(here).accepted(vbucket.log).marker(here.seqno, end)
            for seqno in sorted(newest.values()):
                progress = progress.seen(seqno)
                if part.whole or seqno <= part.end:
                    self.rows[seqno] = vbucket.writes[seqno - 1]
            here = progress.position
            between()
            here = self._resumed(here, vbucket)
        return here.seqno

    def _resumed(self, here: StreamPosition, vbucket: ModelVbucket) -> StreamPosition:
        """Return the position from which the producer accepts a stream."""
        while (back := rollback_answer(here, vbucket)) is not None:
            here = here.rolled_back(back)
            self.undo(here.seqno)
        return here


def rollback_answer(position: StreamPosition, vbucket: ModelVbucket) -> int | None:
    """Return the seqno that the producer orders a stream from a position back to; None if it accepts the request."""
    request = position.resume_point()
    resume = Resume(request.start_seqno, request.vbuuid, request.snapshot_start, request.snapshot_end)
    return rollback_point(resume, vbucket.log, vbucket.high, 0)
