"""Transitions of a vbucket's stream: accepted, ended, refused, cut off; retry, roll back, or fail the stream."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Mapping

from dcp.client.agent import MapRefresher
from dcp.client.follow.batch_queue import BatchQueue
from dcp.client.follow.patience import RefusalPatience
from dcp.client.follow.rollback import Rollbacks
from dcp.client.follow.settings import StreamSettings
from dcp.client.follow.vbucket import FollowedVbucket
from dcp.client.stats import Counters
from dcp.cluster_map import format_vbuckets
from dcp.errors import ServerError, TransportError
from dcp.session.events import StreamRefused
from dcp.session.handshake import CHECK_DIALECT, WRONG_DIALECT
from dcp.session.refusals import STREAM_REQUEST, Reaction, reaction, refused, status_name
from dcp.session.states import REQUESTED
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import ENDLESS, StreamEnd
from dcp.wire.memcached import Status

log = logging.getLogger("dcp.client")

_END_NAMES = {int(reason): reason.name.lower() for reason in StreamEnd}


class Transitions:
    """Reacts to events of vbuckets' streams. Guarded by the stream's lock."""

    def __init__(
        self,
        vbuckets: Mapping[int, FollowedVbucket],
        queue: BatchQueue,
        maps: MapRefresher,
        rollbacks: Rollbacks,
        settings: StreamSettings,
        counters: Counters,
        patience: RefusalPatience,
    ) -> None:
        self._vbuckets, self._queue, self._maps, self._rollbacks = vbuckets, queue, maps, rollbacks
        self._settings, self._counters, self._patience = settings, counters, patience

    def accepted(self, stream: ConsumerStream) -> None:
        """Reset the backoff of an accepted vbucket."""
        vbucket = self._vbuckets[stream.vbucket]
        vbucket.accepted(time.monotonic())
        self._patience.forget(vbucket.number)
        log.debug("vbucket %d: streaming from seqno %d", vbucket.number, vbucket.position.seqno)

    def report_unannounced(self) -> float:
        """Log vbuckets that a node has left out of its TAP stream for too long. Return the seconds until the next one.

        A stream with an end fails: it would never reach it. Others repeat the request, and deliver the other vbuckets.
        """
        within = self._settings.announced_within
        if within is None:
            return math.inf
        now = time.monotonic()
        waiting = [vbucket for vbucket in self._vbuckets.values() if vbucket.asked and not vbucket.overdue]
        missing: defaultdict[str, list[FollowedVbucket]] = defaultdict(list)
        for vbucket in waiting:
            if vbucket.unanswered(now) >= within:
                missing[vbucket.asked].append(vbucket)
        for node, vbuckets in missing.items():
            problem = (
                f"{node}: vbuckets {format_vbuckets(vbucket.number for vbucket in vbuckets)} were not announced within "
                f"{within:g} s of the TAP request, so nothing of them is delivered. The node has lost them, or leaves "
                "them out as 3.1 does after a clean restart: check the node, or use dialect=dcp, which servers since "
                "3.0 speak"
            )
            log.warning("%s", problem)
            for vbucket in vbuckets:
                vbucket.overdue = True
            if any(vbucket.end != ENDLESS for vbucket in vbuckets):
                self._queue.fail(TransportError(problem))
        left = (
            within - vbucket.unanswered(now) for vbucket in waiting if not vbucket.overdue and vbucket.link is not None
        )
        return min(left, default=math.inf)

    def ended(self, stream: ConsumerStream, reason: int) -> None:
        """Complete, retry or fail by the reason of a STREAM_END."""
        vbucket = self._vbuckets[stream.vbucket]
        name = _END_NAMES.get(reason) or str(reason)
        self._counters.stream_ends[name] = self._counters.stream_ends.get(name, 0) + 1
        self._release(vbucket)
        # FILTER_EMPTY: every collection of the filter was dropped, so no further change can pass it.
        if reason in (StreamEnd.OK, StreamEnd.FILTER_EMPTY):
            vbucket.done = True
        elif reason == StreamEnd.LOST_PRIVILEGES:
            self._queue.fail(ServerError(f"vbucket {vbucket.number}: the user lost the privilege to stream it"))
        else:
            seqno = vbucket.position.seqno
            log.info("vbucket %d: stream ended (%s); resuming from seqno %d", vbucket.number, name, seqno)
            vbucket.retry(f"stream ended, {name}")
            if reason == StreamEnd.STATE_CHANGED:
                self._maps.request()

    def refused(self, event: StreamRefused, node: str) -> None:
        """Retry a refused request if the status passes, else fail the stream."""
        vbucket = self._vbuckets[event.stream.vbucket]
        self._release(vbucket)
        if event.status == Status.ERANGE:
            # The node rejects the position itself. No seqno below it is known to be valid, except 0.
            self.rolled_back(event.stream, 0)
            return
        error = self._refusal(vbucket, event.status)
        error.node = node
        final = self._patience.exhausted(vbucket.number, node, error, time.monotonic())
        # A vbucket that a TAP node leaves out has a limit of its own, in `report_unannounced`.
        unannounced = self._settings.announced_within is not None and event.status == Status.NOT_MY_VBUCKET
        if final is not None and not unannounced:
            self._queue.fail(final)
            return
        found = reaction(STREAM_REQUEST, event.status)
        vbucket.retry(f"refused, {status_name(event.status)}")
        log.debug("vbucket %d: %s by %s; retrying", vbucket.number, vbucket.last_error, node)
        if found is Reaction.REFRESH_MAP:
            # The map in the body may be older than the one that is known; fetch another one in any case.
            self._maps.request()
            if isinstance(event.body, dict):
                self._maps.map_changed(event.body, node)
        elif found is Reaction.RECONNECT:
            raise TransportError(f"{error}; the connection is of no use any more")

    def _refusal(self, vbucket: FollowedVbucket, status: int) -> ServerError:
        name = status_name(status)
        if status == Status.EINVAL and self._settings.ignore_purged:
            name += "; ignore_purged requires servers of 7.2 or newer"
        elif status in WRONG_DIALECT and not self._settings.rules.closes:
            # For DCP the node's answer to OPEN has shown already that it speaks the dialect.
            name += f"; {CHECK_DIALECT}"
        return refused(STREAM_REQUEST, f"vbucket {vbucket.number}: stream request refused: {name}", status)

    def rolled_back(self, stream: ConsumerStream, seqno: int) -> None:
        """Roll a vbucket back."""
        vbucket = self._vbuckets[stream.vbucket]
        before = stream.position
        self._release(vbucket)
        self._rollbacks.roll_back(vbucket, before, seqno)

    def cut_off(self, vbucket: FollowedVbucket) -> None:
        """Release a vbucket whose connection was lost. A dialect that cannot resume restarts it or fails the stream."""
        streamed = vbucket.stream is not None and vbucket.stream.state != REQUESTED
        if streamed and not self._settings.rules.resumes:
            self._restart(vbucket)
        vbucket.lost(time.monotonic())
        self._release(vbucket)

    def _restart(self, vbucket: FollowedVbucket) -> None:
        if self._settings.rules.replays:
            log.warning("vbucket %d: restarting from the beginning", vbucket.number)
            self._rollbacks.emit_rollback(vbucket, 0, 0)
            return
        self._queue.fail(
            TransportError(
                f"vbucket {vbucket.number}: connection lost, and the dialect cannot resume without a gap; stream again "
                "from the beginning"
            )
        )

    def _release(self, vbucket: FollowedVbucket) -> None:
        """Detach the stream of a vbucket.

        A stream that broke in an out-of-order snapshot has delivered rows that its position does not cover. After a
        failover no node would report them as lost, so they are undone now.
        """
        stream = vbucket.release()
        if stream is None or stream.progress.disorder is None:
            return
        seqno = vbucket.position.seqno
        log.warning(
            "vbucket %d: stream broke in an out-of-order snapshot: delivering its rows again from seqno %d",
            vbucket.number,
            seqno,
        )
        if stream.last_seqno > seqno:
            self._rollbacks.emit_rollback(vbucket, stream.last_seqno, seqno)
