"""What an error of the network means for who meets it: at which node, why, and what to do."""

from __future__ import annotations

import ssl

from dcp.errors import DcpError, FrameError, RemoteProtocolError, TimeoutError, TransportError

_PORTS = "check the port: the data service has 11210, and 11207 for couchbases://"

# By OpenSSL's numbers for what is wrong with a certificate (x509_vfy.h): what to do about it.
_NOT_YET_VALID, _EXPIRED, _OTHER_HOST, _OTHER_ADDRESS = 9, 10, 62, 64
_REMEDIES = {
    _NOT_YET_VALID: "check the clock of this machine",
    _EXPIRED: "renew the certificate of the node, and check the clock of this machine",
    _OTHER_HOST: "connect by a name that is in the certificate",
    _OTHER_ADDRESS: "connect by a name or address that is in the certificate",
}
_UNTRUSTED = "give the file with the authority of the cluster's certificates as ca_cert_path"


def late(where: str, seconds: float, option: str) -> TimeoutError:
    """No answer in time."""
    return TimeoutError(f"{where}: no answer within {seconds:g} s; check the host and firewalls, or raise {option}")


def closed(where: str) -> TransportError:
    """The node closed a fresh connection."""
    return TransportError(f"{where}: the node closed the connection before it answered; {_PORTS}")


def broken(where: str, error: OSError, *, ready: bool) -> TransportError:
    """A connection broke that was there. `ready`: it had been of use."""
    said = getattr(error, "reason", None) or error.strerror or str(error)
    if isinstance(error, ssl.SSLError) and "CERTIFICATE" in str(said).upper():
        return TransportError(
            f"{where}: the node does not take the client's certificate: {said}; check cert_path and key_path"
        )
    return TransportError(f"{where}: the connection broke: {said}{'' if ready else f'; {_PORTS}'}")


def refused(where: str, error: OSError) -> TransportError:
    """No connection came about."""
    return TransportError(
        f"{where}: {error.strerror or error}; check that a data node listens there (11210, or 11207 for TLS)"
    )


def untrusted(where: str, error: ssl.SSLCertVerificationError) -> TransportError:
    """The certificate of the node is not one to trust."""
    remedy = _REMEDIES.get(error.verify_code, _UNTRUSTED)
    return TransportError(f"{where}: the node's certificate is not trusted: {error.verify_message}; {remedy}")


def insecure(where: str, error: OSError) -> TransportError:
    """TLS did not come about."""
    said = getattr(error, "reason", None) or error.strerror or str(error)
    return TransportError(
        f"{where}: no TLS: {said}; check that the port is one for TLS (11207), or write couchbase:// to do without"
    )


def at(node: str, error: DcpError, *, ready: bool) -> DcpError:
    """What a session said, of this node. Before it is `ready`, what cannot be read is no answer of a data node."""
    if isinstance(error, FrameError) and not ready:
        error = RemoteProtocolError(f"what answers there is not the data service of a node ({error.problem}); {_PORTS}")
    if not isinstance(error, TransportError):
        error.node = error.node or node
    return error
