"""Whatever happens, a consumer that goes on from its checkpoint ends up with what the cluster has.

Every schedule is drawn from a seed. CHAOS_SEED is the first, CHAOS_COUNT how many. What fails can be seen step by
step with `python -m tests.chaos --replay --seed N`.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.chaos.running import play_all
from tests.chaos.schedule import STEPS_OF

FIRST = int(os.environ.get("CHAOS_SEED", "0"))
COUNT = int(os.environ.get("CHAOS_COUNT", "1000"))
# So many in a test: enough for everything to happen in each.
BLOCK = 250


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, BLOCK))
def test_no_change_is_lost(first: int, tally: Counter[str]) -> None:
    seeds = range(first, min(first + BLOCK, FIRST + COUNT))
    outcomes = list(play_all("sockets", seeds))
    for outcome in outcomes:
        tally["schedules"] += 1
        tally.update(outcome.done)
        if outcome.error:
            print(f"seed {outcome.seed}:\n{outcome.error}")
    failed = sorted(outcome.seed for outcome in outcomes if outcome.error)
    assert not failed, f"replay these seeds: {failed}"
    if len(seeds) == BLOCK:
        # It would mean little if nothing had happened.
        assert {name for name in STEPS_OF if not any(outcome.done[name] for outcome in outcomes)} == set()
        assert sum(outcome.done["rollback rows"] for outcome in outcomes) > BLOCK // 10
