"""Timeouts of driver and tasks, and what they do while nodes are unreachable."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dcp.client import Client
from dcp.errors import DcpError, ServerError, TransportError

T = TypeVar("T")

# Seconds between two repetitions of a query.
_PAUSE = 0.25
# Seconds of repetitions until they are logged, and logged again.
_QUIET = 5.0

log = logging.getLogger("dcp.spark")


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts and intervals in seconds. Only tests use others than the defaults.

    retry: how long one call of `latestOffset` repeats a query while a vbucket has no reachable owner.
    silence: how long a task receives nothing before it checks if its end can still be reached.
    interval: longest time between two observations of the cluster while a stream has nothing to read.
    lag: how long copies may lag with persistedOnly until that is logged, and logged again.
    settling: how long a stream has to be idle until the driver logs which of its positions are ends of snapshots.
    """

    retry: float = 10.0
    silence: float = 5.0
    interval: float = 1.0
    lag: float = 10.0
    settling: float = 10.0


DEFAULTS = Timing()


class OutageTimer:
    """Duration of the present outage: it begins with the first failure and ends with the next answer."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._since: float | None = None
        # What failed last in the present outage; None without one.
        self.problem: DcpError | None = None

    @property
    def seconds(self) -> float:
        """Duration of the present outage; 0 without one."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def answered(self) -> None:
        """Note that a node answered."""
        if self._since is not None:
            log.warning("nodes answer again after %.0f s", self.seconds)
        self._since = self.problem = None

    def failed(self, error: DcpError) -> None:
        """Note a failure and log it. Raise `error` if it does not pass, or the outage has lasted for the timeout."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not error.retriable or now - self._since > self._timeout:
            raise error
        self.problem = error
        log.warning("%s; waiting for nodes, %.0f s so far, up to nodeTimeout=%gs", error, self.seconds, self._timeout)


def retry(client: Client, query: Callable[[], T], timeout: float) -> T:
    """Return the result of `query`. Repeat it for up to `timeout` seconds while it raises retriable errors.

    A vbucket that moves has no owner for a moment, so the cluster map is refreshed before each repetition.
    """
    begun_at = time.monotonic()
    give_up_at, log_at = begun_at + timeout, begun_at + _QUIET
    while True:
        try:
            return query()
        except DcpError as error:
            now = time.monotonic()
            if not error.retriable or now > give_up_at:
                raise
            if now > log_at:
                log.warning("%s; repeated for %.0f s, for up to %g s", error, now - begun_at, timeout)
                log_at = now + _QUIET
        time.sleep(_PAUSE)
        with contextlib.suppress(TransportError, ServerError):
            client.refresh_map()
