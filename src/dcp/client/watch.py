"""How far a stream is behind, and which of its vbuckets do not get on. No clock: the time is an argument."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dcp.client.stats import Lag, Stuck

# More moments than these are not remembered: every second one is forgotten then.
_MOST_MOMENTS = 64

NO_OWNER, NO_CONNECTION, RETRYING, UNANSWERED, SILENT = "no_owner", "no_connection", "retrying", "unanswered", "silent"
# The window is full, since the consumer takes nothing: that is no trouble of the vbucket.
CONSUMER = "consumer"
# Why a vbucket may be stuck.
REASONS = (NO_OWNER, NO_CONNECTION, RETRYING, UNANSWERED, SILENT)
# With these a node has agreed to send it.
FLOWING = (SILENT, CONSUMER)
# With these nobody can tell whether there is more of it.
_UNREACHABLE = (NO_OWNER, NO_CONNECTION)


class Seen(NamedTuple):
    """A vbucket that is followed: what came of it, where it ends, and why nothing would come now."""

    vbucket: int
    received: int
    end: int
    reason: str
    says: str


class Watch:
    """Finds vbuckets that have stood still for `patience` seconds although there is more of them."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # Where each of those that are behind stands, and since when.
        self._still: dict[int, tuple[int, float]] = {}

    def look(self, now: float, seen: Iterable[Seen], highs: Mapping[int, int]) -> dict[int, Stuck]:
        still, stuck = {}, {}
        for vbucket, received, end, reason, says in seen:
            behind = received < min(end, highs.get(vbucket, 0)) or reason in _UNREACHABLE
            if not behind or reason == CONSUMER:
                continue
            before, since = self._still.get(vbucket, (received, now))
            still[vbucket] = received, since if before == received else now
            seconds = now - still[vbucket][1]
            if seconds >= self._patience:
                stuck[vbucket] = Stuck(reason, says, seconds)
        self._still = still
        return stuck


class Backlog:
    """Remembers how far vbuckets were at some moments, to tell for how long a consumer has been behind.

    Whoever wants to know asks in a thread of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moments: deque[tuple[float, Mapping[int, int]]] = deque()
        self._highs: Mapping[int, int] = {}

    def add(self, now: float, highs: Mapping[int, int]) -> None:
        """What there is now."""
        with self._lock:
            self._highs = highs
            self._moments.append((now, highs))
            if len(self._moments) > _MOST_MOMENTS:
                self._moments = deque(list(self._moments)[::2])

    def lag(self, now: float, done: Mapping[int, int]) -> Lag:
        """Of a consumer that has come so far. What it does not follow does not count."""
        with self._lock:
            while self._moments and not _missing(self._moments[0][1], done):
                self._moments.popleft()
            return Lag(_missing(self._highs, done), now - self._moments[0][0] if self._moments else 0.0)


def _missing(highs: Mapping[int, int], done: Mapping[int, int]) -> int:
    return sum(max(0, high - done[vbucket]) for vbucket, high in highs.items() if vbucket in done)
