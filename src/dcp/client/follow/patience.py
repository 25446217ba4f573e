"""The limit of patience with refusals: for how long each is repeated, and the error that ends the stream after that."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dcp.errors import ServerError
from dcp.session.refusals import CONFIRMATIONS, OPEN, Reaction, reaction, status_name

log = logging.getLogger("dcp.client")

# A refusal is logged again after this many seconds: all vbuckets of a node meet it at the same time.
_LOG_INTERVAL = 10.0
# Seconds without a refusal after which a new series begins. Requests are repeated every few seconds, unless their node
# cannot be reached, and that time does not count.
_BREAK = 60.0


@dataclass(slots=True)
class _Series:
    """Refusals in a row.

    since, latest: monotonic times of the first and the last one. kind: step and status of the last one. count: of those
    of this kind.
    """

    since: float
    latest: float
    kind: tuple[str, int | None]
    count: int = 0


class RefusalPatience:
    """Refusals by what was refused, a node's name or a vbucket's number. Guarded by the stream's lock.

    within: seconds for which a refusal is repeated.
    """

    def __init__(self, within: float) -> None:
        self._within = within
        # True once any node opened a connection for DCP. Until then a missing privilege is no state that passes.
        self._opened = False
        self._series: dict[str | int, _Series] = {}
        # By node and status, the monotonic time at which the log said so.
        self._logged: dict[tuple[str, int | None], float] = {}

    def ready(self, node: str) -> None:
        """Record that a connection to a node was opened for DCP."""
        self._opened = True
        self.forget(node)

    def forget(self, subject: str | int) -> None:
        """End the series of a node or vbucket: it was accepted, or its refusals do not count any more."""
        self._series.pop(subject, None)

    def exhausted(self, subject: str | int, node: str, error: ServerError, now: float) -> ServerError | None:
        """Count a refusal at a monotonic time. Return the error that ends the stream, or None to repeat the request."""
        found = reaction(error.step, error.status)
        ends = not found.repeats and not error.retriable
        if ends or (found is Reaction.CONFIRM and error.step == OPEN and not self._opened):
            return error
        kind = error.step, error.status
        series = self._series.setdefault(subject, _Series(now, now, kind))
        if now - series.latest > _BREAK:
            series = self._series[subject] = _Series(now, now, kind)
        series.count = series.count + 1 if series.kind == kind else 1
        series.kind, series.latest = kind, now
        if found is Reaction.CONFIRM and series.count >= CONFIRMATIONS:
            return error
        if now - series.since >= self._within:
            return _final(node, error, now - series.since)
        # The loss of a connection is logged anyway.
        if isinstance(subject, int):
            self._log(node, error, now, found)
        return None

    def _log(self, node: str, error: ServerError, now: float, found: Reaction) -> None:
        # Vbuckets move without anything being wrong.
        if (
            found is Reaction.REFRESH_MAP
            or now - self._logged.get((node, error.status), -_LOG_INTERVAL) < _LOG_INTERVAL
        ):
            return
        self._logged[node, error.status] = now
        if found is Reaction.CONFIRM:
            log.warning("%s; it ends the stream when it is repeated %d times", error, CONFIRMATIONS)
        else:
            log.warning("%s; retrying for up to %g s (refusal_timeout)", error, self._within)


def _final(node: str, error: ServerError, seconds: float) -> ServerError:
    """Return a refusal with how long its request was repeated."""
    status = "" if error.status is None else f" with {status_name(error.status)}"
    final = type(error)(
        f"{error.problem}; {error.step} was refused{status} for {seconds:.3g} s (refusal_timeout): check the node, and "
        "resume from the checkpoint",
        error.status,
        error.context,
    )
    final.node, final.step, final.retriable = node, error.step, error.retriable
    return final
