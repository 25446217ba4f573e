"""Authentication: PLAIN, SCRAM with the hashes that servers offer, and tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hmac import compare_digest

from dcp.embedded.commands.scram import ScramExchange, ScramFailure
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.refusals import Refusal
from dcp.embedded.users import User
from dcp.wire.frame import Frame
from dcp.wire.mechanisms import MECHANISMS, OAUTHBEARER, PLAIN
from dcp.wire.memcached import Status

# Listed by old releases; a login with it fails here.
_CRAM_MD5 = "CRAM-MD5"


def list_mechs(connection: ServerConnection, frame: Frame) -> Frame:
    _check_not_opened(connection)
    return response(frame, value=" ".join(_mechanisms(connection)).encode())


def auth(connection: ServerConnection, frame: Frame) -> Frame:
    _check_not_opened(connection)
    # A failed authentication must not leave the client with the user that it had before.
    bucket = connection.state.bucket
    connection.reset_user()
    mechanism = frame.key.decode(errors="replace")
    if mechanism not in _mechanisms(connection) or mechanism == _CRAM_MD5:
        raise Refusal(Status.AUTH_ERROR, f"Expected one of {', '.join(_mechanisms(connection))}")
    if mechanism == PLAIN:
        return _authenticated(connection, frame, _plain_user(connection, frame.value))
    if mechanism == OAUTHBEARER:
        return _authenticated_by_token(connection, frame, bucket)
    exchange = ScramExchange(mechanism, partial(_user, connection), connection.random_bytes)
    challenge = _scram_message(exchange.challenge, frame.value)
    connection.state.exchange = exchange
    return response(frame, Status.AUTH_CONTINUE, value=challenge)


def step(connection: ServerConnection, frame: Frame) -> Frame:
    _check_not_opened(connection)
    # An exchange is good for one attempt, successful or not.
    exchange, connection.state.exchange = connection.state.exchange, None
    if exchange is None or exchange.mechanism.encode() != frame.key:
        raise Refusal(Status.AUTH_ERROR)
    proof = _scram_message(exchange.finish, frame.value)
    return _authenticated(connection, frame, _user(connection, exchange.user), proof)


def _scram_message(step_of_exchange: Callable[[bytes], bytes], message: bytes) -> bytes:
    try:
        return step_of_exchange(message)
    except ScramFailure:
        raise Refusal(Status.AUTH_ERROR) from None


def _mechanisms(connection: ServerConnection) -> list[str]:
    """Return the mechanisms that a release lists, strongest first (seen in 3.1.6, and in 6.0.5 to 8.0.1)."""
    release = connection.bucket.release
    if not release.has_users:
        return [_CRAM_MD5, PLAIN]
    return [*MECHANISMS, OAUTHBEARER] if release.has_tokens and connection.encrypted else list(MECHANISMS)


def _user(connection: ServerConnection, name: str) -> User | None:
    return (connection.users or {}).get(name)


def _plain_user(connection: ServerConnection, value: bytes) -> User | None:
    _, name, password = [*value.split(b"\0", 2), b"", b""][:3]
    user = _user(connection, name.decode(errors="replace"))
    # compare_digest takes the same time wherever the passwords differ.
    return user if user is not None and compare_digest(user.password.encode(), password) else None


def _authenticated(connection: ServerConnection, frame: Frame, user: User | None, value: bytes = b"") -> Frame:
    if user is None:
        raise Refusal(Status.AUTH_ERROR)
    connection.state.user = user
    return response(frame, value=value)


def _authenticated_by_token(connection: ServerConnection, frame: Frame, bucket: str | None) -> Frame:
    """Set the user of a token. A connection that renews its token keeps its bucket."""
    issued = connection.tokens.get(_token(frame.value))
    if issued is None or issued.expires <= connection.bucket.clock():
        raise Refusal(Status.AUTH_ERROR)
    answer = _authenticated(connection, frame, issued.user)
    connection.state.token_expires, connection.state.bucket = issued.expires, bucket
    return answer


def _token(message: bytes) -> str:
    """Return the token of a client's message (RFC 7628, as far as kv_engine checks it)."""
    header, *fields = message.decode(errors="replace").split("\x01")
    authorization = next((field[5:].split(" ") for field in fields if field.startswith("auth=")), [])
    # Without channel binding, and with or without the name of a user, which the token has as well.
    well_formed = header.startswith(("n,,", "n,a=")) and header.endswith(",") and header.count(",") == 2
    if not well_formed or len(authorization) != 2 or authorization[0].lower() != "bearer":
        raise Refusal(Status.EINVAL)
    return authorization[1]


def _check_not_opened(connection: ServerConnection) -> None:
    if connection.state.opened:
        raise Refusal(Status.NOT_SUPPORTED, "A DCP connection keeps its user")


HANDLERS: dict[str, Handler] = {"sasl_list_mechs": list_mechs, "sasl_auth": auth, "sasl_step": step}
