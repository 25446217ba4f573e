"""Certificates for a cluster that has none of its own: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from typing import Any

from dcp.errors import LocalProtocolError

_VALID = datetime.timedelta(days=365)
_CLOCK_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """In PEM; the key is in no text."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<Certificate>"


class Authority:
    """Signs certificates. Clients that trust `certificate` trust them."""

    def __init__(self, name: str = "dcp embedded authority") -> None:
        self._library = _library()
        self._name = self._library.name(name)
        self._key = self._library.new_key()
        builder = self._library.builder(self._name, self._name, self._key, _VALID)
        self._certificate = builder.add_extension(self._library.x509.BasicConstraints(True, 0), critical=True).sign(
            self._key, self._library.hash
        )
        self.certificate: bytes = self._library.pem(self._certificate)

    def issue(self, name: str, hosts: tuple[str, ...] = (), valid: datetime.timedelta = _VALID) -> Certificate:
        """For a server at these hosts, or for a client that is called `name`; valid for so long since an hour ago."""
        library, key = self._library, self._library.new_key()
        builder = library.builder(library.name(name), self._name, key, valid)
        if hosts:
            names = library.x509.SubjectAlternativeName([library.host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return Certificate(library.pem(builder.sign(self._key, library.hash)), library.key_pem(key))


class _Library:
    """What is used of `cryptography`."""

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        self.x509: Any = x509
        self.hash = hashes.SHA256()
        self._ec, self._serialization, self._common_name = ec, serialization, NameOID.COMMON_NAME

    def new_key(self) -> Any:
        return self._ec.generate_private_key(self._ec.SECP256R1())

    def name(self, text: str) -> Any:
        return self.x509.Name([self.x509.NameAttribute(self._common_name, text)])

    def host(self, host: str) -> Any:
        try:
            return self.x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return self.x509.DNSName(host)

    def builder(self, subject: Any, issuer: Any, key: Any, valid: datetime.timedelta) -> Any:
        since = datetime.datetime.now(datetime.timezone.utc) - _CLOCK_SKEW
        return (
            self.x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(self.x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(since + valid)
        )

    def pem(self, certificate: Any) -> bytes:
        return bytes(certificate.public_bytes(self._serialization.Encoding.PEM))

    def key_pem(self, key: Any) -> bytes:
        encoding, form = self._serialization.Encoding.PEM, self._serialization.PrivateFormat.PKCS8
        return bytes(key.private_bytes(encoding, form, self._serialization.NoEncryption()))


def _library() -> _Library:
    try:
        return _Library()
    except ImportError:
        raise LocalProtocolError(
            "tls: a certificate of its own needs cryptography: pip install 'dcp-arrow[embedded]'; "
            "or give one with certificate and key"
        ) from None
