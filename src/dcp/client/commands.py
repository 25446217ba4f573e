"""Connections for commands: one that asks and waits for the answer, and a pool with one for each node."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dcp.client import network_errors
from dcp.client.connection_string import HostPort
from dcp.client.own_process import OwnProcess
from dcp.client.transport import NodeSocket
from dcp.columns.decoder import Decoder
from dcp.errors import DcpError, ServerError, TransportError
from dcp.session.events import CommandAnswered, Event, SessionReady
from dcp.session.handshake import Agreement, ConnectionSettings
from dcp.session.session import Session
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status

T = TypeVar("T")

_NO_LIMIT = 1 << 30
# Commands in flight at a time: they and their answers fit into any socket's buffers, so that neither side blocks.
_PIPELINE = 512


class CommandConnection:
    """One connection to one node for request and response commands.

    The constructor completes the handshake. A context manager; not thread-safe. Each command, and the handshake, has
    `timeout` seconds in all; an answer that trickles in does not extend them.
    """

    def __init__(self, sock: NodeSocket, settings: ConnectionSettings, address: HostPort, timeout: float) -> None:
        self.address = address
        self._socket, self._timeout = sock, timeout
        self._session = Session(settings, lambda collections: Decoder(collections=collections), time.monotonic())
        self._events: deque[Event] = deque()
        self._deadline = time.monotonic() + timeout
        self.agreement: Agreement
        try:
            while True:
                event = self._next_event()
                if isinstance(event, SessionReady):
                    self.agreement = event.agreement
                    return
        except BaseException:
            sock.close()
            raise

    @property
    def last_heard(self) -> float:
        """Monotonic time at which the last bytes arrived."""
        return self._session.last_heard

    def ask(self, name: str, **parts: Any) -> Frame:
        """Send a command and return its answer. `parts` are fields of Frame."""
        return self.ask_all(name, [parts])[0]

    def ask_all(self, name: str, questions: Sequence[Mapping[str, Any]]) -> list[Frame]:
        """Send one command for each of `questions`, pipelined, and return the answers in that order."""
        answers: list[Frame] = []
        for first in range(0, len(questions), _PIPELINE):
            opaques = [self._session.send_command(name, **parts) for parts in questions[first : first + _PIPELINE]]
            missing = set(opaques)
            found: dict[int, Frame] = {}
            self._deadline = time.monotonic() + self._timeout
            while missing:
                event = self._next_event()
                if isinstance(event, CommandAnswered) and event.frame.opaque in missing:
                    missing.remove(event.frame.opaque)
                    found[event.frame.opaque] = event.frame
            answers += map(found.__getitem__, opaques)
        return answers

    def stats(self, group: str) -> dict[str, str]:
        """Return a group of statistics; empty if the node does not have that group.

        Raises ServerError if the user may not read statistics.
        """
        # STAT is answered by one frame for each statistic, all with the same opaque.
        opaque = self._session.send_command("stat", key=group.encode())
        found: dict[str, str] = {}
        self._deadline = time.monotonic() + self._timeout
        while True:
            event = self._next_event()
            if not isinstance(event, CommandAnswered) or event.frame.opaque != opaque:
                continue
            if event.frame.status == Status.EACCESS:
                problem = "the user may not read statistics; grant the role data_monitoring on the bucket"
                raise ServerError(f"{self.address}: {problem}", event.frame.status)
            # An answer without a key ends the group.
            if event.frame.status or not event.frame.key:
                return found
            found[event.frame.key.decode(errors="replace")] = event.frame.value.decode(errors="replace")

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> CommandConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next_event(self) -> Event:
        while not self._events:
            try:
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
                self._socket.sendall(self._session.outgoing())
                with self._session.buffer() as room:
                    count = self._socket.recv_into(room)
            except TimeoutError:
                raise network_errors.timed_out(str(self.address), self._timeout, "bootstrap_timeout") from None
            except OSError as error:
                ready = self._session.agreement is not None
                raise network_errors.broken(str(self.address), error, ready=ready) from None
            if count == 0:
                raise network_errors.closed_early(str(self.address))
            ready = self._session.agreement is not None
            try:
                events, _ = self._session.received(count, time.monotonic(), _NO_LIMIT, _NO_LIMIT)
                self._session.take()
            except DcpError as error:
                raise network_errors.located(str(self.address), error, ready=ready) from None
            self._events.extend(events)
        return self._events.popleft()


class CommandPool:
    """Keeps one idle command connection for each node. Thread-safe: concurrent callers get a connection each.

    open_connection: connects to an address.
    idle_timeout: seconds without a byte after which a connection is not reused; firewalls drop idle ones after minutes.
    """

    def __init__(self, open_connection: Callable[[HostPort], CommandConnection], idle_timeout: float = 30.0) -> None:
        self._open = open_connection
        self._idle_timeout = idle_timeout
        self._idle: dict[HostPort, CommandConnection] = {}
        # Number of connections that were opened so far.
        self.opened = 0
        # Guards `_idle` and `opened`; never held while a node is asked.
        self._lock = threading.Lock()
        self._closed = False
        self._process = OwnProcess()

    def ask(self, address: HostPort, question: Callable[[CommandConnection], T]) -> T:
        """Return what `question` returns for a connection to a node.

        A kept connection may have been lost unnoticed, so a TransportError over it is retried once over a new one.
        """
        self._process.check("client")
        with self._lock:
            # Taken out while in use, so that another thread opens a connection of its own.
            idle = self._idle.pop(address, None)
        if idle is not None:
            if time.monotonic() - idle.last_heard > self._idle_timeout:
                idle.close()
            else:
                with suppress(TransportError):
                    return self._ask(idle, question)
        connection = self._open(address)
        with self._lock:
            self.opened += 1
        return self._ask(connection, question)

    def _ask(self, connection: CommandConnection, question: Callable[[CommandConnection], T]) -> T:
        try:
            answer = question(connection)
        except BaseException:
            # Its unread answers would be taken for those of the next question.
            connection.close()
            raise
        with self._lock:
            if self._closed or self._idle.setdefault(connection.address, connection) is not connection:
                connection.close()
        return answer

    def close_idle(self, keep: Collection[HostPort] = ()) -> None:
        """Close idle connections, except those to the addresses in `keep`. Does nothing in a forked process."""
        if self._process.left:
            return
        with self._lock:
            closing = [self._idle.pop(address) for address in self._idle.keys() - set(keep)]
        for connection in closing:
            connection.close()

    def close(self) -> None:
        """Close idle connections now, and those in use when their question is answered."""
        self._closed = True
        self.close_idle()
