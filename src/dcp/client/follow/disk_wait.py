"""The wait for the disk, before a TAP stream with an end is requested.

A node ends the backfill of a vbucket when it has read the disk. Changes that are not on disk yet would follow later
(seen in 3.1.6), which is after the end of such a stream.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from dcp.client.queries import DiskBacklog
from dcp.cluster_map import Node, format_vbuckets
from dcp.errors import ServerError, TransportError
from dcp.session.refusals import reaction

log = logging.getLogger("dcp.client")

# Number of a change that every vbucket has on disk.
_NOTHING = 0


@dataclass(slots=True)
class _Waiting:
    """Vbuckets of one node that are to be requested together.

    needed: number of the change that has to be on disk, by vbucket; None until the node was asked.
    since: monotonic time from which the limit counts. last_error: of the node, so that it is logged once.
    """

    since: float
    needed: dict[int, int | None] = field(default_factory=dict)
    covered: bool = False
    last_error: str = ""


class DiskWait:
    """Polls nodes until everything that their vbuckets had at the first poll is on disk.

    Used by the supervisor thread alone, so it needs no lock.

    The numbers to wait for are those of the first poll: later changes do not prolong the wait, if the node reports
    seqnos. Servers before 4.5 report the length of a vbucket's queue only, which has to be empty at one poll.

    ask: returns the backlogs of a node's vbuckets; those that the node does not have are missing.
    within: seconds after which a node that answers, and still has not written them, is an error.
    interval: seconds between polls. clock: returns monotonic seconds.
    """

    def __init__(
        self,
        ask: Callable[[Node, Collection[int]], Mapping[int, DiskBacklog]],
        within: float,
        *,
        interval: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Monotonic time of the next poll; None if no vbucket waits.
        self.due: float | None = None
        self._ask, self._within, self._interval, self._clock = ask, within, interval, clock
        self._waiting: dict[Node, _Waiting] = {}

    def covers(self, vbucket: int, node: Node) -> bool:
        """Return True if the vbucket, and all others that wait for this node, may be requested. Else they wait.

        Together, since each request over TAP takes a connection of its own.
        """
        waiting = self._waiting.get(node)
        if waiting is None:
            waiting = self._waiting[node] = _Waiting(self._clock())
        if vbucket not in waiting.needed:
            # Another node may have owned it when it began to wait.
            self.forget(vbucket)
            if waiting.covered or not waiting.needed:
                waiting.since = self._clock()
            waiting.needed[vbucket], waiting.covered = None, False
            self.due = self._clock()
        return waiting.covered

    def forget(self, vbucket: int) -> None:
        """Forget a vbucket that was requested. Its next request waits for what the disk lacks then."""
        for waiting in self._waiting.values():
            waiting.needed.pop(vbucket, None)

    def poll_if_due(self) -> None:
        """Ask the nodes whose vbuckets wait. Called without the stream's lock, since it waits for them.

        Raises TransportError if a node has not written in time what it had at the first poll.
        """
        if self.due is None or self._clock() < self.due:
            return
        for node, waiting in self._waiting.items():
            if not waiting.covered and waiting.needed:
                self._poll(node, waiting)
        pending = any(waiting.needed and not waiting.covered for waiting in self._waiting.values())
        self.due = self._clock() + self._interval if pending else None

    def _poll(self, node: Node, waiting: _Waiting) -> None:
        try:
            backlogs = self._ask(node, waiting.needed.keys())
        except (TransportError, ServerError) as error:
            if isinstance(error, ServerError) and not reaction(error.step, error.status).repeats:
                raise
            if str(error) != waiting.last_error:
                log.warning("%s; asking again what is on disk", error)
            # As long as a node is down, its streams are retried without a limit.
            waiting.last_error, waiting.since = str(error), self._clock()
            return
        waiting.last_error = ""
        waiting.needed = {vbucket: _still_needed(n, backlogs.get(vbucket)) for vbucket, n in waiting.needed.items()}
        lacking = [vbucket for vbucket, needed in waiting.needed.items() if needed != _NOTHING]
        waiting.covered = not lacking
        if lacking and self._clock() - waiting.since >= self._within:
            raise TransportError(
                f"{node}: changes of vbuckets {format_vbuckets(lacking)} are not on disk after {self._within:g} s, and "
                'a TAP stream with end="now" ends where the disk does. Check the disk queue of the node '
                "(ep_queue_size, ep_flusher_todo), pause the writes, or raise persisted_within"
            )


def _still_needed(needed: int | None, backlog: DiskBacklog | None) -> int:
    """Return the number of the change that has to be on disk after this answer."""
    if backlog is None:
        # The node does not have the vbucket: the answer to the request will say so.
        return _NOTHING
    # A crash or a failover can take changes back, which then never reach the disk.
    still = backlog.newest if needed is None else min(needed, backlog.newest)
    return _NOTHING if backlog.persisted >= still else still
