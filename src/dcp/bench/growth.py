"""Time and memory of Spark reads with growing numbers of rows: `python -m dcp.bench.growth`.

Both must not grow per row. A bucket of 10 million documents fits into a small machine: for more rows, the same
partitions are read several times, by the same workers.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import dcp.spark
from dcp.bench.bench_spark import drain, session
from dcp.bench.producer import producing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORED = 10_000_000
_VALUE = 16
_TRIES = 5


def growing(spark: SparkSession, most: int) -> Iterator[tuple[int, float, int]]:
    """Yield rows, ns per row and the peak MiB of a Python worker so far, for powers of ten up to `most`."""
    with producing(1, _VALUE) as url:
        # Warm up: the first read of a session starts the workers.
        drain(dcp.spark.read(spark, url))
    rows = 100_000
    while rows <= most:
        with producing(min(rows, _STORED), _VALUE) as url:
            once = dcp.spark.plan(url, min_partitions=2)
            plan = replace(once, partitions=once.partitions * max(1, rows // _STORED))
            # Starting a job dominates short ones, and varies: take the fastest of several.
            seconds = min(_seconds(spark, plan) for _ in range(1 if rows > _STORED else _TRIES))
            yield rows, seconds * 1e9 / rows, _peak_memory()
        rows *= 10


def _seconds(spark: SparkSession, plan: dcp.spark.Plan) -> float:
    """Return the duration of a read."""
    start = perf_counter()
    drain(dcp.spark.read(spark, plan))
    return perf_counter() - start


def _peak_memory() -> int:
    """Return the peak MiB of any of Spark's Python workers."""
    return max((_peak(process) for process in _descendants(os.getpid()) if _is_worker(process)), default=0)


def _descendants(parent: int) -> Iterator[int]:
    """Yield the process ids of all descendants."""
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in (task / "children").read_text("ascii").split():
            yield int(child)
            yield from _descendants(int(child))


def _is_worker(process: int) -> bool:
    """True for a Python worker of Spark."""
    return b"pyspark.daemon" in Path(f"/proc/{process}/cmdline").read_bytes()


def _peak(process: int) -> int:
    """Return the peak MiB of a process."""
    # VmHWM is the peak resident size in KiB.
    lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Run the measurement and print it."""
    parser = argparse.ArgumentParser(prog="python -m dcp.bench.growth", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000, help="largest number of rows")
    chosen = parser.parse_args()
    with session() as spark:
        for rows, nanoseconds, memory in growing(spark, chosen.rows):
            print(f"{rows:>12,} rows {nanoseconds:8.0f} ns per row {memory:6} MiB per worker", flush=True)


if __name__ == "__main__":
    main()
