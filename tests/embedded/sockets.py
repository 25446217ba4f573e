"""Client of a cluster on a blocking socket, with or without TLS."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

import dcp
from dcp.embedded import Cluster
from dcp.wire.layout import Magic

# Seconds: longer than any call takes unless it hangs.
TIMEOUT = 30.0


def addresses_of(url: str) -> list[tuple[str, int]]:
    """Return host and port of each node in a URL."""
    parts = urlsplit(url).netloc.rpartition("@")[2].split(",")
    return [(host, int(port)) for host, _, port in (part.rpartition(":") for part in parts)]


class Client:
    def __init__(self, cluster: Cluster, context: ssl.SSLContext | None = None, node: int = 0) -> None:
        host, port = addresses_of(cluster.tls_url if context else cluster.url)[node]
        self.socket: socket.socket = socket.create_connection((host, port), timeout=TIMEOUT)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=host)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def exchange(self, *frames: dcp.Frame) -> list[dcp.Frame]:
        """Send requests; return one frame for each."""
        self.socket.sendall(b"".join(map(dcp.encode, frames)))
        return self.read(len(frames))

    def read(self, count: int) -> list[dcp.Frame]:
        return [self._frame() for _ in range(count)]

    def _frame(self) -> dcp.Frame:
        header = self._bytes(24)
        (frame,) = dcp.decode(header + self._bytes(int.from_bytes(header[8:12], "big")))
        return frame

    def _bytes(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, "the node hung up"
            data += piece
        return data


def request(name: str, **parts: object) -> dcp.Frame:
    return dcp.Frame(name, Magic.REQUEST, **parts)  # type: ignore[arg-type]


def plain_auth(user: str, password: str) -> dcp.Frame:
    return request("sasl_auth", key=b"PLAIN", value=f"\0{user}\0{password}".encode())
