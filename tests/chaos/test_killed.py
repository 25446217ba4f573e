"""A consumer that is killed at any moment resumes from its last checkpoint and ends up with all documents."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.killing import Killing

# Number of times that each consumer is killed.
KILLS = 7


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_process_resumes(seed: int, tally: Counter[str]) -> None:
    done = Killing(seed, KILLS).run()
    tally.update({f"processes: {name}": count for name, count in done.items()})
    assert done["kills"] == KILLS
    assert done["promote"]
