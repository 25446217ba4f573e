"""A connection for commands: ask, and wait for the answer."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from dcp.client import network_errors as blame
from dcp.client.connection_string import Address
from dcp.columns.decoder import Decoder
from dcp.errors import DcpError
from dcp.session.events import CommandAnswered, Event, SessionReady
from dcp.session.handshake import Agreement, ConnectionSettings
from dcp.session.session import Session
from dcp.wire.frame import Frame

_MANY = 1 << 30
# So many questions fit into the buffers of any connection, and so do their answers.
_AT_ONCE = 512


class Caller:
    """Asks a node one thing after the other. `host` and `port` are where it was reached."""

    def __init__(self, sock: socket.socket, wishes: ConnectionSettings, host: str, port: int, timeout: float) -> None:
        self.host, self.port = host, port
        self._socket, self._timeout = sock, timeout
        self._session = Session(wishes, lambda collections: Decoder(collections=collections), time.monotonic())
        self._events: deque[Event] = deque()
        self._deadline = time.monotonic() + timeout
        self.agreement: Agreement
        try:
            while True:
                event = self._next()
                if isinstance(event, SessionReady):
                    self.agreement = event.agreement
                    return
        except BaseException:
            sock.close()
            raise

    @property
    def where(self) -> str:
        return str(Address(self.host, self.port))

    @property
    def last_heard(self) -> float:
        return self._session.last_heard

    def ask(self, name: str, **parts: Any) -> Frame:
        return self.ask_all(name, [parts])[0]

    def ask_all(self, name: str, questions: Sequence[Mapping[str, Any]]) -> list[Frame]:
        """Many questions of a kind, without waiting for one answer before the next question."""
        answers: list[Frame] = []
        for first in range(0, len(questions), _AT_ONCE):
            opaques = [self._session.send_command(name, **parts) for parts in questions[first : first + _AT_ONCE]]
            missing = set(opaques)
            found: dict[int, Frame] = {}
            self._deadline = time.monotonic() + self._timeout
            while missing:
                event = self._next()
                if isinstance(event, CommandAnswered) and event.frame.opaque in missing:
                    missing.remove(event.frame.opaque)
                    found[event.frame.opaque] = event.frame
            answers += map(found.__getitem__, opaques)
        return answers

    def stats(self, group: str) -> dict[str, str]:
        """A group of statistics; none where the node does not have it."""
        opaque = self._session.send_command("stat", key=group.encode())
        found: dict[str, str] = {}
        self._deadline = time.monotonic() + self._timeout
        while True:
            event = self._next()
            if not isinstance(event, CommandAnswered) or event.frame.opaque != opaque:
                continue
            if event.frame.status or not event.frame.key:
                return found
            found[event.frame.key.decode(errors="replace")] = event.frame.value.decode(errors="replace")

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> Event:
        while not self._events:
            try:
                # Bytes that trickle in do not make it longer.
                left = self._deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
                self._socket.sendall(self._session.outgoing())
                with self._session.buffer() as room:
                    count = self._socket.recv_into(room)
            except TimeoutError:
                raise blame.late(self.where, self._timeout, "bootstrap_timeout") from None
            except OSError as error:
                raise blame.broken(self.where, error, ready=self._session.agreement is not None) from None
            if count == 0:
                raise blame.closed(self.where)
            ready = self._session.agreement is not None
            try:
                events, _ = self._session.received(count, time.monotonic(), _MANY, _MANY)
                self._session.take()
            except DcpError as error:
                raise blame.at(self.where, error, ready=ready) from None
            self._events.extend(events)
        return self._events.popleft()
