"""One client's socket and the conversation behind it."""

from __future__ import annotations

import selectors
import socket

from dcp.embedded.connection import ServerConnection
from dcp.embedded.faults import Faults
from dcp.embedded.faults.fault import FOR_EVER
from dcp.embedded.tls import TlsSocket

_PIECE = 256 << 10
# As many buffers as one call may send.
_MOST_PARTS = 64


class ServerLink:
    """Moves bytes between a socket that never blocks and a conversation."""

    def __init__(self, sock: socket.socket | TlsSocket, connection: ServerConnection, faults: Faults) -> None:
        self.socket = sock
        self.connection = connection
        self._faults = faults
        # A fault lets it send nothing before this time.
        self._rests_until = 0.0
        self.received = 0
        self.sent = 0
        self.gone = False
        # What the server lets the selector look for.
        self.watched = 0
        self._waiting: list[memoryview] = []
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def events(self) -> int:
        """What of its socket it waits for: the selector's bits."""
        if self._rests_until:
            return 0 if self._rests_until == FOR_EVER else selectors.EVENT_READ
        if not self._waiting:
            return selectors.EVENT_READ
        return selectors.EVENT_WRITE | (0 if self.connection.crowded else selectors.EVENT_READ)

    @property
    def pending(self) -> int:
        """How many bytes wait for the socket to take them."""
        return sum(map(len, self._waiting))

    def due(self) -> float | None:
        """When there is something to do although nothing has come."""
        due = self.connection.due()
        if not 0 < self._rests_until < FOR_EVER:
            return due
        return self._rests_until if due is None else min(due, self._rests_until)

    def read(self, now: float) -> None:
        """What the client sent goes to the conversation."""
        try:
            data = self.socket.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self.received += len(data)
        if data and self._faults.on:
            data = self._faults.received(self, data)
        if data:
            self.connection.receive(data, now)
        else:
            self.gone = True

    def write(self, now: float) -> bool:
        """What the conversation has goes to the client; whether there may be more at once."""
        if self._faults.on or self._rests_until:
            rest = self._faults.rest(self, now)
            self._rests_until = rest if rest > now else 0.0
            if self._rests_until:
                return False
        if not self._waiting:
            parts = self.connection.send(now)
            if parts and self._faults.on:
                parts = self._faults.sending(self, parts) or [b""]
            self._waiting = [memoryview(part).cast("B") for part in parts]
        if not self._waiting:
            self.gone = self.gone or self.connection.closing
            return False
        room = self._faults.room(self, now) if self._faults.on else None
        if self.gone:
            return False
        try:
            sent = self.socket.sendmsg(self._waiting[:_MOST_PARTS] if room is None else _first(self._waiting, room))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.gone = True
            return False
        self.sent += sent
        self._forget(sent)
        return not self._waiting or sent == room

    def _forget(self, count: int) -> None:
        """The first bytes of what waits are gone."""
        done = 0
        while done < len(self._waiting) and count >= len(self._waiting[done]):
            count -= len(self._waiting[done])
            done += 1
        del self._waiting[:done]
        if count:
            self._waiting[0] = self._waiting[0][count:]

    def close(self) -> None:
        self.gone = True
        self.socket.close()
        self.connection.closed()


def _first(parts: list[memoryview], count: int) -> list[memoryview]:
    """The first bytes of these, as far as one part has them."""
    return [parts[0][:count]]
