"""Soak: a cluster that changes and fails at random, and consumers that follow it for as long as is asked."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from random import Random

import dcp
from dcp.embedded import Cluster
from dcp.embedded.faults import FaultHandle
from tests.chaos.fault_options import FAULT_OPTIONS
from tests.client.consumer import truth
from tests.soak.process import ConsumerArguments, ConsumerProcess
from tests.soak.samples import Sample, usage

_NODES, _VBUCKETS = 3, 16
_KEYS = 2000
# Seconds between two bursts of writes, and between two events on average.
_PACE, _EVENTS = 0.05, 1.0
# Seconds within which consumers have to get all documents once everything is repaired.
_PATIENCE = 120
_SHORT_TIMEOUTS = {"kv_connect_timeout": "500ms", "bootstrap_timeout": "2s", "stats_interval": 1.0}


class Soak:
    """One run. The consumers have a process of their own, so that the samples tell what a client holds."""

    def __init__(self, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self._seed, self._random = seed, Random(f"soak {seed}")
        self._written = 0
        # What was broken, with the time of its repair.
        self._broken: list[tuple[float, Callable[[], object]]] = []

    def run(self, seconds: float, interval: float) -> list[str]:
        """Run for `seconds`, then repair everything. Return a line for each consumer that differs from the cluster."""
        with ExitStack() as stack:
            cluster = Cluster(nodes=_NODES, vbuckets=_VBUCKETS, replicas=1, tls=True, seed=self._seed)
            self._cluster = stack.enter_context(cluster)
            self._consumers = stack.enter_context(ConsumerProcess(self._new_consumers()))
            self._play(seconds, interval)
            # What cannot be repaired while a node is down is repaired after its recovery.
            while self._broken:
                self._repair(math.inf)
            problems = self._differences()
            self.done.update(self._consumers.done())
            return problems

    def _new_consumers(self) -> list[ConsumerArguments]:
        cluster, seed = self._cluster, self._seed
        plain, encrypted = {"dcp_buffer_size": 1 << 16}, {"ca_cert_path": cluster.ca_file}
        return [
            ("plain", cluster.url, _SHORT_TIMEOUTS | plain, {}, seed),
            ("persisted", cluster.tls_url, _SHORT_TIMEOUTS | encrypted, {"persisted_only": True}, seed),
        ]

    def _play(self, seconds: float, interval: float) -> None:
        began = now = time.monotonic()
        next_sample, next_event = began, began + _EVENTS
        while now < began + seconds:
            self._write()
            self._repair(now)
            if now >= next_event:
                self._event()
                next_event = now + self._random.expovariate(1 / _EVENTS)
            if now >= next_sample:
                self.samples.append(Sample(now - began, *self._consumers.sample(), usage().rss))
                next_sample += interval
            time.sleep(_PACE)
            now = time.monotonic()

    def _differences(self) -> list[str]:
        self._consumers.calm()
        deadline, documents = time.monotonic() + _PATIENCE, truth(self._cluster)
        while (states := self._consumers.states()) != dict.fromkeys(states, documents) and time.monotonic() < deadline:
            time.sleep(10 * _PACE)
        problems = []
        for name, found in states.items():
            excess, lack = found.items() - documents.items(), documents.items() - found.items()
            if excess or lack:
                problems.append(f"{name}: {len(excess)} documents in excess, {len(lack)} missing")
        return problems

    # Changes.

    def _write(self) -> None:
        for _ in range(self._random.randrange(1, 30)):
            key = f"key{self._random.randrange(_KEYS)}"
            # The node that owns the vbucket may be down, or the document not there.
            with contextlib.suppress(dcp.LocalProtocolError):
                if self._random.random() < 0.2:
                    self._cluster.delete(key)
                else:
                    self._written += 1
                    pad = "x" * self._random.choice((0, 30, 300, 3000))
                    self._cluster.upsert(key, f'{{"n":{self._written},"pad":"{pad}"}}')
                self.done["writes"] += 1

    def _event(self) -> None:
        name = self._random.choices(list(_EVENTS_OF), [weight for weight, _ in _EVENTS_OF.values()])[0]
        with contextlib.suppress(dcp.LocalProtocolError):
            _EVENTS_OF[name][1](self)
            self.done[name] += 1

    def _node(self) -> int:
        # Node 0 is always up: whoever knows it finds the others.
        return self._random.randrange(1, _NODES)

    def _later(self, undo: Callable[[], object], most: float = 8.0) -> None:
        self._broken.append((time.monotonic() + self._random.uniform(0.2, most), undo))

    def _repair(self, now: float) -> None:
        """Undo what was broken for long enough."""
        due = [undo for at, undo in self._broken if at <= now]
        self._broken = [(at, undo) for at, undo in self._broken if at > now]
        for undo in due:
            undo()

    def _fault(self) -> None:
        name = self._random.choice(list(FAULT_OPTIONS))
        fault = self._cluster.fault(name, **FAULT_OPTIONS[name](self._random))
        self._later(lambda: self._clear(fault))

    def _clear(self, fault: FaultHandle) -> None:
        fault.clear()
        self.done[f"fault {fault.name}"] += fault.hits > 0

    def _crash(self) -> None:
        node, lose = self._node(), self._random.choice((0, 0, 1, 3))
        self._cluster.crash(node)
        self._later(lambda: self._recover(node, lose))

    def _recover(self, node: int, lose: int) -> None:
        try:
            self._cluster.recover(node, lose)
        except dcp.LocalProtocolError:
            # It has fewer writes than that.
            self._cluster.recover(node)

    def _restart(self) -> None:
        self._cluster.restart(self._node())

    def _promote(self) -> None:
        self._cluster.promote(self._random.randrange(_VBUCKETS), self._random.randrange(_NODES))

    def _move(self) -> None:
        self._cluster.move(self._random.randrange(_VBUCKETS), self._random.randrange(_NODES))

    def _lag_behind(self) -> None:
        self._cluster.set_lag(self._random.choice((1, 5, 20)))
        self._later(lambda: self._cluster.set_lag(0))

    def _stop_persisting(self) -> None:
        node = self._node()
        self._cluster.set_persistence(node, False)
        self._later(lambda: self._persist(node))

    def _persist(self, node: int) -> None:
        try:
            self._cluster.set_persistence(node, True)
        except dcp.LocalProtocolError:
            # It is down.
            self._later(lambda: self._persist(node))


# Events, with their relative frequencies.
_EVENTS_OF: dict[str, tuple[int, Callable[[Soak], object]]] = {
    "fault": (30, Soak._fault),
    "crash": (6, Soak._crash),
    "restart": (5, Soak._restart),
    "promote": (10, Soak._promote),
    "move": (10, Soak._move),
    "lag": (10, Soak._lag_behind),
    "stop persisting": (8, Soak._stop_persisting),
    "snapshot": (10, lambda self: self._cluster.snapshot()),
    "purge": (3, lambda self: self._cluster.purge()),
}
