"""Contenders that take turns, so that what else the machine does befalls all of them."""

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
    """How long a contender took, each time, for how many rows of how many bytes on the wire."""

    nanoseconds: list[int]
    rows: int
    bytes: int

    @property
    def best(self) -> float:
        """Nanoseconds a row. Noise only ever adds, so the least is what comes closest to the code alone."""
        return min(self.nanoseconds) / self.rows

    @property
    def throughput(self) -> float:
        """GB/s of wire."""
        return self.bytes / min(self.nanoseconds)

    @property
    def noise(self) -> float:
        """How much longer than the least the median took."""
        return median(self.nanoseconds) / min(self.nanoseconds) - 1


@dataclass(frozen=True)
class Measurement:
    """One case of a benchmark."""

    bench: str
    case: Case
    samples: Mapping[str, Sample] = field(default_factory=dict)

    def speed(self, contender: str, other: str) -> float | None:
        """How many times as fast as the other a contender was: the median over neighbours in time.

        Each at its best would say who was lucky, where a machine is at times much faster than at others.
        """
        ratios = self._ratios(contender, other)
        return median(ratios) if ratios else None

    def range(self, contender: str, other: str) -> tuple[float, float] | None:
        """The quartiles of `speed`."""
        ratios = self._ratios(contender, other)
        if len(ratios) < 2:
            return (ratios[0], ratios[0]) if ratios else None
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        return low, high

    def _ratios(self, contender: str, other: str) -> list[float]:
        if contender not in self.samples or other not in self.samples:
            return []
        one, two = self.samples[contender], self.samples[other]
        pairs = zip(two.nanoseconds, one.nanoseconds, strict=True)
        return [(slow / two.rows) / (fast / one.rows) for slow, fast in pairs]


def take_turns(contenders: Mapping[str, Contender], repetitions: int) -> dict[str, list[int]]:
    """Nanoseconds of each contender, each time. The first turn, which only warms up, is not among them."""
    found: dict[str, list[int]] = {name: [] for name in contenders}
    with _no_garbage_collection():
        for turn in range(repetitions + 1):
            # Every other turn goes backwards: nobody always comes after the same neighbour.
            for name in list(contenders)[:: 1 if turn % 2 else -1]:
                start = perf_counter_ns()
                contenders[name]()
                if turn:
                    found[name].append(perf_counter_ns() - start)
    return found


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
