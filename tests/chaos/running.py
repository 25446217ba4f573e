"""Run many schedules on all cores, and count their events and failures."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from tests.chaos.killing import Killing
from tests.chaos.schedule import Schedule
from tests.model.schedule import ModelSchedule
from tests.session.world import play as play_in_memory

# Seeds that a process takes at once.
_CHUNK = 48


class Outcome(NamedTuple):
    """Outcome of one seed. `error` is empty if it passed."""

    seed: int
    done: Counter[str]
    error: str = ""


class Failed(Exception):
    """Failure of a schedule, with the steps before it."""


class Kind(NamedTuple):
    """Function that runs one seed, and the number of seeds that share a process."""

    play: Callable[[int], Counter[str]]
    together: int


# Schedules on sockets spend a part of their time waiting, so several share a process.
KINDS = {
    "sockets": Kind(lambda seed: _on_sockets(seed), 6),
    "memory": Kind(lambda seed: Counter(play_in_memory(seed).counts), 1),
    "model": Kind(lambda seed: ModelSchedule(seed).run(), 6),
    "kills": Kind(lambda seed: Killing(seed, 20).run(), 2),
}


def _on_sockets(seed: int) -> Counter[str]:
    steps = list[str]()
    try:
        return Schedule(seed, steps.append).run()
    except Exception as error:
        # Another run may take other ways: much of a schedule depends on the speed of the machine.
        raise Failed("after these steps: " + "; ".join(steps)) from error


def play(kind: str, seed: int) -> Outcome:
    try:
        return Outcome(seed, KINDS[kind].play(seed))
    except Exception:
        return Outcome(seed, Counter(), traceback.format_exc())


def play_all(kind: str, seeds: range) -> Iterator[Outcome]:
    """Run seeds on all cores."""
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    # A forked process would have the locks of this one's threads, but not the threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(len(chunks), os.cpu_count() or 1), context) as pool:
        for outcomes in pool.map(partial(_play_some, kind), chunks):
            yield from outcomes


def _play_some(kind: str, seeds: Iterable[int]) -> list[Outcome]:
    with ThreadPoolExecutor(KINDS[kind].together) as pool:
        return list(pool.map(partial(play, kind), seeds))


def report(done: Counter[str]) -> str:
    """Return a line for each event with its count."""
    width = max(map(len, done), default=0)
    return "\n".join(f"  {name:{width}}  {done[name]:,}" for name in sorted(done))


def failures(kind: str, outcomes: Iterable[Outcome]) -> str:
    """Return the errors of the seeds that failed, each with the command that runs it again; nothing if all passed."""
    options = "--replay" if kind == "sockets" else f"--kind {kind} --count 1"
    return "\n".join(
        f"python -m tests.chaos {options} --seed {outcome.seed}\n{outcome.error}"
        for outcome in sorted(outcomes)
        if outcome.error
    )
