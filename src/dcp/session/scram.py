"""SCRAM (RFC 5802, RFC 7677), client side, for the numbers of iterations that servers use.

Couchbase up to 7.2 hashes passwords 4000 times unless configured otherwise. Libraries refuse that as too few, so this
client has its own.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping

from scramp import ScramException
from scramp.core import saslprep  # Newer releases alone have it in scramp.utils, and none for Python 3.10.

# The default of old servers. Whoever asks for fewer wants a proof from which the password is quickly guessed.
LEAST_ITERATIONS = 4000
# About a second of hashing. A peer that asks for more wants to keep the client busy.
MOST_ITERATIONS = 1_000_000
# GS2 header without channel binding.
_HEADER = "n,,"


class ScramRejection(Exception):
    """Server message that is malformed, or not that of a server that knows the password."""


class SaltedPassword:
    """Hash of a password with a server's salt. Computing it is most of the work of an authentication.

    The last one is kept: all nodes of a cluster have the same salt for a user. It is as secret as the password.
    """

    def __init__(self, password: str) -> None:
        self._password = password
        self._last: tuple[tuple[str, bytes, int], bytes] | None = None

    def prepare(self) -> bytes:
        """Return the password as both sides hash it. Raises ValueError if that is impossible."""
        return prepared(self._password).encode()

    def hashed(self, hash_name: str, salt: bytes, iterations: int) -> bytes:
        """Return the hash for a name for hashlib, a salt and a number of iterations."""
        wanted, last = (hash_name, salt, iterations), self._last
        if last is None or last[0] != wanted:
            last = self._last = wanted, hashlib.pbkdf2_hmac(hash_name, self.prepare(), salt, iterations)
        return last[1]


class Scram:
    """One authentication: `first`, then `final` with the server's challenge, then `verify` with its verdict.

    hash_name: name for hashlib.
    nonce: for tests; random by default.

    Raises ValueError if user name or password cannot be prepared.
    """

    def __init__(self, hash_name: str, username: str, password: SaltedPassword, nonce: str | None = None) -> None:
        self._hash = hash_name
        self._nonce = nonce or secrets.token_hex(16)
        self._password = password
        password.prepare()
        name = prepared(username).replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        return (_HEADER + self._bare).encode()

    def final(self, challenge: bytes) -> bytes:
        """Return the client's proof of the password. Raises ScramRejection if the challenge is malformed."""
        attributes = _attributes(challenge, "r", "s", "i")
        nonce = attributes["r"]
        # The server has to extend the client's nonce: an old challenge cannot be replayed.
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramRejection
        salt, iterations = _from_base64(attributes["s"]), _iterations(attributes["i"])
        salted = self._password.hashed(self._hash, salt, iterations)
        bare = f"c={_to_base64(_HEADER.encode())},r={nonce}"
        auth_message = b",".join((self._bare.encode(), challenge, bare.encode()))
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        proof = bytes(a ^ b for a, b in zip(client_key, self._hmac(stored_key, auth_message), strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), auth_message)
        return f"{bare},p={_to_base64(proof)}".encode()

    def verify(self, verdict: bytes) -> None:
        """Raise ScramRejection unless the verdict proves that the server knows the password, too."""
        proof = _from_base64(_attributes(verdict, "v")["v"])
        if not self._signature or not hmac.compare_digest(proof, self._signature):
            raise ScramRejection

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def prepared(text: str) -> str:
    """Return a name or password as both sides write it (RFC 4013). Raises ValueError if that is impossible."""
    if text.isascii() and text.isprintable():
        # Prepared already. The preparation looks up each character in a dozen tables.
        return text
    try:
        return str(saslprep(text))
    except ScramException as wrong:
        raise ValueError(str(wrong)) from None


def _attributes(message: bytes, *names: str) -> dict[str, str]:
    try:
        found: Mapping[str, str] = {part[:1]: part[2:] for part in message.decode().split(",") if part[1:2] == "="}
        wanted = {name: found[name] for name in names}
    except (UnicodeDecodeError, KeyError):
        raise ScramRejection from None
    if "m" in found:
        # RFC 5802, section 5.1: an extension that the client has to know. There is none.
        raise ScramRejection
    return wanted


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ScramRejection
    if not LEAST_ITERATIONS <= int(text) <= MOST_ITERATIONS:
        raise ScramRejection(f"expected {LEAST_ITERATIONS} to {MOST_ITERATIONS} iterations, found {int(text)}")
    return int(text)


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ScramRejection from None


def _to_base64(data: bytes) -> str:
    return b64encode(data).decode()
