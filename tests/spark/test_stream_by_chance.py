"""Random schedules of writes, failovers and restarts: the rows of a stream agree with the cluster in the end."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from dcp.embedded import Cluster
from dcp.errors import DcpError
from tests.spark.query import ALWAYS_FRESH, MaxRows, Query
from tests.spark.rows import truth

# Steps of a round, in their order, with a probability in tenths.
ROUND = {
    "write": 8,
    "store": 2,
    "lose": 2,
    "plan": 10,
    "write again": 5,
    "store again": 2,
    "lose again": 1,
    "try": 2,
    "restart": 2,
    "finish": 9,
}


class Schedule:
    """Random steps on a cluster and a query."""

    def __init__(self, seed: int, cluster: Cluster) -> None:
        self.random = Random(seed)
        self.cluster = cluster
        # Half of the schedules read one collection while another is written to.
        self.noise = seed % 2 == 1
        cluster.create_collection("_default", "noise")
        self.query = Query(cluster.url, ALWAYS_FRESH, **({"collections": "_default"} if self.noise else {}))
        self.tasks: Sequence[Any] | None = None
        # Number of writes that a failover can lose.
        self.recent = 0
        # True if the batch ends at the present end of the cluster.
        self.up_to_date = False

    def round(self) -> None:
        for name, often in ROUND.items():
            if self.random.random() * 10 < often:
                getattr(self, f"do_{name.split()[0]}")()

    def do_write(self) -> None:
        self.up_to_date = False
        there = self.cluster.truth()
        for _ in range(self.random.randint(1, 6)):
            self.recent += 1
            key = f"key {self.random.randint(0, 9)}"
            if self.noise and self.random.random() < 0.5:
                self.cluster.upsert(key, b"noise", collection="_default.noise")
                continue
            if key.encode() in there and self.random.random() < 0.2:
                self.cluster.delete(key)
                del there[key.encode()]
            else:
                self.cluster.upsert(key, str(self.random.random()))

    def do_lose(self) -> None:
        """Restart the node without its last writes and with a new hischedule."""
        self.up_to_date = False
        self.cluster.crash(0)
        self.cluster.recover(0, lose=self.random.randint(0, min(self.recent, 6)))
        self.recent = 0

    def do_store(self) -> None:
        """Store everything on disk, so that later streams get one snapshot without replaced versions."""
        self.cluster.snapshot()

    def do_plan(self) -> None:
        """Log the end of a batch and plan its tasks."""
        if self.query.end is None:
            limit = self.random.choice([None, None, MaxRows(4)])
            end = self.query.next_end(limit)
            self.query.end = None if end == self.query.offset else end
            self.up_to_date = limit is None
        if self.query.end is not None and self.tasks is None:
            self.tasks = self.query.tasks()

    def do_try(self) -> None:
        """Run an attempt whose rows are thrown away."""
        for task in self.tasks or ():
            for _ in self.query.driver.read(task):
                if self.random.random() < 0.5:
                    return

    def do_restart(self) -> None:
        self.query.restart()
        self.tasks = None

    def do_finish(self) -> None:
        """Run an attempt whose rows count."""
        self.do_plan()
        if self.tasks is not None:
            batches = [batch for task in self.tasks for batch in self.query.driver.read(task)]
            for batch in batches:
                self.query.reader.apply_batch(batch)
            self.query.commit()
            self.tasks = None
        if self.up_to_date:
            assert self.query.reader.documents == truth(self.cluster)

    def end(self) -> None:
        """Read to the present end of the cluster."""
        self.do_restart()
        self.do_finish()
        self.query.driver.prepareForTriggerAvailableNow()
        while (end := self.query.next_end(MaxRows(50))) != self.query.offset:
            self.query.end = end
            self.do_finish()
        assert self.query.reader.documents == truth(self.cluster)
        self.query.driver.stop()


@pytest.mark.parametrize("seed", range(8))
def test_the_rows_agree_with_the_cluster(seed: int) -> None:
    with Cluster(vbuckets=1, seed=seed) as cluster:
        schedule = Schedule(seed, cluster)
        for _ in range(12):
            try:
                schedule.round()
            except DcpError:
                # The query fails, and is restarted.
                schedule.do_restart()
        schedule.end()
