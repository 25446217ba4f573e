"""Sockets to nodes: opened with a deadline, with or without TLS."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

from dcp.errors import LocalProtocolError, TransportError


@dataclass(frozen=True, slots=True)
class Security:
    """How TLS is done. `ca_file`: who is trusted besides those that the system trusts."""

    ca_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise LocalProtocolError(f"tls: cannot read a certificate: {error}") from None
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def connect(host: str, port: int, timeout: float, context: ssl.SSLContext | None) -> socket.socket:
    """An open connection. TransportError says which node, why not, and what to do."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        plain = socket.create_connection((host, port), timeout)
    except socket.gaierror as error:
        raise TransportError(f"{where}: no such host: {error.strerror}; check the name in the url") from None
    except TimeoutError:
        raise TransportError(f"{where}: no answer within {timeout:g} s; check the host, and firewalls") from None
    except OSError as error:
        raise TransportError(
            f"{where}: {error.strerror or error}; check that a data node listens there (11210, or 11207 for TLS)"
        ) from None
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise TransportError(
            f"{where}: the node's certificate is not trusted: {error.verify_message}; give the cluster's authority "
            "as ca_cert_path"
        ) from None
    except (OSError, ssl.SSLError) as error:
        plain.close()
        raise TransportError(f"{where}: no TLS: {error}; check that the port is one for TLS (11207)") from None
