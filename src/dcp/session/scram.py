"""SCRAM (RFC 5802, RFC 7677) from the client's side, for any number of iterations that servers use.

Couchbase up to 7.2 hashes passwords 4000 times unless told otherwise, which libraries refuse as too few; a client has
no choice, and tells the peer nothing that helps to guess the password but the proof itself.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping

from scramp import ScramException
from scramp.core import saslprep  # Newer releases alone have it in scramp.utils, and none for Python 3.10.

# A second or so of work: a peer that asks for more wants to keep us busy.
MOST_ITERATIONS = 1_000_000
_HEADER = "n,,"


class Refused(Exception):
    """The server's words are not those of one who knows the password."""


class Scram:
    """One authentication. `first`, then `final` of the server's first words, then `verify` its last ones."""

    def __init__(self, hash_name: str, username: str, password: str, nonce: str | None = None) -> None:
        self._hash = hash_name
        self._nonce = nonce or secrets.token_hex(16)
        self._password = prepared(password).encode()
        name = prepared(username).replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return (_HEADER + self._bare).encode()

    def final(self, challenge: bytes) -> bytes:
        """The proof that we know the password."""
        said = _attributes(challenge, "r", "s", "i")
        nonce = said["r"]
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise Refused
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _bytes(said["s"]), _iterations(said["i"]))
        bare = f"c={_text(_HEADER.encode())},r={nonce}"
        all_said = b",".join((self._bare.encode(), challenge, bare.encode()))
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        proof = bytes(a ^ b for a, b in zip(client_key, self._hmac(stored_key, all_said), strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), all_said)
        return f"{bare},p={_text(proof)}".encode()

    def verify(self, verdict: bytes) -> None:
        """Whether the server knows the password, too."""
        if not self._signature or not hmac.compare_digest(_bytes(_attributes(verdict, "v")["v"]), self._signature):
            raise Refused

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def prepared(text: str) -> str:
    """As both sides write names and passwords (RFC 4013). ValueError if that cannot be written."""
    try:
        return str(saslprep(text)) if text else ""
    except ScramException as wrong:
        raise ValueError(str(wrong)) from None


def _attributes(message: bytes, *names: str) -> dict[str, str]:
    try:
        said: Mapping[str, str] = {part[:1]: part[2:] for part in message.decode().split(",") if part[1:2] == "="}
        return {name: said[name] for name in names}
    except (UnicodeDecodeError, KeyError):
        raise Refused from None


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MOST_ITERATIONS):
        raise Refused
    return int(text)


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise Refused from None


def _text(data: bytes) -> str:
    return b64encode(data).decode()
