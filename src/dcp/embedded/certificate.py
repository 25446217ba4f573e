"""Certificates for tests: an authority that exists in memory only, and the certificates that it issues."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from typing import Any

from dcp.errors import UsageError

_VALID = datetime.timedelta(days=365)
# Certificates are valid from an hour ago on, for clients whose clocks are slow.
_CLOCK_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certificate and private key in PEM. Neither appears in the repr."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "<Certificate>"


class Authority:
    """Certificate authority. Clients that trust its `certificate` (PEM) trust all certificates that it issues.

    Needs the package cryptography; raises UsageError if it is not installed.
    """

    def __init__(self, name: str = "dcp embedded authority") -> None:
        self._library = _library()
        self._name = self._library.name(name)
        self._key = self._library.new_key()
        x509 = self._library.x509
        builder = self._library.builder(self._name, self._name, self._key, self._key, _VALID)
        self._certificate = (
            builder.add_extension(x509.BasicConstraints(True, 0), critical=True)
            .add_extension(self._library.may_sign(), critical=True)
            .sign(self._key, self._library.hash)
        )
        self.certificate: bytes = self._library.pem(self._certificate)

    def issue(self, name: str, hosts: tuple[str, ...] = (), valid: datetime.timedelta = _VALID) -> Certificate:
        """Issue a certificate for a server at `hosts`, or without them for the client with the user name `name`.

        `valid` is the time until it expires, less one hour.
        """
        library, key = self._library, self._library.new_key()
        builder = library.builder(library.name(name), self._name, key, self._key, valid)
        if hosts:
            names = library.x509.SubjectAlternativeName([library.host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return Certificate(library.pem(builder.sign(self._key, library.hash)), library.key_pem(key))


class _Library:
    """Functions of cryptography, imported when the first certificate is needed."""

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

    def may_sign(self) -> Any:
        """Return the key usage of an authority."""
        uses = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        others = dict.fromkeys((*uses, "encipher_only", "decipher_only"), False)
        return self.x509.KeyUsage(key_cert_sign=True, crl_sign=True, **others)

    def builder(self, subject: Any, issuer: Any, key: Any, issuer_key: Any, valid: datetime.timedelta) -> Any:
        since = datetime.datetime.now(datetime.timezone.utc) - _CLOCK_SKEW
        return (
            self.x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(self.x509.random_serial_number())
            .not_valid_before(since)
            .not_valid_after(since + valid)
            # Python 3.13 and newer demand them (RFC 5280, 4.2.1.1 and 4.2.1.2).
            .add_extension(self.x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                self.x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
            )
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
        raise UsageError(
            "tls: generating a certificate needs cryptography: pip install 'dcp-arrow[testing]'; "
            "or pass certificate and key"
        ) from None
