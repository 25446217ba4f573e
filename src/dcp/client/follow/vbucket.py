"""The state of one vbucket of a stream: position, open stream, retry time, and the reason why nothing arrives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from dcp._codec import LazyPosition
from dcp.client.follow.backoff import LONGEST_DELAY, jittered, next_delay
from dcp.client.follow.node_link import NodeLink
from dcp.client.monitor import CONSUMER, NO_CONNECTION, NO_OWNER, RETRYING, SILENT, UNANSWERED, Observation
from dcp.client.stats import Window
from dcp.cluster_map import Node
from dcp.position import StreamPosition
from dcp.session.states import REQUESTED
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import ENDLESS


@dataclass(eq=False, slots=True)
class FollowedVbucket:
    """One vbucket of a stream. Guarded by the stream's lock.

    position: where the current stream began, or the next one will.
    end: last seqno of the range; ENDLESS for none.
    purged: seqno up to which deletions may be missing, for a stream that begins at a time; 0 for none.
    link: the connection that has its stream; `stream` is None until the link's thread has sent the request.
    leaving: the stream was asked to end, since another node owns the vbucket.
    asked: name of the node that was asked for the stream and did not accept it yet; empty for none.
    overdue: the log says that this node does not announce the vbucket (TAP).
    """

    number: int
    position: StreamPosition
    end: int = ENDLESS
    purged: int = 0
    done: bool = False
    link: NodeLink | None = None
    stream: ConsumerStream | None = None
    leaving: bool = False
    delay: float = 0.0
    retry_at: float = 0.0
    last_error: str = ""
    asked: str = ""
    overdue: bool = False
    # Monotonic times of the first request to this node, and of the loss of its connection since; 0 for none.
    _asked_at: float = 0.0
    _lost_at: float = 0.0
    # Seqno and monotonic time at which the node accepted the stream; ENDLESS and 0 while it has not.
    _accepted: tuple[int, float] = ENDLESS, 0.0

    def requested(self, link: NodeLink, now: float) -> None:
        """Record that the stream is requested on a link, at a monotonic time that all of one request share."""
        self.link, self.leaving = link, False
        if self.asked != link.name:
            self.asked, self.overdue, self._asked_at = link.name, False, now
        elif self._lost_at:
            self._asked_at += now - self._lost_at
        self._lost_at = 0.0

    def accepted(self, now: float) -> None:
        """Record that the node accepted the stream, at a monotonic time."""
        self.asked, self._accepted = "", (self.position.seqno, now)

    def lost(self, now: float) -> None:
        """Record that the connection was lost. The time until the next request does not count."""
        self._lost_at = self._lost_at or now

    def unanswered(self, now: float) -> float:
        """Return the seconds that the node had to accept the stream."""
        return (self._lost_at or now) - self._asked_at

    def release(self) -> ConsumerStream | None:
        """Detach the stream, take over its position, and return it."""
        stream, self.stream, self.link = self.stream, None, None
        if stream is not None:
            self.position = stream.position
        return stream

    def retry(self, error: str) -> None:
        """Schedule the next request, with backoff. It begins again after a stream that has moved, or that lasted."""
        seqno, since = self._accepted
        if self.position.seqno > seqno or (since and time.monotonic() > since + LONGEST_DELAY):
            self.delay = 0.0
        self.last_error, self._accepted = error, (ENDLESS, 0.0)
        self.delay = next_delay(self.delay)
        self.retry_at = time.monotonic() + jittered(self.delay)


def observe(
    vbucket: FollowedVbucket, owner: Node | None, links: Mapping[Node, NodeLink], last_errors: Mapping[str, str]
) -> Observation:
    """Return where a vbucket stands, and the reason if nothing should arrive from now on.

    last_errors: by name of the node.
    """
    received = vbucket.position.seqno if vbucket.stream is None else vbucket.stream.last_seqno
    return Observation(vbucket.number, received, vbucket.end, *_reason(vbucket, owner, links, last_errors))


def _reason(
    vbucket: FollowedVbucket, owner: Node | None, links: Mapping[Node, NodeLink], last_errors: Mapping[str, str]
) -> tuple[str, str]:
    if vbucket.link is not None and (vbucket.link.full or is_full(window_of(vbucket.link))):
        return CONSUMER, "the consumer takes no batches, and the flow-control window is full"
    if owner is None:
        return NO_OWNER, "no node owns them; recover the node that did, or fail it over"
    link = links.get(owner)
    if link is None or not link.ready:
        error = last_errors.get(str(owner))
        return NO_CONNECTION, f"no connection to {owner}{f': {error}' if error else ''}"
    if vbucket.link is None:
        return RETRYING, f"{owner} is asked for their streams repeatedly: {vbucket.last_error or 'no stream yet'}"
    if vbucket.stream is None or vbucket.stream.state == REQUESTED:
        return UNANSWERED, f"{owner} does not answer the request for their streams"
    return SILENT, f"{owner} accepted their streams, and sends nothing"


def window_of(link: NodeLink) -> Window:
    """Return the flow-control window of a connection."""
    agreement = None if link.session is None else link.session.agreement
    return Window(0 if agreement is None else agreement.window, link.unprocessed)


def is_full(window: Window) -> bool:
    """Return True if the node may have to wait: acknowledgements and batches in work take the other half."""
    return 0 < window.size <= 2 * window.used


def consumed_seqno(reached: LazyPosition) -> int:
    """Return the seqno up to which the consumer has a vbucket."""
    return max(reached.last_seqno, reached.progress.position.seqno)
