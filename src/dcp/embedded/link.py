"""One client's socket and the conversation behind it."""

from __future__ import annotations

import socket

from dcp.embedded.conversation import Conversation
from dcp.embedded.tls import TlsSocket

_PIECE = 256 << 10
# As many buffers as one call may send.
_MOST_PARTS = 64


class Link:
    """Moves bytes between a socket that never blocks and a conversation."""

    def __init__(self, sock: socket.socket | TlsSocket, talk: Conversation) -> None:
        self.socket = sock
        self.talk = talk
        self.received = 0
        self.sent = 0
        self.gone = False
        self._waiting: list[memoryview] = []
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def blocked(self) -> bool:
        """Whether the socket has to take what waits before there can be more."""
        return bool(self._waiting)

    def read(self, now: float) -> None:
        """What the client sent goes to the conversation."""
        try:
            data = self.socket.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self.received += len(data)
        if data:
            self.talk.receive(data, now)
        else:
            self.gone = True

    def write(self, now: float) -> bool:
        """What the conversation has goes to the client; whether there may be more at once."""
        if not self._waiting:
            self._waiting = [memoryview(part).cast("B") for part in self.talk.send(now)]
        if not self._waiting:
            self.gone = self.gone or self.talk.closing
            return False
        try:
            sent = self.socket.sendmsg(self._waiting[:_MOST_PARTS])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self.gone = True
            return False
        self.sent += sent
        self._forget(sent)
        return not self._waiting

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
        self.talk.closed()
