"""SCRAM (RFC 5802), the server's side.

Only the secrets come from a library. The messages are parsed here, since the official C++ client, on which other
clients are built, sends nonces with blanks: servers accept them, and libraries that follow the standard do not.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from scramp import ScramException, ScramMechanism

from dcp.embedded.users import User
from dcp.wire.mechanisms import SCRAM, standard_name

_NONCE_BYTES = 8
# Clients use no channel binding: the header `n,,`, whose base64 is `biws`.
_FIRST = re.compile(r"n,,(n=([^,]+),r=([^,]+))", re.DOTALL)
_FINAL = re.compile(r"(c=biws,r=([^,]+)),p=([^,]+)", re.DOTALL)


class ScramFailure(Exception):
    """The client has not proved that it knows the password, or does not speak SCRAM."""


@dataclass
class ScramExchange:
    """Two steps of one authentication.

    `user_of` returns the user of a name, None if there is none. `random_bytes` supplies the nonce.
    """

    mechanism: str
    user_of: Callable[[str], User | None]
    random_bytes: Callable[[int], bytes]
    user: str = field(default="", init=False)

    def challenge(self, message: bytes) -> bytes:
        """Return the response to the client's first message."""
        found = _FIRST.fullmatch(_text(message))
        if found is None:
            raise ScramFailure
        bare, name, nonce = found.groups()
        # The standard escapes the two characters that separate the parts of a message.
        self.user = name.replace("=2C", ",").replace("=3D", "=")
        user = self.user_of(self.user)
        if user is None:
            raise ScramFailure
        self._nonce = nonce + self.random_bytes(_NONCE_BYTES).hex()
        try:
            salt, self._stored_key, self._server_key, rounds = _secrets(self.mechanism, user.password, user.salt)
        except ScramException:
            # The standard does not allow this password.
            raise ScramFailure from None
        challenge = f"r={self._nonce},s={b64encode(salt).decode()},i={rounds}"
        # Both proofs are signatures of all messages up to here.
        self._signed = f"{bare},{challenge}"
        return challenge.encode()

    def finish(self, message: bytes) -> bytes:
        """Check the proof in the client's second message, and return the server's own proof."""
        found = _FINAL.fullmatch(_text(message))
        if found is None or found[2] != self._nonce:
            raise ScramFailure
        signed = f"{self._signed},{found[1]}".encode()
        signature = self._hmac(self._stored_key, signed)
        proof = _base64(found[3])
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        if len(proof) != len(signature) or not hmac.compare_digest(self._hash(client_key), self._stored_key):
            raise ScramFailure
        return b"v=" + b64encode(self._hmac(self._server_key, signed))

    def _hash(self, data: bytes) -> bytes:
        return hashlib.new(SCRAM[self.mechanism], data).digest()

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, SCRAM[self.mechanism])


@lru_cache(maxsize=256)
def _secrets(mechanism: str, password: str, salt: bytes) -> tuple[bytes, bytes, bytes, int]:
    """Return the salt, the key to check proofs with, the server's key, and the number of iterations."""
    found: tuple[bytes, bytes, bytes, int] = ScramMechanism(standard_name(mechanism)).make_auth_info(
        password, salt=salt
    )
    return found


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramFailure from None


def _base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramFailure from None
