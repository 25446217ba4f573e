"""Micro-batches by chance: whatever happens between them and in them, the rows come to what the cluster has."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from dcp.embedded import Cluster
from dcp.errors import DcpError
from dcp.spark import driver_view as lookout
from tests.spark.test_stream import AtMost, Query
from tests.spark.test_task import truth

# What happens in a round, one after the other, and how often in ten.
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


class Story:
    """A cluster, a query, and what Spark does with it."""

    def __init__(self, seed: int, cluster: Cluster) -> None:
        self.random = Random(seed)
        self.cluster = cluster
        # Half of the stories read a collection, while others are written to, too.
        self.noise = seed % 2 == 1
        cluster.create_collection("_default", "noise")
        self.query = Query(cluster.url, **({"collections": "_default"} if self.noise else {}))
        self.shares: Sequence[Any] | None = None
        # How many writes there are that can be lost.
        self.young = 0
        # Whether the batch in work ends where the cluster still is.
        self.quiet = False

    def round(self) -> None:
        for name, often in ROUND.items():
            if self.random.random() * 10 < often:
                getattr(self, f"do_{name.split()[0]}")()

    def do_write(self) -> None:
        self.quiet = False
        there = self.cluster.truth()
        for _ in range(self.random.randint(1, 6)):
            self.young += 1
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
        """The node comes back without its last writes, and with a new history."""
        self.quiet = False
        self.cluster.crash(0)
        self.cluster.recover(0, lose=self.random.randint(0, min(self.young, 6)))
        self.young = 0

    def do_store(self) -> None:
        """Whoever reads from before gets one snapshot, without the versions that were replaced."""
        self.cluster.snapshot()

    def do_plan(self) -> None:
        """Spark logs where a batch ends, and asks for its tasks."""
        if self.query.ends is None:
            limit = self.random.choice([None, None, AtMost(4)])
            ends = self.query.driver.latestOffset(self.query.offset, limit)
            self.query.ends = None if ends == self.query.offset else ends
            self.quiet = limit is None
        if self.query.ends is not None and self.shares is None:
            self.shares = self.query.driver.partitions(self.query.offset, self.query.ends)

    def do_try(self) -> None:
        """An attempt that does not count."""
        for share in self.shares or ():
            for _ in self.query.driver.read(share):
                if self.random.random() < 0.5:
                    return

    def do_restart(self) -> None:
        self.query.restart()
        self.shares = None

    def do_finish(self) -> None:
        """An attempt that counts, if it comes to its end."""
        self.do_plan()
        if self.shares is not None:
            batches = [batch for share in self.shares for batch in self.query.driver.read(share)]
            for batch in batches:
                self.query.keep(batch)
            self.query.offset, self.query.ends, self.shares = self.query.ends or {}, None, None
        if self.quiet:
            assert self.query.reader.documents == truth(self.cluster)

    def end(self) -> None:
        """What there is by now is read to its end."""
        self.do_restart()
        self.do_finish()
        self.query.driver.prepareForTriggerAvailableNow()
        while (ends := self.query.driver.latestOffset(self.query.offset, AtMost(50))) != self.query.offset:
            self.query.ends = ends
            self.do_finish()
        assert self.query.reader.documents == truth(self.cluster)
        self.query.driver.stop()


@pytest.mark.parametrize("seed", range(8))
def test_the_rows_come_to_what_the_cluster_has(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookout, "_FRESH", -1.0)
    with Cluster(vbuckets=1, seed=seed) as cluster:
        story = Story(seed, cluster)
        for _ in range(12):
            try:
                story.round()
            except DcpError:
                # The query ends, and somebody starts it again.
                story.do_restart()
        story.end()
