"""Sockets to nodes: opened with a deadline, with or without TLS."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

from dcp.client import network_errors as blame
from dcp.client.connection_string import Address
from dcp.errors import LocalProtocolError, TransportError


@dataclass(frozen=True, slots=True)
class Security:
    """How TLS is done. `ca_file`: who is trusted besides those that the system trusts."""

    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        option, path = "ca_cert_path", self.ca_file
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate is not None:
                option, path = "cert_path and key_path", self.certificate
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            said = getattr(error, "reason", None) or error.strerror
            raise LocalProtocolError(f"{option}: expected a PEM file, found {path!r}: {said}") from None
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def connect(host: str, port: int, timeout: float, context: ssl.SSLContext | None) -> socket.socket:
    """An open connection. TransportError says which node, why not, and what to do."""
    where = str(Address(host, port))
    try:
        plain = socket.create_connection((host, port), timeout)
    except socket.gaierror as error:
        raise TransportError(f"{where}: no such host: {error.strerror}; check the name in the url") from None
    except TimeoutError:
        raise blame.late(where, timeout, "kv_connect_timeout") from None
    except OSError as error:
        raise blame.refused(where, error) from None
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise blame.untrusted(where, error) from None
    except TimeoutError:
        plain.close()
        raise blame.late(where, timeout, "kv_connect_timeout") from None
    except OSError as error:
        plain.close()
        raise blame.insecure(where, error) from None
