"""What happened when: how much was read, how far behind the copy was, and what else there is to mark."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import NamedTuple, Protocol

import dcp
from dcp.checkpoint import Checkpoint
from dcp.embedded import Cluster
from dcp.errors import DcpError

_INTERVAL = 0.25
# A speed is that of so many seconds.
_WINDOW = 1.0


class Copier(Protocol):
    """Copies a bucket into a lake: once, and then what happens. `checkpoint` is how far what is stored goes."""

    name: str
    # How often it failed, and went on by itself.
    restarts: int

    @property
    def checkpoint(self) -> Checkpoint | None: ...

    def read(self) -> None: ...

    def follow(self) -> None: ...

    def check(self) -> None:
        """Raise if it cannot go on."""

    def close(self) -> None: ...


class Sample(NamedTuple):
    """So many rows and bytes had been sent by then, and so many changes were not in the copy."""

    seconds: float
    rows: int
    bytes: int
    lag: int


class Mark(NamedTuple):
    """Something that happened, good or bad."""

    seconds: float
    text: str
    bad: bool = False


class Course(threading.Thread):
    """Looks at the cluster and the copier a few times a second, until it is stopped."""

    def __init__(self, cluster: Cluster, copier: Copier, keys: int) -> None:
        super().__init__(name="course", daemon=True)
        self._cluster, self._keys = cluster, keys
        self.copier = copier
        self._client = dcp.connect(cluster.url)
        self._began = 0.0
        self._ended = threading.Event()
        self.highs = self._client.high_seqnos()
        self.samples: list[Sample] = []
        self.marks: list[Mark] = []

    def start(self) -> None:
        self._began = time.monotonic()
        self.look()
        super().start()

    def run(self) -> None:
        while not self._ended.wait(_INTERVAL):
            self.look()

    def stop(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()
        self._client.close()

    def look(self) -> None:
        """Another sample."""
        try:
            self.highs = self._client.high_seqnos()
        except DcpError:
            with suppress(DcpError):
                self._client.refresh_map()
        self.samples.append(self._sample())

    def mark(self, text: str, *, bad: bool = False) -> None:
        self.marks.append(Mark(time.monotonic() - self._began, text, bad))

    @property
    def last(self) -> Sample:
        return self.samples[-1]

    @property
    def speed(self) -> tuple[float, float]:
        """Rows and bytes a second."""
        last = self.last
        before = next((s for s in reversed(self.samples) if last.seconds - s.seconds >= _WINDOW), self.samples[0])
        seconds = (last.seconds - before.seconds) or 1
        return (last.rows - before.rows) / seconds, (last.bytes - before.bytes) / seconds

    def since_start(self, seconds: float) -> tuple[float, float]:
        """Rows and bytes a second of the first so many seconds."""
        last = next((s for s in self.samples if s.seconds >= seconds), self.last)
        return last.rows / last.seconds, last.bytes / last.seconds

    def has_reached(self, highs: dict[int, int]) -> bool:
        """Whether the copy has everything up to there."""
        stored = self.copier.checkpoint
        return stored is not None and not any(stored.lag(highs).values())

    def _sample(self) -> Sample:
        traffic = self._cluster.stats().values()
        rows = sum(node.items for node in traffic)
        stored = self.copier.checkpoint
        # Before there is a first position, what was sent counts.
        lag = max(0, self._keys - rows) if stored is None else sum(stored.lag(self.highs).values())
        return Sample(time.monotonic() - self._began, rows, sum(node.bytes_sent for node in traffic), lag)
