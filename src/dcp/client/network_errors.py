"""Actionable messages for socket and TLS errors: node, reason, remedy."""

from __future__ import annotations

import ssl

from dcp.errors import DcpError, FrameError, RemoteProtocolError, TimeoutError, TransportError
from dcp.session.session import CHECK_ADDRESS

_CHECK_PORT = "check the port: the data service uses 11210, and 11207 for couchbases://"

# Verification results of OpenSSL (x509_vfy.h) that have a remedy of their own.
_NOT_YET_VALID, _EXPIRED, _HOST_MISMATCH, _ADDRESS_MISMATCH = 9, 10, 62, 64
_REMEDIES = {
    _NOT_YET_VALID: "check the clock of this machine",
    _EXPIRED: "renew the certificate of the node, and check the clock of this machine",
    _HOST_MISMATCH: "connect by a name that is in the certificate",
    _ADDRESS_MISMATCH: "connect by a name or address that is in the certificate",
    # Rules of RFC 5280 about the form of certificates, which Python checks from 3.13 on.
    **dict.fromkeys(range(79, 94), "renew the cluster's certificates with what is missing, or use Python 3.12"),
}
_GIVE_AUTHORITY = "pass the cluster's certificate authority as ca_cert_path"


def timed_out(node: str, seconds: float, option: str) -> TimeoutError:
    """Return the error for a node that did not answer within the limit that `option` sets."""
    return TimeoutError(f"{node}: no answer within {seconds:g} s; {CHECK_ADDRESS}, or raise {option}")


def closed_early(node: str) -> TransportError:
    """Return the error for a node that closed a fresh connection."""
    return TransportError(f"{node}: the node closed the connection before it answered; {_CHECK_PORT}")


def broken(node: str, error: OSError, *, ready: bool) -> TransportError:
    """Return the error for a connection that broke. `ready`: the handshake had succeeded."""
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    if isinstance(error, ssl.SSLError) and "CERTIFICATE" in str(reason).upper():
        return TransportError(
            f"{node}: the node rejected the client's certificate: {reason}; check cert_path and key_path"
        )
    return TransportError(f"{node}: connection lost: {reason}{'' if ready else f'; {_CHECK_PORT}'}")


def refused(node: str, error: OSError) -> TransportError:
    """Return the error for a TCP connection that could not be established."""
    reason = error.strerror or error
    return TransportError(f"{node}: {reason}; check that a data node listens there (11210, or 11207 for TLS)")


def untrusted(node: str, error: ssl.SSLCertVerificationError) -> TransportError:
    """Return the error for a node whose certificate failed verification."""
    remedy = _REMEDIES.get(error.verify_code, _GIVE_AUTHORITY)
    return TransportError(f"{node}: the node's certificate is not trusted: {error.verify_message}; {remedy}")


def tls_failed(node: str, error: OSError | ValueError) -> TransportError:
    """Return the error for a TLS handshake that failed for a reason other than the certificate."""
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return TransportError(
        f"{node}: TLS handshake failed: {reason}; check that the port is a TLS port (11207), or use couchbase://"
    )


def located(node: str, error: DcpError, *, ready: bool) -> DcpError:
    """Return a session's error with the node it concerns.

    Before the session is `ready`, bytes that cannot be read mean that another service answers on that port, unless the
    frame only exceeds the option max_frame.
    """
    if isinstance(error, FrameError) and not ready and "(max_frame)" not in error.problem:
        error = RemoteProtocolError(f"the port does not serve the data service ({error.problem}); {_CHECK_PORT}")
    # Errors of sockets name the node already, those of a session do not.
    if not isinstance(error, TransportError) or node not in str(error):
        error.node = error.node or node
    return error
