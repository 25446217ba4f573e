"""How a client says who it is."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from dcp.errors import AuthenticationError, LocalProtocolError
from dcp.session.scram import Refused, Scram
from dcp.wire.mechanisms import MECHANISMS, PLAIN, SCRAM

# Sent is what goes out; what comes back is whether that was all, and the server's words.
Exchange = Generator[bytes, tuple[bool, bytes], None]


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and a password, which no text shows."""

    username: str
    password: str = field(repr=False)


def choose(offered: Sequence[str], wanted: str | None, *, tls: bool) -> str:
    """The mechanism to use. Without TLS a password goes over the wire only if that is asked for by name."""
    if wanted is not None:
        if wanted not in MECHANISMS:
            raise LocalProtocolError(f"sasl_mech_force: expected one of {', '.join(MECHANISMS)}, found {wanted!r}")
        if wanted in offered:
            return wanted
        has = ", ".join(offered) or "none"
        raise AuthenticationError(f"sasl_mech_force: the server does not offer {wanted}; it has {has}")
    possible = [name for name in MECHANISMS if name in offered and (tls or name != PLAIN)]
    if tls and PLAIN in possible:
        return PLAIN
    if possible:
        return possible[0]
    raise AuthenticationError(
        f"no common way to authenticate: the server offers {', '.join(offered) or 'none'}; "
        f"without TLS it has to be one of {', '.join(SCRAM)}, unless sasl_mech_force={PLAIN} says otherwise"
    )


def exchange(mechanism: str, credentials: Credentials) -> Exchange:
    """The messages of a mechanism. Ends when the server is convinced, and has proved itself where it can."""
    if mechanism == PLAIN:
        return _plain(credentials)
    return _scram(mechanism, credentials)


def _plain(credentials: Credentials) -> Exchange:
    said = "\0".join(("", credentials.username, credentials.password))
    if said.count("\0") > 2 or any("\ud800" <= letter <= "\udfff" for letter in said):
        raise _unspeakable(PLAIN)
    done, _ = yield said.encode()
    if not done:
        raise AuthenticationError("the server asks for more than PLAIN has to say")


def _scram(mechanism: str, credentials: Credentials) -> Exchange:
    try:
        scram = Scram(SCRAM[mechanism], credentials.username, credentials.password)
    except ValueError:
        raise _unspeakable(mechanism) from None
    try:
        done, challenge = yield scram.first()
        if not done:
            done, verdict = yield scram.final(challenge)
            if done:
                scram.verify(verdict)
                return
    except Refused:
        raise AuthenticationError(
            f"{mechanism}: the server did not prove that it knows the password: it may not be the one you mean"
        ) from None
    raise AuthenticationError(f"the server broke off {mechanism} before it had proved itself")


def _unspeakable(mechanism: str) -> LocalProtocolError:
    return LocalProtocolError(f"user name or password: expected characters that {mechanism} can say")
