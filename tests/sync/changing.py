"""A cluster that changes by chance: writes, lost writes, purges, dropped collections, from a seed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from random import Random

import dcp
from dcp.embedded import Cluster

NODES, VBUCKETS = 3, 8
DEFAULT, ORDER, ITEM = "_default._default", "shop.order", "shop.item"
KEYS = [f"key{number}" for number in range(40)]


class ChangingCluster:
    """A cluster with collections, and the changes that are made to it. `done` counts these by name."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.cluster, self.random = cluster, random
        self.done: Counter[str] = Counter()
        self._written = 0
        cluster.create_scope("shop")
        for name in ("order", "item"):
            cluster.create_collection("shop", name)

    def change(self) -> None:
        """Make some changes."""
        names, weights = zip(*_CHANGES, strict=True)
        for action in self.random.choices(names, weights, k=self.random.randrange(1, 4)):
            self.do(action)

    def do(self, action: Callable[[ChangingCluster], None]) -> None:
        """Make a change, unless the present state of the cluster does not allow it."""
        with contextlib.suppress(dcp.LocalProtocolError):
            action(self)
            self.done[action.__name__] += 1

    def write(self) -> None:
        path = self.random.choice((DEFAULT, DEFAULT, ORDER, ITEM))
        for _ in range(self.random.randrange(1, 25)):
            self._written += 1
            # Now and then a value that is no text.
            value = b'{"n":%d}' % self._written if self._written % 20 else b"\xff%d" % self._written
            self.cluster.upsert(self.random.choice(KEYS), value, collection=path)

    def delete(self) -> None:
        self._remove(self.cluster.delete)

    def expire(self) -> None:
        self._remove(self.cluster.expire)

    def _remove(self, remove: Callable[..., int]) -> None:
        path = self.random.choice((DEFAULT, ORDER, ITEM))
        alive = sorted(self.cluster.truth(path))
        if alive:
            remove(self.random.choice(alive), collection=path)

    def lose(self) -> None:
        """Let a node come back without its last writes: those of some vbuckets are lost."""
        node = self.random.randrange(NODES)
        self.cluster.crash(node)
        try:
            self.cluster.recover(node, lose=self.random.randrange(1, 30))
        except dcp.UsageError:
            self.cluster.recover(node)

    def promote(self) -> None:
        """Promote a replica, without the writes that it has not received."""
        self.cluster.set_lag(3)
        try:
            self.write()
            self.cluster.promote(self.random.randrange(VBUCKETS), self.random.randrange(NODES))
        finally:
            self.cluster.set_lag(0)

    def purge(self) -> None:
        self.cluster.purge()

    def drop(self) -> None:
        self.cluster.drop_collection("shop", "order")

    def create(self) -> None:
        self.cluster.create_collection("shop", "order")

    def move(self) -> None:
        self.cluster.move(self.random.randrange(VBUCKETS), self.random.randrange(NODES))

    def snapshot(self) -> None:
        self.cluster.snapshot()


_CHANGES = (
    (ChangingCluster.write, 12),
    (ChangingCluster.delete, 4),
    (ChangingCluster.expire, 2),
    (ChangingCluster.lose, 2),
    (ChangingCluster.promote, 3),
    (ChangingCluster.purge, 2),
    (ChangingCluster.drop, 1),
    (ChangingCluster.create, 2),
    (ChangingCluster.move, 1),
    (ChangingCluster.snapshot, 1),
)
