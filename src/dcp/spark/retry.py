"""Timeouts of driver and tasks, and what they do while nodes are unreachable."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dcp.client import Client
from dcp.errors import DcpError, ServerError, TransportError

T = TypeVar("T")

# Seconds between two repetitions of a query.
_PAUSE = 0.25


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts and intervals in seconds. Only tests use others than the defaults.

    retry: how long one query of the driver is repeated while a vbucket has no reachable owner.
    outage: how long a stream's driver, or a task, tolerates that no node answers.
    silence: how long a task receives nothing before it checks if its end can still be reached.
    max_age: how long the driver uses what it knows of the cluster. Spark asks it about 90 times a second.
    """

    retry: float = 10.0
    outage: float = 60.0
    silence: float = 5.0
    max_age: float = 1.0


DEFAULTS = Timing()


class OutageTimer:
    """Duration of the present outage: it begins with the first failure and ends with the next answer."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None

    def answered(self) -> None:
        """Note that a node answered."""
        self._since = None

    def timed_out(self) -> bool:
        """Note a failure. True if the outage has lasted longer than the timeout."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since > self._timeout


def retry(client: Client, query: Callable[[], T], timeout: float) -> T:
    """Return the result of `query`. Repeat it for up to `timeout` seconds while it raises retriable errors.

    A vbucket that moves has no owner for a moment, so the cluster map is refreshed before each repetition.
    """
    give_up_at = time.monotonic() + timeout
    while True:
        try:
            return query()
        except DcpError as error:
            if not error.retriable or time.monotonic() > give_up_at:
                raise
        time.sleep(_PAUSE)
        with contextlib.suppress(TransportError, ServerError):
            client.refresh_map()
