"""Times to seqnos: the position of each vbucket at a moment, found by bisection instead of reading everything.

A vbucket's hybrid clock gives each change a higher CAS than all changes of its own before it, whatever other clocks
say. The first change at or after a moment is therefore found by bisection: a probe is a short stream without values.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

log = logging.getLogger("dcp.client")

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# A CAS is nanoseconds since 1970, whose low 16 bits are a logical counter within a tick of the clock.
_LOGICAL_BITS = 0xFFFF
# Seqnos that a probe reads, and the factor by which the next one is wider after a probe without a change.
_PROBE_WIDTH, _WIDER = 64, 8


class ProbedChange(NamedTuple):
    """One change as a probe sees it."""

    seqno: int
    cas: int


class SeqnoSpan(NamedTuple):
    """Seqnos above `start`, up to `end`."""

    start: int
    end: int


# Streams spans of vbuckets. The result has None for a vbucket whose node asks for a rollback from the span's start.
Probe = Callable[[Mapping[int, SeqnoSpan]], Mapping[int, "list[ProbedChange] | None"]]


class TimePosition(NamedTuple):
    """Position of a vbucket at a moment: every change up to `seqno` is older.

    how: `probed`; `beginning` or `end` if no change is older or newer; `purged` if the moment may be before the last
    purged deletion. No stream can begin at the `seqno` of `purged`, only at the beginning, and deletions made since
    the moment may be missing.
    """

    seqno: int
    how: str


TimePositions = Mapping[int, TimePosition]


def lowest_cas(moment: datetime) -> int:
    """Return the lowest CAS of a change made at a moment or later."""
    nanoseconds = (moment - EPOCH) // timedelta(microseconds=1) * 1000
    return (nanoseconds + _LOGICAL_BITS) & ~_LOGICAL_BITS


def find_positions(probe: Probe, cas: int, high_seqnos: Mapping[int, int]) -> dict[int, TimePosition]:
    """Return the position of each vbucket before the first change of at least `cas`.

    All vbuckets are probed at once, so the number of rounds is that of the slowest search.
    """
    searches = {vbucket: VbucketSearch(cas, high) for vbucket, high in high_seqnos.items()}
    rounds = 0
    while pending := {vbucket: search for vbucket, search in searches.items() if search.result is None}:
        rounds += 1
        for vbucket, seen in probe({vbucket: search.span for vbucket, search in pending.items()}).items():
            searches[vbucket].learn(seen)
    found = {vbucket: search.result for vbucket, search in searches.items() if search.result is not None}
    ways = ", ".join(f"{count} {how}" for how, count in Counter(position.how for position in found.values()).items())
    moment = EPOCH + timedelta(microseconds=cas // 1000)
    log.info("found %d vbuckets at %s in %d rounds of probes: %s", len(found), moment.isoformat(), rounds, ways)
    return found


@dataclass
class VbucketSearch:
    """Bisection of one vbucket.

    Invariant: every change up to `low` is older than `cas`, and the change after `high`, if there is one, is not.
    """

    cas: int
    high: int
    low: int = 0
    width: int = _PROBE_WIDTH
    # True if a node asked for a rollback from `low`: deletions above it were purged.
    purged: bool = False
    result: TimePosition | None = None

    def __post_init__(self) -> None:
        self._high_seqno = self.high
        if not self.high:
            self.result = TimePosition(0, "beginning")

    @property
    def span(self) -> SeqnoSpan:
        """Span to probe next. An empty one, at the end, asks whether a stream may begin at the seqno that was found."""
        if self.low >= self.high:
            return SeqnoSpan(self.high, self.high)
        # A start that was refused is not tried again: a later one may be accepted.
        from_low = self.high - self.low <= self.width and not self.purged
        start = self.low if from_low else (self.low + self.high) // 2
        return SeqnoSpan(start, min(start + self.width, self.high))

    def learn(self, seen: Iterable[ProbedChange] | None) -> None:
        """Narrow the search by what a probe of `span` saw; None for a rollback."""
        start, end = self.span
        if seen is None:
            if start == end or (start == self.low and self.purged):
                self.result = TimePosition(self.high, "purged")
            self.low, self.purged = start, True
        elif start == end:
            how = "end" if start == self._high_seqno else "probed" if start else "beginning"
            self.result = TimePosition(start, how)
        else:
            self._narrow(start, end, [change for change in seen if start < change.seqno <= end])

    def _narrow(self, start: int, end: int, seen: list[ProbedChange]) -> None:
        older = next((index for index, change in enumerate(seen) if change.cas >= self.cas), len(seen))
        if older < len(seen):
            self.high = seen[older].seqno - 1 if older else start
        elif not seen and end == self.high:
            # The span has no changes at all: beginning after it is the same as beginning before it.
            self.high = start
        elif not seen:
            self.width *= _WIDER
        if older:
            # All changes before an older one are older, too.
            self.low, self.purged = min(end, self.high), False
