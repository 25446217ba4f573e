"""Measurements of a demo run: rows and bytes over time, the backlog of the copy, and events such as the failover."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import NamedTuple, Protocol

import dcp
from dcp.checkpoint import Checkpoint
from dcp.embedded import Cluster
from dcp.errors import DcpError

# Seconds between two samples, and over which a rate is averaged.
_INTERVAL = 0.25
_RATE_WINDOW = 1.0


class Copier(Protocol):
    """Copies a bucket into Parquet: first all of it, then its changes.

    name: shown to the user.
    restarts: number of failures after which the copy resumed.
    """

    name: str
    restarts: int

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Position after all that is stored; None before the first batch."""

    def read(self) -> None:
        """Copy what the bucket has now."""

    def follow(self) -> None:
        """Start to copy changes in the background."""

    def check(self) -> None:
        """Raise if the copy failed for good."""

    def close(self) -> None:
        """Stop copying, and wait for what is in progress."""


class ProgressSample(NamedTuple):
    """Rows and bytes sent up to a moment, and the number of changes that were not in the copy then."""

    seconds: float
    rows: int
    bytes: int
    lag: int


class TimelineEvent(NamedTuple):
    """An event to mark in the chart; `bad` for a failure."""

    seconds: float
    text: str
    bad: bool = False


class ProgressMonitor(threading.Thread):
    """Thread that samples the cluster and the copier until it is stopped."""

    def __init__(self, cluster: Cluster, copier: Copier, keys: int) -> None:
        super().__init__(name="monitor", daemon=True)
        self._cluster, self._keys = cluster, keys
        self.copier = copier
        self._client = dcp.connect(cluster.url)
        self._started_at = 0.0
        self._ended = threading.Event()
        self.highs = self._client.high_seqnos()
        self.samples: list[ProgressSample] = []
        self.events: list[TimelineEvent] = []

    def start(self) -> None:
        """Take the first sample and start the thread."""
        self._started_at = time.monotonic()
        self.sample()
        super().start()

    def run(self) -> None:
        """Take samples until `stop`."""
        while not self._ended.wait(_INTERVAL):
            self.sample()

    def stop(self) -> None:
        """Stop the thread."""
        self._ended.set()
        if self.is_alive():
            self.join()
        self._client.close()

    def sample(self) -> None:
        """Take a sample."""
        try:
            self.highs = self._client.high_seqnos()
        except DcpError:
            # During the failover a node does not answer: keep the last high seqnos.
            with suppress(DcpError):
                self._client.refresh_map()
        self.samples.append(self._sample())

    def mark(self, text: str, *, bad: bool = False) -> None:
        """Add an event."""
        self.events.append(TimelineEvent(time.monotonic() - self._started_at, text, bad))

    @property
    def last(self) -> ProgressSample:
        """The newest sample."""
        return self.samples[-1]

    @property
    def rates(self) -> tuple[float, float]:
        """Rows and bytes per second, at present."""
        last = self.last
        before = next((s for s in reversed(self.samples) if last.seconds - s.seconds >= _RATE_WINDOW), self.samples[0])
        seconds = (last.seconds - before.seconds) or 1
        return (last.rows - before.rows) / seconds, (last.bytes - before.bytes) / seconds

    def rates_until(self, seconds: float) -> tuple[float, float]:
        """Return rows and bytes per second from the start until then."""
        last = next((s for s in self.samples if s.seconds >= seconds), self.last)
        return last.rows / last.seconds, last.bytes / last.seconds

    def has_reached(self, highs: dict[int, int]) -> bool:
        """True if the copy has everything up to these seqnos."""
        stored = self.copier.checkpoint
        return stored is not None and not any(stored.lag(highs).values())

    def _sample(self) -> ProgressSample:
        traffic = self._cluster.stats().values()
        rows = sum(node.items for node in traffic)
        stored = self.copier.checkpoint
        # Before the copy has a position, count what the cluster has sent.
        lag = max(0, self._keys - rows) if stored is None else sum(stored.lag(self.highs).values())
        return ProgressSample(time.monotonic() - self._started_at, rows, sum(node.bytes_sent for node in traffic), lag)
