"""Tokens to log in with: where each one is from, and how long a connection may use it."""

from __future__ import annotations

import json
import re
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable

from dcp.errors import DcpError, TransportError, UsageError
from dcp.session.sasl import BearerToken

# Characters of bearer tokens (RFC 6750, b64token).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
EXPECTED = "a token of letters, digits and -._~+/, or a function that returns one"
# Part of a token's remaining life after which its connections are replaced, if there may be a newer token.
_USED_PART = 0.8
# Seconds. Longer waits do not fit into the timeouts of selectors.
_LONGEST_LIFE = 7 * 86_400.0


class ClientTokens:
    """Source of the token for each login of a client. Thread-safe.

    given: the token, or a function that returns the present one. It is called at every login, by one thread at a time.
    """

    def __init__(self, given: str | Callable[[], str]) -> None:
        self._given = given
        self._lock = threading.Lock()

    def __call__(self) -> BearerToken:
        """Return the token to log in with now.

        Raises TransportError if the function fails, since it may succeed later, UsageError if it returns no token.
        """
        if isinstance(self._given, str):
            # There is no newer token to replace it with, so it is used until it expires.
            return BearerToken(self._given, _life(self._given))
        with self._lock:
            try:
                token = self._given()
            except DcpError:
                raise
            except Exception as error:
                # Its text is not shown: it may contain the token.
                raise TransportError(f"token: the function that returns it raised {type(error).__name__}") from error
        if not is_token(token):
            raise UsageError(f"token: expected {EXPECTED}; the function returned a {type(token).__name__} that is none")
        life = _life(token)
        return BearerToken(token, None if life is None else life * _USED_PART)


def is_token(value: object) -> bool:
    """Return whether a value is text that may be a bearer token."""
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def _life(token: str) -> float | None:
    """Return the seconds for which a JSON web token (RFC 7519) is still valid; None if that is unknown.

    A token that has expired by the clock of this machine may still be valid by that of the node, which is asked.
    """
    try:
        _, claims, _ = token.split(".")
        expires = json.loads(urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]
        left = float(expires) - time.time()
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return min(left, _LONGEST_LIFE) if left > 0 else None
