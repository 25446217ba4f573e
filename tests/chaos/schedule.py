"""A schedule: what happens to a cluster and its consumer, step by step, drawn from a seed."""

from __future__ import annotations

import contextlib
import copy
import random
from collections import Counter
from collections.abc import Callable

import dcp
from dcp.embedded import Cluster
from tests.client.consumer import Consumer, truth

KEYS = [f"key{n}" for n in range(12)]
SCOPE, COLLECTION = "shop", "order"
PATH = f"{SCOPE}.{COLLECTION}"
# How long the consumer waits for something that has to come.
PATIENCE = 30


class Schedule:
    """One run. The consumer keeps what it has together with the checkpoint, as a transaction would."""

    def __init__(self, seed: int, cluster: Cluster) -> None:
        self.random = random.Random(seed)
        self.cluster = cluster
        self.done: Counter[str] = Counter()
        self.consumer = Consumer()
        self.saved: tuple[str, Consumer] = ("", Consumer())
        self._nodes = list(range(3))
        self._failed = 0
        cluster.create_scope(SCOPE)
        cluster.create_collection(SCOPE, COLLECTION)
        self._connect(None)

    def run(self, steps: int) -> None:
        moves = self._moves()
        names = [name for name, weight, _ in moves for _ in range(weight)]
        actions = {name: action for name, _, action in moves}
        try:
            for _ in range(steps):
                name = self.random.choice(names)
                self.done[name] += 1
                actions[name]()
                self._read(self.random.choice((0.0, 0.0, 0.01)))
            self._finish()
        finally:
            self.client.close()

    # The consumer.

    def _connect(self, checkpoint: dcp.Checkpoint | None) -> None:
        while True:
            # Whatever starts the process starts it again.
            with contextlib.suppress(dcp.TransportError):
                self.client = dcp.connect(self.cluster.url)
                break
        self.stream = self.client.stream(checkpoint or "beginning", batch_rows=5, linger=0.0)

    def _read(self, timeout: float) -> bool:
        try:
            batch = self.stream.next(timeout)
        except TimeoutError:
            return False
        assert batch is not None
        self.consumer.take(batch)
        if self.random.random() < 0.5:
            self.saved = self.stream.checkpoint.to_json(), copy.deepcopy(self.consumer)
        return True

    def _die(self) -> None:
        """The process is gone, with everything since the last checkpoint; another one goes on."""
        self.client.close()
        text, self.consumer = self.saved[0], copy.deepcopy(self.saved[1])
        self._connect(dcp.Checkpoint.from_json(text) if text else None)

    def _finish(self) -> None:
        while not self._agrees():
            assert self._read(PATIENCE), self._difference()

    def _agrees(self) -> bool:
        return self.consumer.state() == truth(self.cluster) and self.consumer.state(self._id()) == truth(
            self.cluster, PATH
        )

    def _difference(self) -> str:
        """What the consumer has that it should not, and lacks."""
        has, should = self.consumer.state().items(), truth(self.cluster).items()
        return f"nothing comes; has {sorted(has - should)}, lacks {sorted(should - has)}; {self.stream.counters}"

    def _id(self) -> int:
        return 9

    # What happens.

    def _moves(self) -> list[tuple[str, int, Callable[[], None]]]:
        return [
            ("write", 30, self._write),
            ("delete", 6, self._delete),
            ("expire", 2, lambda: self._remove(self.cluster.expire)),
            ("die", 3, self._die),
            ("snapshot", 2, self.cluster.snapshot),
            ("purge", 1, self._purge),
            ("cut", 3, self._cut),
            ("lag", 1, lambda: self.cluster.set_lag(self.random.randrange(3))),
            ("failover", 1, self._failover),
            ("move", 2, self._move),
            ("refuse", 1, self._refuse),
            ("rollback", 1, self._roll_back),
            ("end", 1, self._end),
            ("split", 1, self._split),
        ]

    def _write(self) -> None:
        value = f'{{"n":{self.random.randrange(1000)}}}'
        path = self.random.choice(("_default._default", PATH))
        for _ in range(self.random.choice((1, 1, 3))):
            self.cluster.upsert(self.random.choice(KEYS), value, collection=path)

    def _delete(self) -> None:
        self._remove(self.cluster.delete)

    def _remove(self, action: Callable[[str], int]) -> None:
        alive = sorted(truth(self.cluster))
        if alive:
            action(self.random.choice(alive).decode())

    def _cut(self) -> None:
        self.cluster.fault("cut", sent=self.random.randrange(1, 2000), times=1)

    def _failover(self) -> None:
        if self._failed:
            return
        self._failed += 1
        node, lose = self.random.choice(self._nodes), self.random.choice((None, 1, 3))
        try:
            self.cluster.failover(node, lose)
        except dcp.LocalProtocolError:
            # There are not so many writes that could be lost.
            self.cluster.failover(node)

    def _move(self) -> None:
        vbucket, node = self.random.randrange(4), self.random.choice(self._nodes)
        if not self._failed:
            with contextlib.suppress(dcp.LocalProtocolError):  # It is there already.
                self.cluster.move(vbucket, node)

    def _refuse(self) -> None:
        status = self.random.choice(("ETMPFAIL", "EBUSY", "ENOMEM", "NOT_MY_VBUCKET"))
        self.cluster.fault("refuse", status=status, times=2)

    def _purge(self) -> None:
        self.cluster.purge()

    def _split(self) -> None:
        with self.cluster.fault("split", size=self.random.randrange(1, 40)):
            self._write()
            self._read(0.01)

    def _roll_back(self) -> None:
        self.cluster.fault("rollback", to=0, times=1)

    def _end(self) -> None:
        self.cluster.fault("end", status=self.random.choice(("STATE_CHANGED", "SLOW", "ROLLBACK")), times=1)
