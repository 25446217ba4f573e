"""TLS of a client: settings, and a socket that decrypts many records for each system call."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from dcp.errors import UsageError

# Bytes that one system call receives. Decrypted, they are still in the processor's cache when they are decoded.
_RECEIVED = 1 << 18


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files and verification of a TLS client. `ca_file` is trusted in addition to the system's authorities."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Return an SSL context. Raises UsageError, with option and path, if a file cannot be used."""
        option, path = "ca_cert_path", self.ca_file
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                option, path = "cert_path and key_path", self.cert_file
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror
            raise UsageError(f"{option}: expected a PEM file, found {path!r}: {reason}") from None
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


class TlsSocket:
    """TLS on a connected TCP socket, with those methods of a socket that connections use.

    `ssl.SSLSocket` takes two system calls, and a return to its caller, for each record of at most 16 KiB. This one
    receives many records at a time, and fills the caller's buffer with all that are complete.

    The constructor completes the handshake within `timeout` seconds. Raises what `ssl` raises.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, host: str, timeout: float) -> None:
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        # With a buffer, it returns the number of bytes.
        self._read = cast("Callable[[int, memoryview], int]", self._tls.read)
        self._buffer = memoryview(bytearray(_RECEIVED))
        # Encrypted bytes that the node has not taken yet, and the size of the caller's bytes that end in them.
        self._unsent = memoryview(b"")
        self._accepted = 0
        # An error behind bytes that the caller gets first.
        self._error: ssl.SSLError | None = None
        self._has_more = self._ended = False
        self._handshake(time.monotonic() + timeout)

    def fileno(self) -> int:
        """Return the descriptor of the TCP socket."""
        return self._plain.fileno()

    def setblocking(self, blocks: bool) -> None:
        """Set whether calls wait for the node."""
        self._plain.setblocking(blocks)

    def settimeout(self, seconds: float | None) -> None:
        """Set how long a system call waits for the node."""
        self._plain.settimeout(seconds)

    def version(self) -> str | None:
        """Return the protocol version."""
        return self._tls.version()

    def cipher(self) -> tuple[str, str, int] | None:
        """Return name, protocol and secret bits of the cipher."""
        return self._tls.cipher()

    def close(self) -> None:
        """Close the TCP socket."""
        self._plain.close()

    def __enter__(self) -> TlsSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sendall(self, data: bytes) -> None:
        """Encrypt and send bytes. For sockets that block."""
        if data:
            self._tls.write(data)
        self._plain.sendall(self._outgoing.read())

    def send(self, data: bytes | memoryview) -> int:
        """Encrypt and send bytes, which may not be empty. Return how many were sent: all, or those of the last attempt.

        Raises BlockingIOError if the TCP socket takes no more. The caller has to try again with the same bytes, which
        are encrypted already; more may follow them.
        """
        if not self._accepted:
            self._accepted = self._tls.write(data)
        self._flush()
        count, self._accepted = self._accepted, 0
        return count

    def recv_into(self, buffer: memoryview) -> int:
        """Receive decrypted bytes until the buffer is full or no complete record is left.

        Return their number; 0 if the node closed the connection.
        """
        count = self._decrypt(buffer)
        while not count and not self._ended:
            received = self._plain.recv_into(self._buffer)
            if not received:
                return 0
            self._incoming.write(self._buffer[:received])
            count = self._decrypt(buffer)
        if self._outgoing.pending:
            self._answer()
        return count

    @property
    def has_more(self) -> bool:
        """True if the next call returns or raises at once, although the TCP socket may have nothing to read."""
        return self._has_more

    def _decrypt(self, buffer: memoryview) -> int:
        """Decrypt complete records into a buffer. Return the number of bytes."""
        if self._error is not None:
            raise self._error
        count = 0
        try:
            while count < len(buffer):
                size = self._read(len(buffer) - count, buffer[count:])
                if not size:
                    # The node said that it sends no more; it may keep the TCP connection open.
                    self._ended = True
                    break
                count += size
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            # Records before it are valid.
            self._error = error
            if not count:
                raise
        self._has_more = count == len(buffer) or self._ended or self._error is not None
        return count

    def _handshake(self, deadline: float) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._plain.sendall(self._outgoing.read())
            else:
                self._plain.sendall(self._outgoing.read())
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._plain.settimeout(left)
            received = self._plain.recv_into(self._buffer)
            if received:
                self._incoming.write(self._buffer[:received])
            else:
                self._incoming.write_eof()

    def _flush(self) -> None:
        """Send encrypted bytes. Raises BlockingIOError if some are left."""
        while self._unsent or self._outgoing.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            self._unsent = self._unsent[self._plain.send(self._unsent) :]

    def _answer(self) -> None:
        """Send answers of TLS itself. Those that the TCP socket does not take go with later bytes."""
        try:
            self._flush()
        except BlockingIOError:
            return
