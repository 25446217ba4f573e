"""Many schedules at once, on all cores: what happened, and which of them failed."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import NamedTuple

from tests.chaos.schedule import Schedule

# Schedules wait for a part of their time: so many of them share a process.
_TOGETHER = 6
_CHUNK = 48


class Outcome(NamedTuple):
    """What came of a seed. `error` is empty if all went well."""

    seed: int
    done: Counter[str]
    error: str = ""


def play(seed: int) -> Outcome:
    schedule = Schedule(seed)
    try:
        schedule.run()
    except Exception:
        return Outcome(seed, schedule.done, traceback.format_exc())
    return Outcome(seed, schedule.done)


def play_all(seeds: range) -> Iterator[Outcome]:
    """In any order."""
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    # A copy of this process would have its threads' locks, and not its threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(len(chunks), os.cpu_count() or 1), context) as pool:
        for outcomes in pool.map(_play_some, chunks):
            yield from outcomes


def _play_some(seeds: Iterable[int]) -> list[Outcome]:
    with ThreadPoolExecutor(_TOGETHER) as pool:
        return list(pool.map(play, seeds))


def report(done: Counter[str]) -> str:
    """How often everything happened, a line each."""
    width = max(map(len, done), default=0)
    return "\n".join(f"  {name:{width}}  {done[name]:,}" for name in sorted(done))
