"""Samples of the resources of a process, and the bounds within which they may grow."""

from __future__ import annotations

import csv
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_MIB = 1 << 20
_SELF = Path("/proc/self")


class Usage(NamedTuple):
    """Resources of a process: resident memory in MiB, threads and descriptors."""

    rss: float
    threads: int
    descriptors: int


class Sample(NamedTuple):
    """Resources of the consumers' process at one moment, and the resident memory of the cluster's.

    `lag` is that of the consumer furthest behind, in changes; None while it is unknown.
    """

    seconds: float
    rss: float
    threads: int
    descriptors: int
    lag: int | None
    cluster_rss: float


class Resource(NamedTuple):
    """A resource, and by how much its median in the last quarter may exceed the median in the quarter before."""

    title: str
    unit: str
    bound: float


# Medians, since restarts and faults move all of them up and down. Freed memory that is not given back to the system
# varies by a few MiB.
RESOURCES = {
    "rss": Resource("resident memory of the consumers", "MiB", 16),
    "threads": Resource("threads", "", 3),
    "descriptors": Resource("file descriptors", "", 6),
}
# Samples without a bound: the cluster keeps its documents and their history in memory.
UNBOUNDED = {
    "cluster_rss": Resource("resident memory of the cluster", "MiB", math.inf),
    "lag": Resource("lag of the consumer furthest behind", "changes", math.inf),
}


def usage() -> Usage:
    """Measure this process."""
    pages = int((_SELF / "statm").read_text().split()[1])
    rss = pages * os.sysconf("SC_PAGE_SIZE") / _MIB
    threads, descriptors = (len(list((_SELF / name).iterdir())) for name in ("task", "fd"))
    return Usage(rss, threads, descriptors)


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return a line for each resource that grew beyond its bound over the last half."""
    half, last = len(samples) // 2, len(samples) * 3 // 4
    if last == half:
        return ["too few samples to compare the last quarter with the one before"]
    problems = []
    for field, (title, unit, bound) in RESOURCES.items():
        values = [getattr(each, field) for each in samples]
        before, after = statistics.median(values[half:last]), statistics.median(values[last:])
        if after - before > bound:
            name = f"{title} ({unit})" if unit else title
            problems.append(f"{name}: grew from {before:,.0f} to {after:,.0f}, expected {bound:g} more at most")
    return problems


def summary(samples: Sequence[Sample]) -> Iterator[str]:
    """Yield a line for each resource, and one for the lag."""
    for field, (title, unit, _) in (RESOURCES | UNBOUNDED).items():
        values = [value for each in samples if (value := getattr(each, field)) is not None]
        if values:
            name = f"{title} ({unit})" if unit else title
            yield f"{name}: {values[0]:,.0f} at the start, {values[-1]:,.0f} at the end, {max(values):,.0f} at most"


def write_csv(samples: Sequence[Sample], path: Path) -> None:
    """Write samples with a header; an unknown lag is empty."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(Sample._fields)
        table.writerows(
            (f"{each.seconds:.1f}", f"{each.rss:.2f}", *each[2:-1], f"{each.cluster_rss:.2f}") for each in samples
        )
