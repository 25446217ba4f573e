"""Random failures of cluster, connection and consumer: the consumer always ends up with the cluster's state."""

from __future__ import annotations

from collections import Counter

from tests.session.world import play

SCHEDULES = 150


def test_no_change_is_lost_or_comes_back() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        counts.update(play(seed).counts)
    # Each kind of event happened often enough for the test to mean something.
    assert counts["rows"] > 20 * SCHEDULES
    assert counts["connections"] > 5 * SCHEDULES
    assert counts["StreamRolledBack"] > SCHEDULES // 2
