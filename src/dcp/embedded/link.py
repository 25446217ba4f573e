"""One client's socket, and the connection whose bytes it carries."""

from __future__ import annotations

import itertools
import selectors
import socket
from typing import Protocol

from dcp.embedded.bucket import ServerNode
from dcp.embedded.connection import ServerConnection
from dcp.embedded.faults import Faults
from dcp.embedded.faults.fault import FOREVER
from dcp.embedded.tls import TlsServerSocket

_RECEIVE_SIZE = 256 << 10
# Buffers that one sendmsg() may take: far below IOV_MAX, which is 1024 on Linux.
_MAX_PARTS = 64


# Of all links of this process.
_NUMBERS = itertools.count(1)


class NodeConnection(Protocol):
    """Node's side of one client: bytes in, bytes out."""

    @property
    def node(self) -> ServerNode | None: ...

    closing: bool

    @property
    def backlogged(self) -> bool: ...

    def admit(self, name: str) -> None: ...

    def receive(self, data: bytes, now: float) -> None: ...

    def send(self, now: float) -> list[bytes | memoryview]: ...

    def due(self) -> float | None: ...

    def tick(self, now: float) -> None: ...

    def closed(self) -> None: ...


class Link:
    """Moves bytes between a non-blocking socket and a connection."""

    connection: NodeConnection

    def __init__(self, sock: socket.socket | TlsServerSocket, connection: NodeConnection) -> None:
        self.number = next(_NUMBERS)
        self.socket = sock
        self.connection = connection
        # Bytes.
        self.received = 0
        self.sent = 0
        # True once the link is to be dropped.
        self.gone = False
        # Events for which the server has registered the socket.
        self.watched_events = 0
        # Bytes that the socket has not taken yet. They may be views into the connection's buffer, so the connection is
        # not asked for more before all of them were sent.
        self._unsent: list[memoryview] = []
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def events(self) -> int:
        """Selector events that the link waits for; 0 for none."""
        if not self._unsent:
            return selectors.EVENT_READ
        # A client that does not read its responses may send no more requests: its TCP window fills up.
        return selectors.EVENT_WRITE | (0 if self.connection.backlogged else selectors.EVENT_READ)

    @property
    def pending(self) -> int:
        """Number of bytes that the socket has not taken yet."""
        return sum(map(len, self._unsent))

    def due(self) -> float | None:
        """Return when the link has something to do even if its socket has no event."""
        return self.connection.due()

    def read(self, now: float) -> None:
        """Receive from the socket and pass the bytes to the connection."""
        try:
            data = self.socket.recv(_RECEIVE_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self.received += len(data)
        if data := self._received(data):
            self.connection.receive(data, now)
        else:
            self.gone = True

    def write(self, now: float) -> bool:
        """Send what the connection has; return whether it may have more at once."""
        if not self._unsent:
            self._unsent = [memoryview(part).cast("B") for part in self._sending(self.connection.send(now))]
        if not self._unsent:
            # A connection that closes sends its last responses first.
            self.gone = self.gone or self.connection.closing
            return False
        room = self._room(now)
        if self.gone:
            return False
        try:
            sent = self.socket.sendmsg(self._unsent[:_MAX_PARTS] if room is None else [self._unsent[0][:room]])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.gone = True
            return False
        self.sent += sent
        self._discard(sent)
        return not self._unsent or sent == room

    def disconnect(self) -> None:
        """Close the socket once the client has its responses: the last one may be to what stopped its node."""
        self.connection.closing = True

    def close(self) -> None:
        """Close the socket and release the connection."""
        self.gone = True
        self.socket.close()
        self.connection.closed()

    def _received(self, data: bytes) -> bytes:
        """Return the bytes that the connection gets; none if the client is gone."""
        return data

    def _sending(self, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Return the bytes that the client gets instead of those of the connection."""
        return parts

    def _room(self, now: float) -> int | None:
        """Return the number of bytes that may be sent at once; None for no limit."""
        return None

    def _discard(self, count: int) -> None:
        """Drop the first bytes of the unsent ones."""
        done = 0
        while done < len(self._unsent) and count >= len(self._unsent[done]):
            count -= len(self._unsent[done])
            done += 1
        del self._unsent[:done]
        if count:
            self._unsent[0] = self._unsent[0][count:]


class ServerLink(Link):
    """Link of the data service. The faults that are active see its bytes on the way."""

    connection: ServerConnection

    def __init__(self, sock: socket.socket | TlsServerSocket, connection: ServerConnection, faults: Faults) -> None:
        super().__init__(sock, connection)
        self._faults = faults
        # Time until which a fault lets the link send nothing; 0 if it may send.
        self._paused_until = 0.0

    @property
    def events(self) -> int:
        if self._paused_until:
            return 0 if self._paused_until == FOREVER else selectors.EVENT_READ
        return super().events

    def disconnect(self) -> None:
        """Close the socket at once."""
        self.gone = True

    def due(self) -> float | None:
        due = self.connection.due()
        if not 0 < self._paused_until < FOREVER:
            return due
        return self._paused_until if due is None else min(due, self._paused_until)

    def write(self, now: float) -> bool:
        if self._faults.active or self._paused_until:
            until = self._faults.paused_until(self, now)
            self._paused_until = until if until > now else 0.0
            if self._paused_until:
                return False
        return super().write(now)

    def _received(self, data: bytes) -> bytes:
        return self._faults.received(self, data) if data and self._faults.active else data

    def _sending(self, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
        if not parts or not self._faults.active:
            return parts
        # An empty part keeps the link writing if a fault has removed everything.
        return [*self._faults.sending(self, parts)] or [b""]

    def _room(self, now: float) -> int | None:
        return self._faults.room(self, now) if self._faults.active else None
