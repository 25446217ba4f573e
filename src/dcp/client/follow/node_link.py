"""One connection to one node, and the thread that serves it: bytes to batches, commands to bytes."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dcp.client import network_errors as blame
from dcp.columns.decoder import CAN_RECEIVE, Decoder
from dcp.errors import DcpError, TransportError
from dcp.session.events import Event, StreamEnded, StreamRolledBack
from dcp.session.session import Delivery, Session
from dcp.wire.dcp import StreamEnd

# What needs no file of its own, and knows files above the 1024th; Windows counts in another way.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a batch is handed out: at so many rows or bytes, or when its first row is so old."""

    rows: int
    bytes: int
    linger: float


class Owner(Protocol):
    """Who gets what comes. Everything is called by the link's thread."""

    def happened(self, link: Link, event: Event) -> None: ...

    def delivered(self, link: Link, delivery: Delivery) -> None: ...

    def lost(self, link: Link, error: DcpError) -> None: ...

    def broken(self, bug: Exception) -> None: ...


class Link:
    """Serves a session until it is closed, or the connection fails."""

    def __init__(
        self,
        name: str,
        open_socket: Callable[[], socket.socket],
        open_session: Callable[[float], Session],
        owner: Owner,
        limits: Limits,
    ) -> None:
        self.name = name
        self.session: Session | None = None
        self.ready = False
        # Bytes that count for flow control, and that the consumer is not done with.
        self.unprocessed = 0
        # Whatever it says from now on is not wanted.
        self.closing = False
        self._open_socket, self._open_session = open_socket, open_session
        self._owner, self._limits = owner, limits
        self._commands: deque[Callable[[Session], None]] = deque()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector = _Selector()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._watched = 0
        self._waiting = memoryview(b"")
        self._first_news = 0.0
        # Streams that came to their end, and whose rows may not have been delivered yet.
        self._finished: list[StreamEnded] = []
        self.thread = threading.Thread(target=self._run, name=f"dcp {name}", daemon=True)

    def __repr__(self) -> str:
        return f"<Link {self.name}>"

    def start(self) -> None:
        self.thread.start()

    def do(self, command: Callable[[Session], None]) -> None:
        """Let the thread do something with the session."""
        self._commands.append(command)
        self._ring()

    def processed(self, count: int) -> None:
        """The consumer is done with so many counted bytes."""
        self.unprocessed -= count
        self.do(lambda session: session.processed(count))

    def close(self) -> None:
        """Let the thread end; nothing is delivered any more."""
        self.closing = True
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):
            self._bell.send(b"\0")

    # The thread.

    def _run(self) -> None:
        try:
            with self._open_socket() as sock:
                sock.setblocking(False)
                self.session = self._open_session(time.monotonic())
                while not self.closing:
                    self._turn(sock, self.session)
        except DcpError as error:
            self._fail(blame.at(self.name, error, ready=self.ready))
        except OSError as error:
            self._fail(blame.broken(self.name, error, ready=self.ready))
        except Exception as bug:
            # Nobody would hear of it: the consumer raises it.
            self._owner.broken(bug)
        finally:
            self._selector.close()
            self._bell.close()
            self._ear.close()

    def _fail(self, error: DcpError) -> None:
        if self.closing:
            return
        if self.session is not None:
            # Streams have come as far as their messages say: the rows before those must not get lost.
            with contextlib.suppress(DcpError):
                self._deliver(self.session)
        self._owner.lost(self, error)

    def _turn(self, sock: socket.socket, session: Session) -> None:
        while self._commands:
            self._commands.popleft()(session)
        self._send(sock, session)
        receiver = self._receiver(sock, session)
        if receiver is not None:
            full = self._draw(sock, session, receiver)
        else:
            full = self._wait(sock, session) and self._receive(sock, session)
        self._hand_out(session, full)

    def _receiver(self, sock: socket.socket, session: Session) -> Decoder | None:
        """What may have the socket for itself: if bytes come in the clear, and none wait to be sent."""
        ready = CAN_RECEIVE and session.wants_bytes and not self._waiting and not isinstance(sock, ssl.SSLSocket)
        return session.receiver if ready else None

    def _send(self, sock: socket.socket, session: Session) -> None:
        if not self._waiting:
            self._waiting = memoryview(session.outgoing())
        while self._waiting:
            try:
                self._waiting = self._waiting[sock.send(self._waiting) :]
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return

    def _draw(self, sock: socket.socket, session: Session, receiver: Decoder) -> bool:
        """Wait and receive as the two below do, in one call until there is something to do. Whether a batch is full."""
        limits, idle = self._limits, not session.has_updates and not self._finished
        count, closed = receiver.receive(
            sock.fileno(), self._ear.fileno(), self._patience(session), limits.rows, limits.bytes
        )
        if count:
            now = time.monotonic()
            session.heard(now)
            self._first_news = now if idle else self._first_news
        elif closed:
            raise self._closed()
        else:
            self._check_silence(session)
        return self._advance(session)

    def _wait(self, sock: socket.socket, session: Session) -> bool:
        """Until bytes come, a command does, or something is due. Whether there are bytes."""
        if session.wants_bytes and isinstance(sock, ssl.SSLSocket) and sock.pending():
            return True
        wanted = (selectors.EVENT_READ if session.wants_bytes else 0) | (selectors.EVENT_WRITE if self._waiting else 0)
        readable = self._select(sock, wanted, self._patience(session))
        if not readable:
            self._check_silence(session)
        return readable

    def _patience(self, session: Session) -> float | None:
        """How long nothing has to be done unless something comes."""
        dues = [due for due in (session.deadline(), self._linger_ends(session)) if due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _check_silence(self, session: Session) -> None:
        silent = session.deadline()
        if silent is not None and time.monotonic() >= silent:
            raise TransportError(f"{self.name}: the node said nothing for {silent - session.last_heard:g} s")

    def _select(self, sock: socket.socket, wanted: int, patience: float | None) -> bool:
        """Until the socket is ready for what is wanted, or the bell rings. Whether there is something to read."""
        if wanted != self._watched:
            if self._watched:
                self._selector.unregister(sock)
            if wanted:
                self._selector.register(sock, wanted)
            self._watched = wanted
        ready = {key.fileobj: events for key, events in self._selector.select(patience)}
        if self._ear in ready:
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(4096)
        return bool(ready.get(sock, 0) & selectors.EVENT_READ)

    def _receive(self, sock: socket.socket, session: Session) -> bool:
        """What is there, until a batch is full. Whether one is."""
        full = False
        while session.wants_bytes and not full and not self.closing:
            try:
                with session.buffer() as room:
                    count = sock.recv_into(room)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if count == 0:
                raise self._closed()
            if not session.has_updates and not self._finished:
                self._first_news = time.monotonic()
            events, full = session.received(count, time.monotonic(), self._limits.rows, self._limits.bytes)
            self._tell(session, events)
        return full

    def _closed(self) -> TransportError:
        return TransportError(f"{self.name}: the node closed the connection")

    def _hand_out(self, session: Session, full: bool) -> None:
        """Rows that are due; while a batch is full, the next one may be too."""
        ends = self._linger_ends(session)
        if not full and ends is not None and time.monotonic() >= ends:
            self._deliver(session)
        while full:
            self._deliver(session)
            full = self._advance(session)

    def _advance(self, session: Session) -> bool:
        """What can be made of the bytes that are there. Whether a batch is full."""
        events, full = session.advance(self._limits.rows, self._limits.bytes)
        self._tell(session, events)
        return full

    def _linger_ends(self, session: Session) -> float | None:
        """When what came is handed out. Behind the last stream nothing more is to come."""
        if self._finished and not session.streams:
            return self._first_news
        return self._first_news + self._limits.linger if session.has_updates or self._finished else None

    def _tell(self, session: Session, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, StreamEnded) and event.reason == StreamEnd.OK:
                # Not before its rows, but there is no hurry: many streams end one after the other.
                self._finished.append(event)
                continue
            if isinstance(event, StreamRolledBack | StreamEnded):
                # Its rows belong before it.
                self._deliver(session)
            self._owner.happened(self, event)

    def _deliver(self, session: Session) -> None:
        delivery = session.take()
        # What is left came by now.
        self._first_news = time.monotonic()
        self._owner.delivered(self, delivery)
        finished, self._finished = self._finished, []
        for event in finished:
            self._owner.happened(self, event)
