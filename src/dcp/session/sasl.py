"""SASL authentication of a client: choice of the mechanism, and its messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from dcp.errors import AuthenticationError, TransportError, UsageError
from dcp.session.scram import SaltedPassword, Scram, ScramRejection
from dcp.wire.mechanisms import MECHANISMS, OAUTHBEARER, PLAIN, SCRAM

# Yields messages to send. Takes (True if the server reported success, its message).
Exchange = Generator[bytes, tuple[bool, bytes], None]


@dataclass(frozen=True, slots=True)
class Credentials:
    """User name and password. The password is never part of a repr."""

    username: str
    password: str = field(repr=False)
    salted: SaltedPassword = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "salted", SaltedPassword(self.password))


@dataclass(frozen=True, slots=True)
class BearerToken:
    """Token of a user, which is never part of a repr.

    usable: seconds from now after which its connection is to be replaced by one with a new token; None if unknown.
    """

    token: str = field(repr=False)
    usable: float | None = None


# Returns the token to log in with now.
TokenSource = Callable[[], BearerToken]


def choose(offered: Sequence[str], wanted: str | None, *, tls: bool, verified: bool = True, before: str = "") -> str:
    """Return the mechanism to use.

    offered: mechanisms of the server.
    wanted: mechanism that the caller insists on; None to choose.
    tls: True if the connection is encrypted. PLAIN is chosen then, as it is the fastest; without TLS, it would show
        the password to the network, so it is used only if `wanted` names it.
    verified: False if the node may be another one, which PLAIN would tell the password: it is then the last choice.
    before: mechanism of the client's first connection; empty for none. No weaker one is used.

    Raises UsageError for an unknown mechanism, AuthenticationError if the server offers none that can be used, and
    TransportError if it offers weaker ones than before.
    """
    if wanted is not None:
        if wanted not in MECHANISMS:
            raise UsageError(f"sasl_mech_force: expected one of {', '.join(MECHANISMS)}, found {wanted!r}")
        if wanted in offered:
            return wanted
        names = ", ".join(offered) or "none"
        raise AuthenticationError(f"sasl_mech_force: the server does not offer {wanted}; it offers {names}")
    accepted = MECHANISMS[: MECHANISMS.index(before) + 1] if before in MECHANISMS else MECHANISMS
    possible = [name for name in accepted if name in offered and (tls or name != PLAIN)]
    if tls and verified and PLAIN in possible:
        return PLAIN
    if possible:
        return possible[0]
    if before in MECHANISMS:
        raise TransportError(
            f"the node offers {', '.join(offered) or 'no SASL mechanism'}, and nothing as strong as {before}, which "
            "the first connection of this client used: somebody may alter the connection: use couchbases://. If the "
            "mechanisms of the cluster were changed, connect with a new client"
        )
    raise AuthenticationError(
        f"no common SASL mechanism: the server offers {', '.join(offered) or 'none'}; "
        f"without TLS it has to be one of {', '.join(SCRAM)}, unless sasl_mech_force={PLAIN} allows PLAIN"
    )


def check_accepts_tokens(offered: Sequence[str]) -> None:
    """Raise AuthenticationError if the server does not offer the mechanism for tokens."""
    if OAUTHBEARER not in offered:
        raise AuthenticationError(
            f"token: the server does not offer {OAUTHBEARER}, which needs server 8.1 or newer; it offers "
            f"{', '.join(offered) or 'none'}: log in with a password or a client certificate"
        )


def bearer(token: BearerToken) -> Exchange:
    """Return the message of an authentication with a token. The generator ends when the server accepted it."""
    # The GS2 header names no user: the token does (kv_engine, cbsasl/oauthbearer).
    done, _ = yield f"n,,\x01auth=Bearer {token.token}\x01\x01".encode()
    if not done:
        raise AuthenticationError(f"{OAUTHBEARER}: expected the server's verdict, found a request for another step")


def exchange(mechanism: str, credentials: Credentials) -> Exchange:
    """Return the messages of one authentication with a password.

    The generator ends when the server accepted the credentials and, with SCRAM, proved that it knows the password.
    Raises AuthenticationError if the server fails to, UsageError if the mechanism cannot express the credentials.
    """
    if mechanism == PLAIN:
        return _plain(credentials)
    return _scram(mechanism, credentials)


def _plain(credentials: Credentials) -> Exchange:
    message = "\0".join(("", credentials.username, credentials.password))
    if message.count("\0") > 2 or any("\ud800" <= letter <= "\udfff" for letter in message):
        raise _inexpressible(PLAIN)
    done, _ = yield message.encode()
    if not done:
        raise AuthenticationError("PLAIN: expected the server's verdict, found a request for another step")


def _scram(mechanism: str, credentials: Credentials) -> Exchange:
    try:
        scram = Scram(SCRAM[mechanism], credentials.username, credentials.salted)
    except ValueError:
        raise _inexpressible(mechanism) from None
    try:
        done, challenge = yield scram.first()
        if not done:
            done, verdict = yield scram.final(challenge)
            if done:
                scram.verify(verdict)
                return
    except ScramRejection as why:
        reason = f" ({why})" if str(why) else ""
        raise AuthenticationError(
            f"{mechanism}: the server did not prove that it knows the password{reason}: it may not be the one you mean"
        ) from None
    # Success before the server's proof is no success: anyone could send it.
    raise AuthenticationError(f"{mechanism}: the server broke off before it had proved that it knows the password")


def _inexpressible(mechanism: str) -> UsageError:
    return UsageError(f"user name or password: expected characters that {mechanism} can express")
