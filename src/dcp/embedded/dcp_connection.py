"""State of a connection that was opened for DCP: its agreement, its streams, and its no-ops."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcp.embedded.connection import ServerConnection
from dcp.embedded.negotiated import Negotiated
from dcp.embedded.stream import ServerStream
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic

# First opaque of the no-ops. Servers send these opaques in little-endian order (seen in all releases):
# clients have to echo them as they are.
_FIRST_NOOP_OPAQUE = 10_000_001
# Seconds without any frame of the consumer after which the node closes the connection: dcp_idle_timeout of servers.
IDLE_TIMEOUT = 360.0


@dataclass(eq=False)
class DcpConnection:
    """DCP side of one connection.

    `streams` are keyed by vbucket and stream id. `idle_timeout` is in seconds.
    """

    connection: ServerConnection
    name: str
    negotiated: Negotiated
    streams: dict[tuple[int, int | None], ServerStream] = field(default_factory=dict)
    idle_timeout: float = IDLE_TIMEOUT

    def __post_init__(self) -> None:
        self._last_noop = self.connection.now
        self._noops_sent = 0
        self._unanswered_opaque: int | None = None

    # No-ops and dead connections.

    def due(self) -> float | None:
        """Return when to send the next no-op or to give the consumer up; None if no-ops are off."""
        if not self.negotiated.noop:
            # As on servers: without no-ops there is no idle timeout either.
            return None
        idle = self.connection.last_received + self.idle_timeout
        if self._unanswered_opaque is not None:
            return idle
        return min(idle, self._last_noop + self.negotiated.noop_interval)

    def tick(self, now: float) -> None:
        """Send a no-op, or close the connection, if it is time."""
        if not self.negotiated.noop:
            return
        if now >= self.connection.last_received + self.idle_timeout:
            self.connection.closing = True
        # The interval counts from the last no-op, whatever else was sent since: the protocol's documents say that only
        # idle connections get no-ops, but servers do not look at other traffic.
        elif self._unanswered_opaque is None and now >= self._last_noop + self.negotiated.noop_interval:
            number = (_FIRST_NOOP_OPAQUE + self._noops_sent) & 0xFFFFFFFF
            self._unanswered_opaque = int.from_bytes(number.to_bytes(4, "little"), "big")
            self._noops_sent += 1
            self._last_noop = now
            self.connection.queue(Frame("dcp_noop", Magic.REQUEST, self._unanswered_opaque))

    def noop_answered(self, frame: Frame) -> None:
        """Take the response to a no-op; one with another opaque closes the connection."""
        if frame.opaque != self._unanswered_opaque:
            self.connection.closing = True
        self._unanswered_opaque = None

    # Streams.

    def live_stream(self, key: tuple[int, int | None]) -> ServerStream | None:
        """Return the stream of a vbucket and stream id unless it has ended."""
        stream = self.streams.get(key)
        return None if stream is None or stream.ended else stream
