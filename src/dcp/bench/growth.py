"""Whether rows cost Spark the same however many there are: `python -m dcp.bench.growth`.

A bucket of 10 million documents is what fits into a small machine: more rows are the same partitions again, read by
the same workers.
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
from dcp.bench.bench_spark import drained, session
from dcp.bench.producer import producing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STORED = 10_000_000
_VALUE = 16
_TRIES = 5


def growing(spark: SparkSession, most: int) -> Iterator[tuple[int, float, int]]:
    """Rows, nanoseconds a row, and the most MiB that a worker of Python has needed until then."""
    with producing(1, _VALUE) as url:
        # The first read of a session waits for its workers.
        drained(dcp.spark.read(spark, url))
    rows = 100_000
    while rows <= most:
        with producing(min(rows, _STORED), _VALUE) as url:
            once = dcp.spark.plan(url, min_partitions=2)
            plan = replace(once, partitions=once.partitions * max(1, rows // _STORED))
            # The start of a job is most of a short one, and not of the same length each time.
            seconds = min(_seconds(spark, plan) for _ in range(1 if rows > _STORED else _TRIES))
            yield rows, seconds * 1e9 / rows, _most_memory()
        rows *= 10


def _seconds(spark: SparkSession, plan: dcp.spark.Plan) -> float:
    start = perf_counter()
    drained(dcp.spark.read(spark, plan))
    return perf_counter() - start


def _most_memory() -> int:
    """Of any process that is a worker of Spark's below this one."""
    return max((_peak(process) for process in _below(os.getpid()) if _is_worker(process)), default=0)


def _below(parent: int) -> Iterator[int]:
    for task in Path(f"/proc/{parent}/task").iterdir():
        for child in (task / "children").read_text("ascii").split():
            yield int(child)
            yield from _below(int(child))


def _is_worker(process: int) -> bool:
    return b"pyspark.daemon" in Path(f"/proc/{process}/cmdline").read_bytes()


def _peak(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dcp.bench.growth", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000_000, help="the most of them")
    chosen = parser.parse_args()
    with session() as spark:
        for rows, nanoseconds, memory in growing(spark, chosen.rows):
            print(f"{rows:>12,} rows {nanoseconds:8.0f} ns a row {memory:6} MiB a worker", flush=True)


if __name__ == "__main__":
    main()
