"""One TCP connection to one node, driven by its own thread: bytes to batches, commands to bytes."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from dcp.client import network_errors
from dcp.client.follow.settings import BatchLimits
from dcp.client.tls import TlsSocket
from dcp.client.transport import NodeSocket
from dcp.columns.decoder import CAN_RECEIVE, Decoder
from dcp.errors import DcpError, TransportError
from dcp.session.events import Event, StreamEnded, StreamRolledBack
from dcp.session.session import Delivery, Session
from dcp.wire.dcp import StreamEnd

# poll() needs no descriptor of its own, unlike epoll, and unlike select() takes descriptors above 1023. Windows has
# select() only, which counts sockets instead.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class LinkListener(Protocol):
    """Receives a link's events and batches. All methods are called on the link's thread."""

    def on_events(self, link: NodeLink, events: Sequence[Event]) -> None:
        """Handle events of the session, one or more, in their order."""

    def on_delivery(self, link: NodeLink, delivery: Delivery) -> None:
        """Take a batch."""

    def on_lost(self, link: NodeLink, error: DcpError) -> None:
        """Handle the end of the connection. The last call, unless the link is closing."""

    def on_bug(self, bug: Exception) -> None:
        """Fail the stream for an exception that is not a DcpError or OSError."""


class NodeLink:
    """Serves the session of one connection until it is closed or the connection fails.

    The session is touched by the link's thread only; other threads queue commands with `run_in_thread`, and a socket
    pair wakes the thread from its wait.

    name: host and port of the node. open_socket: connects. open_session: makes the session, at a monotonic time.
    """

    def __init__(
        self,
        name: str,
        open_socket: Callable[[], NodeSocket],
        open_session: Callable[[float], Session],
        listener: LinkListener,
        limits: BatchLimits,
    ) -> None:
        self.name = name
        self.session: Session | None = None
        self.ready = False
        # Delivered bytes that the consumer has not processed, as flow control counts them.
        self.unprocessed = 0
        # Bytes of memory that these take. Both are guarded by the stream's lock; the link's thread reads them without.
        self.held = 0
        # Set once, by any thread: events and batches from then on are dropped.
        self.closing = False
        self._open_socket, self._open_session = open_socket, open_session
        self._listener, self._limits = listener, limits
        self._commands: deque[Callable[[Session], None]] = deque()
        # A byte written to the one end wakes the thread, which waits for the other end and the connection.
        self._wake_send, self._wake_receive = socket.socketpair()
        self._wake_send.setblocking(False)
        self._wake_receive.setblocking(False)
        self._selector = _Selector()
        self._selector.register(self._wake_receive, selectors.EVENT_READ)
        self._registered_events = 0
        self._unsent = memoryview(b"")
        # Monotonic time at which the oldest undelivered row or event arrived.
        self._oldest_arrival = 0.0
        # True if received bytes were left after a full batch, since batches hold as many bytes as they may.
        self._left_over = False
        # Streams that ended, whose last rows may not have been delivered yet.
        self._finished: list[StreamEnded] = []
        self.thread = threading.Thread(target=self._run, name=f"dcp {name}", daemon=True)

    def __repr__(self) -> str:
        return f"<NodeLink {self.name}>"

    def start(self) -> None:
        """Start the thread, which connects."""
        self.thread.start()

    def run_in_thread(self, command: Callable[[Session], None]) -> None:
        """Queue a command for the link's thread. Commands run in order, and not at all if the connection fails."""
        self._commands.append(command)
        self._wake()

    @property
    def full(self) -> bool:
        """True if the link waits for the consumer: delivered batches hold as many bytes as they may."""
        return 0 < self._limits.held <= self.held

    def processed(self, count: int, size: int) -> None:
        """Acknowledge a batch of `count` flow bytes and `size` bytes of memory. Called under the stream's lock."""
        self.unprocessed -= count
        self.held -= size
        self.run_in_thread(lambda session: session.processed(count))

    def close(self) -> None:
        """Tell the thread to end, without waiting for it. Nothing is delivered any more."""
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        # The socket is full if the thread has been woken already, and closed if it has ended.
        with contextlib.suppress(OSError):
            self._wake_send.send(b"\0")

    # The thread.

    def _run(self) -> None:
        try:
            with self._open_socket() as sock:
                sock.setblocking(False)
                self.session = self._open_session(time.monotonic())
                while not self.closing:
                    self._turn(sock, self.session)
        except DcpError as error:
            self._fail(network_errors.located(self.name, error, ready=self.ready))
        except OSError as error:
            self._fail(network_errors.broken(self.name, error, ready=self.ready))
        except Exception as bug:
            # An exception of this thread would otherwise go unnoticed, and the stream would hang.
            self._listener.on_bug(bug)
        finally:
            self._selector.close()
            self._wake_send.close()
            self._wake_receive.close()

    def _fail(self, error: DcpError) -> None:
        if self.closing:
            return
        if self.session is not None:
            # Positions of streams already include rows that are decoded but not delivered. They must not be lost, since
            # the streams resume after them.
            with contextlib.suppress(DcpError):
                self._deliver(self.session)
        self._listener.on_lost(self, error)

    def _turn(self, sock: NodeSocket, session: Session) -> None:
        while self._commands:
            self._commands.popleft()(session)
        self._send(sock, session)
        if session.agreement is None:
            # Also if bytes arrive all the time.
            session.check(time.monotonic())
        decoder = self._direct_receiver(sock, session)
        if self._left_over and not self.full:
            self._left_over = False
            full = self._advance(session)
        elif decoder is not None:
            full = self._receive_directly(sock, session, decoder)
        else:
            full = self._wait(sock, session) and self._receive(sock, session)
        self._deliver_due(session, full)

    def _direct_receiver(self, sock: NodeSocket, session: Session) -> Decoder | None:
        """Return the decoder if it can receive from the socket itself: not over TLS, nor while bytes are unsent.

        Nor in the handshake: its time limit holds for a node that sends a few bytes at a time, too, and the decoder
        returns only after a frame.
        """
        if not CAN_RECEIVE or self._unsent or session.agreement is None or isinstance(sock, TlsSocket):
            return None
        return session.receiver if self._reads(session) else None

    def _reads(self, session: Session) -> bool:
        """Return whether to receive. A node that ignores the window, or has none, is stopped by TCP."""
        return session.wants_bytes and not self.full

    def _send(self, sock: NodeSocket, session: Session) -> None:
        if not self._unsent:
            self._unsent = memoryview(session.outgoing())
        while self._unsent:
            try:
                self._unsent = self._unsent[sock.send(self._unsent) :]
            except BlockingIOError:
                return

    def _receive_directly(self, sock: NodeSocket, session: Session, decoder: Decoder) -> bool:
        """Wait, receive and decode in one call of C, without the GIL. Return True if a batch is full."""
        limits, idle = self._limits, not session.has_updates and not self._finished
        count, closed = decoder.receive(
            sock.fileno(), self._wake_receive.fileno(), self._wait_limit(session), limits.rows, limits.bytes
        )
        if count:
            now = time.monotonic()
            session.heard(now)
            self._oldest_arrival = now if idle else self._oldest_arrival
        elif closed:
            raise self._closed()
        else:
            session.check(time.monotonic())
        return self._advance(session)

    def _wait(self, sock: NodeSocket, session: Session) -> bool:
        """Wait for bytes, a command, or the next deadline. Return True if there are bytes."""
        # TLS may hold decrypted bytes that the selector does not see.
        reads = self._reads(session)
        if reads and isinstance(sock, TlsSocket) and sock.has_more:
            return True
        wanted = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if self._unsent else 0)
        readable = self._select(sock, wanted, self._wait_limit(session))
        if not reads:
            # What the node sends meanwhile is not read, so this time is not the node's silence.
            session.heard(time.monotonic())
        if not readable:
            session.check(time.monotonic())
        return readable

    def _wait_limit(self, session: Session) -> float | None:
        """Return the seconds until the session has to be checked or a batch is due; None if neither is set."""
        deadlines = [each for each in (session.deadline(), self._batch_due(session)) if each is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _select(self, sock: NodeSocket, wanted: int, timeout: float | None) -> bool:
        """Wait until the socket is ready for `wanted` events, or the thread is woken. Return True if it is readable."""
        if wanted != self._registered_events:
            if self._registered_events:
                self._selector.unregister(sock)
            if wanted:
                self._selector.register(sock, wanted)
            self._registered_events = wanted
        ready = {key.fileobj: events for key, events in self._selector.select(timeout)}
        if self._wake_receive in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake_receive.recv(4096)
        return bool(ready.get(sock, 0) & selectors.EVENT_READ)

    def _receive(self, sock: NodeSocket, session: Session) -> bool:
        """Receive until nothing is left or a batch is full. Return True if a batch is full."""
        full = False
        while self._reads(session) and not full and not self.closing:
            try:
                with session.buffer() as room:
                    count = sock.recv_into(room)
            except BlockingIOError:
                break
            if count == 0:
                raise self._closed()
            if not session.has_updates and not self._finished:
                self._oldest_arrival = time.monotonic()
            events, full = session.received(count, time.monotonic(), self._limits.rows, self._limits.bytes)
            self._report(session, events)
        return full

    def _closed(self) -> TransportError:
        return TransportError(f"{self.name}: the node closed the connection")

    def _deliver_due(self, session: Session, full: bool) -> None:
        """Deliver batches that are full or due. Received bytes may fill several."""
        due = self._batch_due(session)
        if not full and due is not None and time.monotonic() >= due:
            self._deliver(session)
        while full:
            self._deliver(session)
            self._left_over = self.full
            full = not self._left_over and self._advance(session)

    def _advance(self, session: Session) -> bool:
        """Decode received bytes that were left after a full batch. Return True if the next batch is full."""
        events, full = session.advance(self._limits.rows, self._limits.bytes)
        self._report(session, events)
        return full

    def _batch_due(self, session: Session) -> float | None:
        """Return the time at which undelivered rows and ends are delivered; None if there are none."""
        if self._finished and not session.streams:
            # The last stream has ended: no more rows can fill the batch.
            return self._oldest_arrival
        return self._oldest_arrival + self._limits.linger if session.has_updates or self._finished else None

    def _report(self, session: Session, events: list[Event]) -> None:
        """Report events, each after the rows that arrived before it, and together as far as that allows."""
        together: list[Event] = []
        for event in events:
            if isinstance(event, StreamEnded) and event.reason == StreamEnd.OK:
                # Reported with the batch of its rows, not with one of its own: hundreds of streams end in a row.
                self._finished.append(event)
                continue
            if isinstance(event, StreamRolledBack | StreamEnded):
                # The event moves the vbucket's position: rows from before have to be delivered under the old one.
                self._report_together(together)
                together = []
                self._deliver(session)
            together.append(event)
        self._report_together(together)

    def _report_together(self, events: Sequence[Event]) -> None:
        # The listener takes a lock and wakes threads, which hundreds of streams that begin or end share.
        if events:
            self._listener.on_events(self, events)

    def _deliver(self, session: Session) -> None:
        delivery = session.take()
        # Rows that are left over arrived before now.
        self._oldest_arrival = time.monotonic()
        self._listener.on_delivery(self, delivery)
        finished, self._finished = self._finished, []
        self._report_together(finished)
