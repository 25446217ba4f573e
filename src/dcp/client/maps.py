"""When the cluster map is to be fetched: when somebody misses what it says, or now and then where nodes are silent."""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from dcp.client.pauses import LONGEST
from dcp.errors import TransportError

log = logging.getLogger("dcp.client")

# So that several vbuckets that miss something make one question.
_PAUSE = 0.2


class Cluster(Protocol):
    """Who fetches it."""

    @property
    def poll_interval(self) -> float: ...

    def refresh(self) -> object: ...

    def learn(self, config: Any, host: str) -> None: ...


class Maps:
    """`due`: when to fetch the next one; None if there is no reason to."""

    def __init__(self, cluster: Cluster) -> None:
        self.due: float | None = None
        # Whether a node would not say that the map has changed.
        self.polls = False
        self._cluster = cluster

    def told(self, config: object, host: str) -> None:
        """A node told a map, or only that there is a newer one."""
        if config is None:
            self.want()
        else:
            self._cluster.learn(config, host)

    def want(self, seconds: float = _PAUSE) -> None:
        due = time.monotonic() + seconds
        self.due = due if self.due is None else min(due, self.due)

    def poll(self) -> None:
        """If nobody else says when, the clock does."""
        if self.polls:
            self.want(self._cluster.poll_interval)

    def refresh(self) -> None:
        if self.due is None or time.monotonic() < self.due:
            return
        self.due = None
        try:
            self._cluster.refresh()
        except TransportError as error:
            log.warning("no map: %s", error)
            self.due = time.monotonic() + LONGEST / 4
