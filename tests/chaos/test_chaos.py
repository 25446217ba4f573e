"""Whatever happens, a consumer that resumes from its checkpoint ends up with the documents of the cluster.

Each schedule is drawn from a seed. CHAOS_SEED is the first seed, CHAOS_COUNT the number of schedules. A failure shows
its steps, and the command that runs them again.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.chaos.running import failures, play_all
from tests.chaos.schedule import STEPS_OF

FIRST = int(os.environ.get("CHAOS_SEED", "0"))
COUNT = int(os.environ.get("CHAOS_COUNT", "1000"))
# Schedules of one test: enough for every step to happen.
BLOCK = 250
# Settings and ends that are drawn seldom.
SELDOM = {"tls", "persisted_only, nothing taken back", "out_of_order", "streams 3", "end at checkpoint", "end at time"}


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BLOCK))
def test_no_change_is_lost(first: int, tally: Counter[str]) -> None:
    seeds = range(first, min(first + BLOCK, FIRST + COUNT))
    outcomes = list(play_all("sockets", seeds))
    for outcome in outcomes:
        tally["schedules"] += 1
        tally.update(outcome.done)
    if failed := failures("sockets", outcomes):
        pytest.fail(failed)
    if len(seeds) == BLOCK:
        # Without these events the schedules would prove little.
        assert {
            name for name in STEPS_OF.keys() | SELDOM if not any(outcome.done[name] for outcome in outcomes)
        } == set()
        assert sum(outcome.done["rollback rows"] for outcome in outcomes) > BLOCK // 10
