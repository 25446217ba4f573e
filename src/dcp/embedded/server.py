"""The sockets of a cluster, and the one thread that serves them all."""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from dcp.embedded.bucket import ServerNode
from dcp.embedded.connection import ServerConnection
from dcp.embedded.faults import Faults
from dcp.embedded.link import ServerLink
from dcp.embedded.tls import TlsSocket
from dcp.errors import LocalProtocolError

# How long the thread sleeps at most when nothing is due.
_NAP = 5.0
# How often a link may write before the others have their turn.
_TURNS = 8


class Traffic(NamedTuple):
    """What a node does for its clients now, and what it has done so far."""

    connections: int = 0
    streams: int = 0
    items: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True)
class _Door:
    """A listening socket of a node."""

    socket: socket.socket
    node: ServerNode
    tls: ssl.SSLContext | None


class ClusterServer:
    """Listens for the nodes, and lets their conversations go on.

    lock: held whenever a conversation is touched; who holds it may change the cluster.
    """

    def __init__(
        self, lock: threading.RLock, converse: Callable[[ServerNode], ServerConnection], faults: Faults
    ) -> None:
        self._lock = lock
        self._converse = converse
        self._faults = faults
        self._selector = selectors.DefaultSelector()
        self._links: dict[socket.socket | TlsSocket, ServerLink] = {}
        # What the links did that are gone, by node.
        self._past: defaultdict[int, Counter[str]] = defaultdict(Counter)
        # The ports of closed doors. Clients still knock there, and must not meet another program.
        self._kept: dict[int, socket.socket] = {}
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dcp-embedded", daemon=True)

    @property
    def links(self) -> list[ServerLink]:
        return list(self._links.values())

    def traffic(self, node: ServerNode) -> Traffic:
        """For whoever holds the lock."""
        there = [link for link in self.links if link.connection.node is node]
        done = sum(map(_work, there), self._past[node.number])
        streams = sum(len(link.connection.sources) for link in there)
        return Traffic(len(there), streams, done["items"], done["sent"], done["received"])

    def listen(self, node: ServerNode, host: str, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Open a door for clients of a node, with or without TLS; says which port it has."""
        try:
            door = self._kept.pop(port, None) or _bound(host, port)
            door.listen(512)
        except OSError as error:
            raise LocalProtocolError(f"host and port: cannot listen on {host}:{port}: {error.strerror}") from None
        door.setblocking(False)
        self._selector.register(door, selectors.EVENT_READ, _Door(door, node, tls))
        return int(door.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something has changed: let every conversation look whether it has something to say."""
        # It rings already, or nobody is there to hear it.
        with suppress(OSError):
            self._bell.send(b"\0")

    def stop(self) -> None:
        """Close everything."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        self._close_all()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _close_all(self) -> None:
        """What was closed before stays closed."""
        for link in self.links:
            self._drop(link)
        for key in list((self._selector.get_map() or {}).values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for door in self._kept.values():
            door.close()
        self._selector.close()
        self._bell.close()

    def close_door(self, node: ServerNode, *, cut: bool) -> None:
        """Nobody new reaches a node; `cut` says whether who is connected is cut off. For whoever holds the lock."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Door) and key.data.node is node:
                self._selector.unregister(key.data.socket)
                host, port = key.data.socket.getsockname()[:2]
                key.data.socket.close()
                with suppress(OSError):
                    self._kept[port] = _bound(host, port)
        for link in self.links:
            if cut and link.connection.node is node:
                link.gone = True

    # The thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as failure:
            # Clients see closed connections instead of waiting for ever; `stop` says why.
            self._failure = failure
            self._close_all()

    def _turn(self) -> None:
        busy = False
        for key, events in self._selector.select(self._patience()):
            if key.fileobj is self._ear:
                self._hear()
            elif isinstance(key.data, _Door):
                self._accept(key.data)
            elif events & selectors.EVENT_READ:
                with self._lock:
                    key.data.read(time.monotonic())
        now = time.monotonic()
        with self._lock:
            for link in self.links:
                due = link.connection.due()
                if due is not None and due <= now:
                    link.connection.tick(now)
                busy |= self._serve(link, now)
        if busy:
            self.wake()

    def _patience(self) -> float:
        dues = [due for link in self.links if (due := link.due()) is not None]
        return max(0.0, min([_NAP, *(due - time.monotonic() for due in dues)]))

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            while self._ear.recv(4096):
                pass

    def _accept(self, door: _Door) -> None:
        with self._lock:
            try:
                sock, _ = door.socket.accept()
            except OSError:
                # The client is gone, or the door closed meanwhile.
                return
            connection = self._converse(door.node)
            try:
                link = ServerLink(
                    sock if door.tls is None else TlsSocket(sock, door.tls, connection.admit), connection, self._faults
                )
            except OSError:  # It is gone already.
                sock.close()
                return
            self._links[link.socket] = link
            self._watch(link)

    def _serve(self, link: ServerLink, now: float) -> bool:
        """Let a link write; whether it has more to write at once."""
        more = not link.gone
        for _ in range(_TURNS):
            if not (more := more and link.write(now)):
                break
        if link.gone:
            self._drop(link)
            return False
        if link.events != link.watched:
            self._watch(link)
        return more

    def _watch(self, link: ServerLink) -> None:
        """Let the selector look for what the link waits for, or forget the socket if that is nothing."""
        if not link.watched:
            self._selector.register(link.socket, link.events, link)
        elif link.events:
            self._selector.modify(link.socket, link.events, link)
        else:
            self._selector.unregister(link.socket)
        link.watched = link.events

    def _drop(self, link: ServerLink) -> None:
        self._links.pop(link.socket, None)
        if link.watched:
            self._selector.unregister(link.socket)
        with self._lock:
            self._past[link.connection.node.number] += _work(link)
            link.close()


def _bound(host: str, port: int) -> socket.socket:
    """A socket with a port, on which nobody listens yet."""
    door = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((host, port))
    except OSError:
        door.close()
        raise
    return door


def _work(link: ServerLink) -> Counter[str]:
    """What a link has done so far."""
    return Counter(items=link.connection.out.items, sent=link.sent, received=link.received)
