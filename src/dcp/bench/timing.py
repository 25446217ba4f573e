"""Measurement in turns: other load on the machine then affects all contenders alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter_ns

from dcp.bench.frames import Case

Contender = Callable[[], object]


@dataclass(frozen=True)
class Sample:
    """Durations of a contender in ns, one for each repetition, with the rows and wire bytes of a repetition."""

    nanoseconds: list[int]
    rows: int
    bytes: int

    @property
    def best(self) -> float:
        """Nanoseconds per row of the fastest repetition. Noise only adds time, so this is closest to the code's own."""
        return min(self.nanoseconds) / self.rows

    @property
    def throughput(self) -> float:
        """Wire bytes in GB/s of the fastest repetition."""
        return self.bytes / min(self.nanoseconds)

    @property
    def noise(self) -> float:
        """Relative excess of the median over the fastest repetition."""
        return median(self.nanoseconds) / min(self.nanoseconds) - 1


@dataclass(frozen=True)
class Measurement:
    """Results of one case of a benchmark, by contender."""

    bench: str
    case: Case
    samples: Mapping[str, Sample] = field(default_factory=dict)

    def speed(self, contender: str, other: str) -> float | None:
        """Return how many times as fast as the other a contender was: the median over successive pairs.

        The ratio of the fastest repetitions would depend on luck, since a shared machine changes its speed over time.
        """
        ratios = self._ratios(contender, other)
        return median(ratios) if ratios else None

    def range(self, contender: str, other: str) -> tuple[float, float] | None:
        """Return the first and third quartile of `speed`."""
        ratios = self._ratios(contender, other)
        if len(ratios) < 2:
            return (ratios[0], ratios[0]) if ratios else None
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        return low, high

    def _ratios(self, contender: str, other: str) -> list[float]:
        """Return the ratio of each pair."""
        if contender not in self.samples or other not in self.samples:
            return []
        one, two = self.samples[contender], self.samples[other]
        pairs = zip(two.nanoseconds, one.nanoseconds, strict=True)
        return [(slow / two.rows) / (fast / one.rows) for slow, fast in pairs]


def take_turns(contenders: Mapping[str, Contender], repetitions: int) -> dict[str, list[int]]:
    """Measure contenders in turns. Return the durations of each in ns, without the first turn, which warms up."""
    found: dict[str, list[int]] = {name: [] for name in contenders}
    with _no_garbage_collection():
        for turn in range(repetitions + 1):
            # Every other turn is in reverse order, so that none always runs after the same one.
            for name in list(contenders)[:: 1 if turn % 2 else -1]:
                start = perf_counter_ns()
                contenders[name]()
                if turn:
                    found[name].append(perf_counter_ns() - start)
    return found


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn the garbage collector off: it would run in the middle of some repetitions."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
