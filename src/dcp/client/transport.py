"""Sockets to nodes: DNS SRV, TCP with a deadline, TLS."""

from __future__ import annotations

import logging
import socket
import ssl
from dataclasses import dataclass

import dns.exception
import dns.resolver

from dcp.client import network_errors
from dcp.client.connection_string import HostPort
from dcp.errors import TransportError, UsageError

log = logging.getLogger("dcp.client")


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


def lookup_srv(name: str, timeout: float) -> tuple[HostPort, ...]:
    """Return the targets of a name's SRV records in the order to try them; empty if it has none."""
    try:
        answer = dns.resolver.resolve(name, "SRV", lifetime=timeout)
    except dns.exception.DNSException as error:
        # Most hosts have no SRV records: the name is then that of a node.
        log.debug("%s: no SRV records: %s", name, error)
        return ()
    records = sorted(answer, key=lambda record: (record.priority, -record.weight))
    return tuple(HostPort(record.target.to_text(omit_final_dot=True), record.port) for record in records)


def connect(host: str, port: int, timeout: float, context: ssl.SSLContext | None) -> socket.socket:
    """Return a connected socket, over TLS if a context is given.

    timeout: seconds for TCP, and again for the TLS handshake.
    Raises TransportError with node, reason and remedy.
    """
    node = str(HostPort(host, port))
    try:
        plain = socket.create_connection((host, port), timeout)
    except (UnicodeError, ValueError):
        # Names with empty or long parts, such as a..b, have no form that DNS knows.
        raise TransportError(f"{node}: not a host name; check the name in the URL") from None
    except socket.gaierror as error:
        raise TransportError(f"{node}: host not found: {error.strerror}; check the name in the URL") from None
    except TimeoutError:
        raise network_errors.timed_out(node, timeout, "kv_connect_timeout") from None
    except OSError as error:
        raise network_errors.refused(node, error) from None
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        raise network_errors.untrusted(node, error) from None
    except TimeoutError:
        plain.close()
        raise network_errors.timed_out(node, timeout, "kv_connect_timeout") from None
    except (OSError, ValueError) as error:
        # ValueError for host names that TLS cannot ask for, such as one with a leading dot.
        plain.close()
        raise network_errors.tls_failed(node, error) from None
