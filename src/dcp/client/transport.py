"""Sockets to nodes: DNS SRV, TCP and TLS with a deadline."""

from __future__ import annotations

import logging
import socket
import ssl

from dcp.client import network_errors
from dcp.client.connection_string import HostPort
from dcp.client.tls import TlsSocket
from dcp.errors import TransportError

log = logging.getLogger("dcp.client")

# A connected socket. Both kinds have the methods that connections use.
NodeSocket = socket.socket | TlsSocket


def lookup_srv(name: str, timeout: float) -> tuple[HostPort, ...]:
    """Return the targets of a name's SRV records in the order to try them; empty if it has none."""
    # Imported here, since few URLs need it, and Spark starts several processes for each query.
    import dns.exception
    import dns.resolver

    try:
        answer = dns.resolver.resolve(name, "SRV", lifetime=timeout)
    except dns.exception.DNSException as error:
        # Most hosts have no SRV records: the name is then that of a node.
        log.debug("%s: no SRV records: %s", name, error)
        return ()
    records = sorted(answer, key=lambda record: (record.priority, -record.weight))
    return tuple(HostPort(record.target.to_text(omit_final_dot=True), record.port) for record in records)


def connect(host: str, port: int, timeout: float, context: ssl.SSLContext | None) -> NodeSocket:
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
        return _over_tls(plain, context, HostPort(host, port), timeout)
    except BaseException:
        plain.close()
        raise


def _over_tls(plain: socket.socket, context: ssl.SSLContext, address: HostPort, timeout: float) -> TlsSocket:
    node = str(address)
    try:
        return TlsSocket(plain, context, address.host, timeout)
    except ssl.SSLCertVerificationError as error:
        raise network_errors.untrusted(node, error) from None
    except TimeoutError:
        raise network_errors.timed_out(node, timeout, "kv_connect_timeout") from None
    except (OSError, ValueError) as error:
        # ValueError for host names that TLS cannot ask for, such as one with a leading dot.
        raise network_errors.tls_failed(node, error) from None
