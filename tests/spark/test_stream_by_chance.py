"""Random schedules of writes, failovers and restarts: a stream's rows agree with the cluster, and come once.

A failover that loses nothing makes the next batch read again no more than the last one had, and nothing at all after a
run with trigger(availableNow=True).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from dcp.embedded import Cluster
from dcp.errors import DcpError, UsageError
from dcp.spark.offsets import from_offset
from dcp.spark.retry import Timing
from tests.spark.query import MaxRows, Query
from tests.spark.rows import high_seqnos, truth

# The driver observes the cluster at once, and a task that receives nothing soon checks if its end was lost.
_TIMING = Timing(interval=-1.0, silence=0.2)
# Steps of a round, in their order, with a probability in tenths.
ROUND = {
    "write": 8,
    "store": 2,
    "fail": 3,
    "plan": 10,
    "write again": 5,
    "store again": 2,
    "fail again": 2,
    "try": 2,
    "restart": 2,
    "finish": 9,
    "run": 2,
}


class Schedule:
    """Random steps on a cluster and a query."""

    def __init__(self, seed: int, cluster: Cluster) -> None:
        self.random = Random(seed)
        self.cluster = cluster
        # One of them may be failed over, and is gone; others are killed and restarted.
        self.nodes = [*range(3)]
        # Half of the schedules read one collection while another is written to.
        self.noise = seed % 2 == 1
        cluster.create_collection("_default", "noise")
        self.query = Query(cluster.url, _TIMING, **({"collections": "_default"} if self.noise else {}))
        self.tasks: Sequence[Any] | None = None
        # Number of writes that a failover can lose.
        self.recent = 0
        # True if the batch ends at the present end of the cluster.
        self.up_to_date = False
        # True after a run to the end of the cluster, until something is written or lost.
        self.has_everything = False
        # Vbuckets that lost changes, and those of them whose losses the planned batch can know.
        self.lost: set[int] = set()
        self.known: set[int] = set()
        # Seqno of the reader in each vbucket, and that at the start of the last batch that read it.
        self.reached: dict[int, int] = {}
        self.started: dict[int, int] = {}
        # Numbers of failovers that lost nothing, of rollbacks, and of rows that were read again after one.
        self.harmless = self.rollbacks = self.again = 0

    def round(self) -> None:
        for name, often in ROUND.items():
            if self.random.random() * 10 < often:
                getattr(self, f"do_{name.split()[0]}")()

    def do_write(self) -> None:
        self.up_to_date = self.has_everything = False
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

    def do_fail(self) -> None:
        """Fail a node over, or kill and restart it, with or without the loss of its last writes."""
        self.up_to_date = False
        node, lose = self.random.choice(self.nodes), self.random.choice([0, 0, self.random.randint(1, 6)])
        before = high_seqnos(self.cluster)
        owned = any(owners[0] == node for owners in self.cluster._bucket.owners)
        if owned and len(self.nodes) == 3 and self.random.random() < 0.3:
            self.nodes.remove(node)
            self.cluster.failover(node, lose=0)
        else:
            self.cluster.crash(node)
            try:
                self.cluster.recover(node, lose=min(self.recent, lose))
            except UsageError:
                # Of its last writes, the node has fewer.
                self.cluster.recover(node)
        after = high_seqnos(self.cluster)
        lost = {vbucket for vbucket in before if after[vbucket] < before[vbucket]}
        self.lost |= lost
        self.known -= lost
        self.harmless += not lost
        if lost:
            self.recent, self.has_everything = 0, False

    def do_store(self) -> None:
        """Store everything on disk, so that later streams get one snapshot without replaced versions."""
        self.cluster.snapshot()

    def do_plan(self, limit: MaxRows | None = None) -> None:
        """Log the end of a batch and plan its tasks."""
        if self.query.end is None:
            limit = limit or self.random.choice([None, None, MaxRows(4)])
            end = self.query.next_end(limit)
            self.query.end = None if end == self.query.offset else end
            self.up_to_date = limit is None
            self.known = {*self.lost}
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
            batches: list[Any] = []
            for number, task in enumerate(self.tasks):
                if number and self.random.random() < 0.2:
                    self.do_fail()
                batches += self.query.driver.read(task)
            self._keep([row for batch in batches for row in batch.to_pylist()])
            self.query.commit()
            self.tasks = None
        if self.up_to_date:
            assert self.query.reader.documents == truth(self.cluster)

    def _keep(self, rows: list[dict[str, Any]]) -> None:
        """Apply the rows of a batch, and check that no more of them came again than have to."""
        assert not (rows and self.has_everything)
        reader, before = self.query.reader, {*self.query.reader.rows}
        for row in rows:
            reader.apply(row)
        starts = dict(self.reached)
        for row in rows:
            if row["event"] == "rollback":
                self.rollbacks += 1
                starts[row["vbucket"]] = min(starts.get(row["vbucket"], 0), row["seqno"])
                assert row["vbucket"] in self.lost or row["seqno"] >= self.started[row["vbucket"]]
        assert self.query.end is not None
        for end in from_offset(self.query.end):
            if end.is_read:
                self.started[end.vbucket] = starts.get(end.vbucket, 0)
            self.reached[end.vbucket] = end.seqno
        self.again += sum((row["vbucket"], row["seqno"]) in before for row in rows)
        # The next batch is planned after these losses.
        self.lost -= self.known

    def do_run(self) -> None:
        """Run the query with trigger(availableNow=True)."""
        self.do_restart()
        if self.query.end is not None:
            self.do_finish()
        self.query.driver.prepareForTriggerAvailableNow()
        self.do_plan(MaxRows(50))
        while self.query.end is not None:
            self.do_finish()
            self.do_plan(MaxRows(50))
        self.has_everything = True
        self.do_restart()

    def end(self) -> None:
        """Read to the present end of the cluster."""
        self.do_run()
        assert self.query.reader.documents == truth(self.cluster)
        self.query.driver.stop()


@pytest.mark.parametrize("seed", range(12))
def test_the_rows_agree_with_the_cluster_and_none_comes_again_without_need(seed: int) -> None:
    run(seed)


def run(seed: int) -> Schedule:
    """Run a schedule to its end."""
    with Cluster(nodes=3, vbuckets=1 + seed % 3, replicas=2, seed=seed) as cluster:
        schedule = Schedule(seed, cluster)
        for _ in range(12):
            try:
                schedule.round()
            except DcpError:
                # The query fails, and is restarted.
                schedule.do_restart()
        schedule.end()
    return schedule
