"""Whatever happens, a consumer that goes on from its checkpoint ends up with what the cluster has.

Every schedule is drawn from a seed, which is in the name of the test. CHAOS_SEED is the first, CHAOS_COUNT how many.
"""

from __future__ import annotations

import os

import pytest

from dcp.embedded import Cluster
from tests.chaos.schedule import Schedule

FIRST = int(os.environ.get("CHAOS_SEED", "0"))
COUNT = int(os.environ.get("CHAOS_COUNT", "25"))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_no_change_is_lost(seed: int) -> None:
    with Cluster(nodes=3, vbuckets=4, replicas=1, seed=seed) as cluster:
        Schedule(seed, cluster).run(60)
