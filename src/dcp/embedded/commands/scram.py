"""SCRAM (RFC 5802) as a server sees it.

By hand but for the secrets: the nonces of the official C++ client, which other clients stand on, have blanks in
them. Servers take those; libraries that hold on to the standard do not.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field

from scramp import ScramException, ScramMechanism

from dcp.wire.mechanisms import SCRAM, standard_name

_SALT_BYTES, _NONCE_BYTES = 16, 8
# No channel binding: `n,,`, and what its base64 is.
_FIRST = re.compile(r"n,,(n=([^,]+),r=([^,]+))", re.DOTALL)
_FINAL = re.compile(r"(c=biws,r=([^,]+)),p=([^,]+)", re.DOTALL)


class ScramFailure(Exception):
    """The client is not who it says, or does not speak SCRAM."""


@dataclass
class ScramExchange:
    """The two steps. password_of: None for a name that nobody has. chance: random bytes."""

    mechanism: str
    password_of: Callable[[str], str | None]
    chance: Callable[[int], bytes]
    user: str = field(default="", init=False)

    def challenge(self, message: bytes) -> bytes:
        """The answer to the client's first message."""
        found = _FIRST.fullmatch(_text(message))
        if found is None:
            raise ScramFailure
        bare, name, nonce = found.groups()
        self.user = name.replace("=2C", ",").replace("=3D", "=")
        password = self.password_of(self.user)
        if password is None:
            raise ScramFailure
        self._nonce = nonce + self.chance(_NONCE_BYTES).hex()
        salt, self._stored_key, self._server_key, rounds = self._secrets(password)
        challenge = f"r={self._nonce},s={b64encode(salt).decode()},i={rounds}"
        self._said = f"{bare},{challenge}"
        return challenge.encode()

    def finish(self, message: bytes) -> bytes:
        """The server's own proof, if that of the client's second message holds."""
        found = _FINAL.fullmatch(_text(message))
        if found is None or found[2] != self._nonce:
            raise ScramFailure
        said = f"{self._said},{found[1]}".encode()
        signature = self._hmac(self._stored_key, said)
        proof = _base64(found[3])
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        if len(proof) != len(signature) or not hmac.compare_digest(self._hash(client_key), self._stored_key):
            raise ScramFailure
        return b"v=" + b64encode(self._hmac(self._server_key, said))

    def _secrets(self, password: str) -> tuple[bytes, bytes, bytes, int]:
        try:
            made: tuple[bytes, bytes, bytes, int] = ScramMechanism(standard_name(self.mechanism)).make_auth_info(
                password, salt=self.chance(_SALT_BYTES)
            )
        except ScramException:  # A password that the standard does not allow.
            raise ScramFailure from None
        return made

    def _hash(self, data: bytes) -> bytes:
        return hashlib.new(SCRAM[self.mechanism], data).digest()

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, SCRAM[self.mechanism])


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
