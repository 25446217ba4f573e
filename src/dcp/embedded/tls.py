"""TLS of a cluster: its certificates, and a non-blocking server socket."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dcp.embedded.certificate import Authority
from dcp.errors import UsageError

# The socket has to be readable or writable before the call can go on.
_WOULD_BLOCK = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Tls:
    """TLS context of a cluster's nodes.

    `certificate`, `key` and `client_ca` are paths of PEM files. Without a certificate, an authority of its own issues
    one. `ca_file` is the path of the PEM file that clients have to trust. Raises UsageError if a file cannot be
    used.
    """

    def __init__(
        self, host: str, certificate: str | None = None, key: str | None = None, client_ca: str | None = None
    ) -> None:
        if (certificate is None) is not (key is None):
            raise UsageError("tls: expected both certificate and key, or neither")
        self._files = tempfile.TemporaryDirectory(prefix="dcp-embedded-")
        if certificate is None or key is None:
            self.ca_file, certificate, key = self._make(host)
        else:
            self.ca_file = certificate
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self.context.load_cert_chain(certificate, key)
            if client_ca is not None:
                self.context.load_verify_locations(client_ca)
                # Optional: clients without a certificate authenticate with SASL.
                self.context.verify_mode = ssl.CERT_OPTIONAL
        except (OSError, ValueError) as error:
            self.close()
            raise UsageError(f"tls: certificate, key or client_ca cannot be used: {error}") from None

    def close(self) -> None:
        """Remove the generated files."""
        self._files.cleanup()

    def _make(self, host: str) -> tuple[str, str, str]:
        authority = Authority()
        issued = authority.issue("dcp embedded node", tuple(dict.fromkeys((host, "localhost", "127.0.0.1", "::1"))))
        return (
            self._write("ca.pem", authority.certificate),
            self._write("node.pem", issued.certificate),
            self._write("node.key", issued.key),
        )

    def _write(self, name: str, content: bytes) -> str:
        path = Path(self._files.name) / name
        path.write_bytes(content)
        return str(path)


class TlsServerSocket:
    """Server side of a TLS connection, with the methods of a socket that a link calls.

    `admit` is called with the common name of the client's certificate, if it has one, before any data is returned.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, admit: Callable[[str], None]) -> None:
        self._socket = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._admit = admit
        self._ready = False

    def recv(self, size: int) -> bytes:
        # The size is larger than a TLS record, so a record is always returned whole. Otherwise its rest would wait in
        # the TLS library, where the selector does not see it.
        try:
            if not self._ready:
                self._handshake()
            return self._socket.recv(size)
        except _WOULD_BLOCK:
            raise BlockingIOError from None

    def sendmsg(self, parts: list[memoryview]) -> int:
        try:
            return self._socket.send(parts[0])
        except _WOULD_BLOCK:
            raise BlockingIOError from None

    def close(self) -> None:
        # Sends close_notify and does not wait for the response of the peer.
        with suppress(OSError, ValueError):
            self._socket.unwrap()
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def setsockopt(self, *option: Any) -> None:
        self._socket.setsockopt(*option)

    def _handshake(self) -> None:
        self._socket.do_handshake()
        self._ready = True
        subject: Any = (self._socket.getpeercert() or {}).get("subject", ())
        for name, value in (pair for part in subject for pair in part):
            if name == "commonName":
                self._admit(value)
