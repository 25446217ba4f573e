"""Sockets of a cluster, and the one thread that serves them all."""

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
from dcp.embedded.connection import ServerConnection, Timer
from dcp.embedded.faults import Faults
from dcp.embedded.link import Link, ServerLink
from dcp.embedded.management.connection import ManagementConnection
from dcp.embedded.tls import TlsServerSocket
from dcp.errors import UsageError

# Longest sleep of the thread, in seconds, when no timer is due.
_LONGEST_SLEEP = 5.0
# Writes of one link in a row before the others have their turn.
_WRITES_PER_TURN = 8
_BACKLOG = 512


class Traffic(NamedTuple):
    """Traffic of a node's data service: open connections and streams, and totals since the cluster was started."""

    connections: int = 0
    streams: int = 0
    items: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


# Returns a connection of a client; the flag is true if it is encrypted.
_NewConnection = Callable[[bool], ServerConnection | ManagementConnection]


@dataclass(frozen=True)
class _Listener:
    """Listening socket of a node, or of the cluster as a whole. `tls` is None for plain connections."""

    socket: socket.socket
    node: ServerNode | None
    new_connection: _NewConnection
    tls: ssl.SSLContext | None


class ClusterServer:
    """Listens for all nodes and drives their connections.

    Locking: the thread holds `lock` whenever it touches a connection, a link or the cluster's documents, and never
    while it waits in the selector. Callers that hold it may change the cluster, and call `wake` after releasing it.
    `timer` acts in every turn, before the connections send.
    """

    def __init__(self, lock: threading.RLock, faults: Faults, timer: Timer) -> None:
        self._lock = lock
        self._timer = timer
        self._faults = faults
        self._selector = selectors.DefaultSelector()
        self._links: dict[socket.socket | TlsServerSocket, Link] = {}
        # Totals of dropped links, by node.
        self._past: defaultdict[int, Counter[str]] = defaultdict(Counter)
        # Sockets that are bound to the ports of stopped listeners, but do not listen: clients are refused, and no other
        # program can take the port before the node is back.
        self._reserved: dict[int, socket.socket] = {}
        # A byte into one end of this pair wakes the thread up.
        self._wake_writer, self._wake_reader = socket.socketpair()
        self._wake_writer.setblocking(False)
        self._wake_reader.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dcp-embedded", daemon=True)

    @property
    def links(self) -> list[ServerLink]:
        """Open links of the data service."""
        return [link for link in self._all_links if isinstance(link, ServerLink)]

    @property
    def _all_links(self) -> list[Link]:
        """Open links of all services; a copy, since links are dropped during iterations."""
        return list(self._links.values())

    def traffic(self, node: ServerNode) -> Traffic:
        """Return the traffic of a node. The caller holds the lock."""
        links = [link for link in self.links if link.connection.node is node]
        totals = sum(map(_totals, links), self._past[node.number])
        streams = sum(len(link.connection.sources) for link in links)
        return Traffic(len(links), streams, totals["items"], totals["sent"], totals["received"])

    def listen(
        self,
        node: ServerNode | None,
        new_connection: _NewConnection,
        host: str,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """Accept clients, with or without TLS, and return the port; 0 takes any that is free.

        They are those of a node, until `stop_listening`, or of the cluster as a whole (None).
        """
        try:
            listener = self._reserved.pop(port, None) or _bound(host, port)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise UsageError(f"host and port: cannot listen on {host}:{port}: {error.strerror}") from None
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, _Listener(listener, node, new_connection, tls))
        return int(listener.getsockname()[1])

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Let every connection send what has changed."""
        # A full socket pair wakes the thread anyway, and a closed one has no thread any more.
        with suppress(OSError):
            self._wake_writer.send(b"\0")

    def stop(self) -> None:
        """Stop the thread and close all sockets. Raise the error that ended the thread before, if any."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        self._close_all()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _close_all(self) -> None:
        """Close all sockets; those that are closed already stay so."""
        for link in self._all_links:
            self._drop(link)
        for key in list((self._selector.get_map() or {}).values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for listener in self._reserved.values():
            listener.close()
        self._selector.close()
        self._wake_writer.close()

    def stop_listening(self, node: ServerNode, *, disconnect: bool) -> None:
        """Refuse new clients of a node; with `disconnect`, also drop the present ones. The caller holds the lock."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Listener) and key.data.node is node:
                self._selector.unregister(key.data.socket)
                host, port = key.data.socket.getsockname()[:2]
                key.data.socket.close()
                with suppress(OSError):
                    self._reserved[port] = _bound(host, port)
        for link in self._all_links:
            if disconnect and link.connection.node is node:
                link.disconnect()

    # The thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except BaseException as failure:
            # Clients must see closed connections instead of waiting for ever. `stop` raises the failure.
            self._failure = failure
            self._close_all()

    def _turn(self) -> None:
        busy = False
        for key, events in self._selector.select(self._timeout()):
            if key.fileobj is self._wake_reader:
                self._drain_wakeups()
            elif isinstance(key.data, _Listener):
                self._accept(key.data)
            elif events & selectors.EVENT_READ:
                with self._lock:
                    key.data.read(time.monotonic())
        now = time.monotonic()
        # Every link is served in each turn, not only those with events: any change of the cluster may give any stream
        # something to send.
        with self._lock:
            self._timer.tick(now)
            for link in self._all_links:
                due = link.connection.due()
                if due is not None and due <= now:
                    link.connection.tick(now)
                busy |= self._serve(link, now)
        if busy:
            # Links that have more to send must not wait for an event that may not come.
            self.wake()

    def _timeout(self) -> float:
        dues = [due for link in self._all_links if (due := link.due()) is not None]
        if (due := self._timer.due()) is not None:
            dues.append(due)
        return max(0.0, min([_LONGEST_SLEEP, *(due - time.monotonic() for due in dues)]))

    def _drain_wakeups(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_reader.recv(4096):
                pass

    def _accept(self, listener: _Listener) -> None:
        with self._lock:
            try:
                sock, _ = listener.socket.accept()
            except OSError:
                # The client is gone, or the node has stopped listening since the selector returned.
                return
            connection = listener.new_connection(listener.tls is not None)
            try:
                carrier = sock if listener.tls is None else TlsServerSocket(sock, listener.tls, connection.admit)
                link = self._link(carrier, connection)
            except OSError:
                # The client has closed the connection already.
                sock.close()
                return
            self._links[link.socket] = link
            self._watch(link)

    def _link(
        self, carrier: socket.socket | TlsServerSocket, connection: ServerConnection | ManagementConnection
    ) -> Link:
        if isinstance(connection, ServerConnection):
            return ServerLink(carrier, connection, self._faults)
        return Link(carrier, connection)

    def _serve(self, link: Link, now: float) -> bool:
        """Let a link write; return whether it has more to write at once."""
        more = not link.gone
        for _ in range(_WRITES_PER_TURN):
            if not (more := more and link.write(now)):
                break
        if link.gone:
            self._drop(link)
            return False
        if link.events != link.watched_events:
            self._watch(link)
        return more

    def _watch(self, link: Link) -> None:
        """Register the events that a link waits for; a selector has no registration for none."""
        if not link.watched_events:
            self._selector.register(link.socket, link.events, link)
        elif link.events:
            self._selector.modify(link.socket, link.events, link)
        else:
            self._selector.unregister(link.socket)
        link.watched_events = link.events

    def _drop(self, link: Link) -> None:
        self._links.pop(link.socket, None)
        if link.watched_events:
            self._selector.unregister(link.socket)
        with self._lock:
            if isinstance(link, ServerLink):
                self._past[link.connection.node.number] += _totals(link)
            link.close()


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and does not listen."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def _totals(link: ServerLink) -> Counter[str]:
    return Counter(items=link.connection.out.items, sent=link.sent, received=link.received)
