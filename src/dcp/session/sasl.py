"""How a client says who it is."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from scramp import ScramClient, ScramException

from dcp.errors import AuthenticationError

PLAIN = "PLAIN"
# As servers call them, the strongest first, and as RFC 5802 does.
SCRAM = {"SCRAM-SHA512": "SCRAM-SHA-512", "SCRAM-SHA256": "SCRAM-SHA-256", "SCRAM-SHA1": "SCRAM-SHA-1"}
MECHANISMS = (*SCRAM, PLAIN)

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
        if wanted in offered:
            return wanted
        raise AuthenticationError(f"sasl_mechanism: the server does not offer {wanted}; it has {', '.join(offered)}")
    possible = [name for name in MECHANISMS if name in offered and (tls or name != PLAIN)]
    if tls and PLAIN in possible:
        return PLAIN
    if possible:
        return possible[0]
    raise AuthenticationError(
        f"no common way to authenticate: the server offers {', '.join(offered) or 'none'}; "
        f"without TLS it has to be one of {', '.join(SCRAM)}, unless sasl_mechanism={PLAIN} says otherwise"
    )


def exchange(mechanism: str, credentials: Credentials) -> Exchange:
    """The messages of a mechanism. Ends when the server is convinced, and has proved itself where it can."""
    if mechanism == PLAIN:
        return _plain(credentials)
    return _scram(mechanism, credentials)


def _plain(credentials: Credentials) -> Exchange:
    done, _ = yield f"\0{credentials.username}\0{credentials.password}".encode()
    if not done:
        raise AuthenticationError("the server asks for more than PLAIN has to say")


def _scram(mechanism: str, credentials: Credentials) -> Exchange:
    client = ScramClient([SCRAM[mechanism]], credentials.username, credentials.password)
    try:
        done, challenge = yield client.get_client_first().encode()
        if not done:
            client.set_server_first(challenge.decode())
            done, proof = yield client.get_client_final().encode()
            if done:
                client.set_server_final(proof.decode())
                return
    except (ScramException, ValueError):
        raise AuthenticationError("the server's answer is not that of one who knows the password") from None
    raise AuthenticationError(f"the server broke off {mechanism} before it had proved itself")
