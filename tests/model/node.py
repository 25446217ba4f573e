"""Sockets of the model: one thread for each connection, which gives its producer bytes and takes bytes from it."""

from __future__ import annotations

import random
import select
import socket
import ssl
import threading
from contextlib import suppress

from tests.model.producer import Cluster, Producer
from tests.model.wire import messages


class Connection:
    """A connection to a node. `cut` closes it behind some more bytes, wherever that is in a frame."""

    def __init__(self, cluster: Cluster, node: int, sock: socket.socket, lock: threading.Lock, seed: str) -> None:
        self.draw = random.Random(seed)
        self.producer = Producer(cluster, node, self.draw, self._queue)
        self._sock, self._lock = sock, lock
        self._out = bytearray()
        self._wake_send, self._wake_receive = socket.socketpair()
        self._wake_send.setblocking(False)
        self._bytes_left: int | None = None
        self.problem: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _queue(self, frame: bytes) -> None:
        self._out += frame

    def queue(self, frame: bytes) -> None:
        """Send a frame. Called with the lock."""
        self._out += frame
        self.wake()

    def cut(self) -> None:
        self._bytes_left = self.draw.randint(0, 300)
        self.wake()

    def wake(self) -> None:
        with suppress(OSError):
            self._wake_send.send(b"x")

    def _run(self) -> None:
        received = bytearray()
        try:
            while True:
                with self._lock:
                    self._out += self.producer.produce()
                    cut = self._bytes_left is not None and (
                        not self._out or len(self._out) >= self._bytes_left or self.draw.random() < 0.5
                    )
                    if cut:
                        del self._out[self._bytes_left :]
                    out, idle = bytes(self._out), not self._out
                    self._out.clear()
                while out:
                    # Frames cross the borders of segments.
                    size = self.draw.randint(1, len(out)) if self.draw.random() < 0.3 else len(out)
                    self._sock.sendall(out[:size])
                    out = out[size:]
                if cut:
                    return
                if not self._receive(received, None if idle else 0):
                    return
        except (OSError, ValueError):
            return
        except BaseException as problem:
            self.problem = problem
        finally:
            # Closed at once, so that the client notices.
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()
            self._wake_receive.close()
            self._wake_send.close()

    def _receive(self, received: bytearray, timeout: float | None) -> bool:
        """Take what the client sent. Return False if it closed the connection."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            timeout = 0
        readable = select.select([self._sock, self._wake_receive], [], [], timeout)[0]
        if self._wake_receive in readable:
            self._wake_receive.recv(4096)
        if self._sock in readable or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()):
            data = self._sock.recv(65536)
            if not data:
                return False
            received += data
            with self._lock:
                for message in messages(received):
                    self.producer.receive(message)
        return True


class Node:
    """A node: a port, and its connections."""

    def __init__(self, cluster: Cluster, number: int, lock: threading.Lock, seed: str, tls: ssl.SSLContext | None):
        self.number = number
        self._cluster, self._lock, self._seed, self._tls = cluster, lock, seed, tls
        self.connections: list[Connection] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._count = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._count += 1
            seed = f"{self._seed} node {self.number} connection {self._count}"
            threading.Thread(target=self._serve, args=(sock, seed), daemon=True).start()

    def _serve(self, sock: socket.socket, seed: str) -> None:
        if self._tls is not None:
            try:
                sock = self._tls.wrap_socket(sock, server_side=True)
            except OSError:
                sock.close()
                return
        connection = Connection(self._cluster, self.number, sock, self._lock, seed)
        with self._lock:
            self.connections = [each for each in self.connections if each.thread.is_alive() or each.problem]
            self.connections.append(connection)
            connection.thread.start()

    def close(self) -> None:
        # Wakes the thread that accepts, which closing alone does not.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self.connections:
                connection.cut()
