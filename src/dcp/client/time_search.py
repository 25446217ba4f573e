"""Times as places in a stream: where each vbucket was at a moment, found by probes and not by reading everything.

A vbucket's clock gives every change of its own a higher CAS than all before it, whatever other clocks say. So
the first change at a moment or later is found by bisection: a probe is a short stream without values.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from dcp.checkpoint import Checkpoint
from dcp.errors import LocalProtocolError

log = logging.getLogger("dcp.client")

Time = str | datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# The low bits of a CAS count changes within a tick of the clock.
_LOGICAL = 0xFFFF
# How many seqnos a probe looks at, and how many times more where it finds nothing.
_WIDTH, _WIDER = 64, 8

# A change, as a probe sees it: seqno and CAS.
Seen = tuple[int, int]
# From behind which seqno up to which a vbucket is probed.
Span = tuple[int, int]
# What came of it; None where the producer asked to go back.
Probe = Callable[[Mapping[int, Span]], Mapping[int, list[Seen] | None]]


class Found(NamedTuple):
    """Everything up to `seqno` is older than the moment.

    how: `probed`; `beginning` or `end`, where nothing is older or newer; `purged`, where the moment may be before the
    last deletion that the vbucket has forgotten: no stream begins there but from the beginning, and some deletions
    since the moment may be lost. `seqno` is then the last place that was tried.
    """

    seqno: int
    how: str


Places = Mapping[int, Found]


def tick(name: str, value: object) -> int | None:
    """The lowest CAS at a time or later; None for what is no time but a word or a checkpoint."""
    words = ("beginning", "now") if name == "start" else ("now",)
    if isinstance(value, Checkpoint) or value in words or (value is None and name == "end"):
        return None
    moment = _moment(value)
    if moment is None or moment < _EPOCH:
        accepted = ", ".join(words if name == "start" else ("None", *words))
        raise LocalProtocolError(
            f"{name}: expected {accepted}, a Checkpoint, or a time with its zone such as 2026-11-01T00:00Z, "
            f"found {value!r}"
        )
    nanoseconds = (moment - _EPOCH) // timedelta(microseconds=1) * 1000
    return (nanoseconds + _LOGICAL) & ~_LOGICAL


def _moment(value: object) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
    return value if isinstance(value, datetime) and value.tzinfo is not None else None


def find(probe: Probe, moment: int, highs: Mapping[int, int]) -> dict[int, Found]:
    """Where each vbucket was at a moment. `highs` are the last seqnos."""
    searches = {vbucket: Search(moment, high) for vbucket, high in highs.items()}
    rounds = 0
    while open_ := {vbucket: search for vbucket, search in searches.items() if search.found is None}:
        rounds += 1
        for vbucket, seen in probe({vbucket: search.span for vbucket, search in open_.items()}).items():
            searches[vbucket].answer(seen)
    found = {vbucket: search.found for vbucket, search in searches.items() if search.found is not None}
    ways = ", ".join(f"{count} {how}" for how, count in Counter(place.how for place in found.values()).items())
    log.info("found %d vbuckets at %s by %d rounds of probes: %s", len(found), _said(moment), rounds, ways)
    return found


def _said(moment: int) -> str:
    return (_EPOCH + timedelta(microseconds=moment // 1000)).isoformat()


@dataclass
class Search:
    """One vbucket. The first change that is not older lies behind `low`, and not above the one behind `high`."""

    moment: int
    high: int
    low: int = 0
    width: int = _WIDTH
    # Whether a producer asked to go back from `low`: deletions above it were purged.
    purged: bool = False
    found: Found | None = None

    def __post_init__(self) -> None:
        self._last = self.high
        if not self.high:
            self.found = Found(0, "beginning")

    @property
    def span(self) -> Span:
        """What is to be probed next; at last, whether a stream may begin at the place."""
        if self.low >= self.high:
            return self.high, self.high
        start = self.low if self.high - self.low <= self.width else (self.low + self.high) // 2
        return start, min(start + self.width, self.high)

    def answer(self, seen: Iterable[Seen] | None) -> None:
        start, end = self.span
        if seen is None:
            if start == end or (start == self.low and self.purged):
                self.found = Found(self.high, "purged")
            self.low, self.purged = start, True
        elif start == end:
            self.found = Found(start, "end" if start == self._last else "probed" if start else "beginning")
        else:
            self._learn(start, end, [change for change in seen if start < change[0] <= end])

    def _learn(self, start: int, end: int, seen: list[Seen]) -> None:
        older = next((place for place, (_, cas) in enumerate(seen) if cas >= self.moment), len(seen))
        if older < len(seen):
            self.high = seen[older][0] - 1 if older else start
        elif not seen and end == self.high:
            # To begin behind nothing is the same.
            self.high = start
        elif not seen:
            self.width *= _WIDER
        if older:
            # Everything before a change of this vbucket's own is older, too.
            self.low, self.purged = min(end, self.high), False
