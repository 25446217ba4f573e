"""Who a client is: PLAIN, and SCRAM with the hashes that servers have."""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest

from dcp.embedded.commands.scram import Exchange, Failed
from dcp.embedded.conversation import Conversation, Handler, Refusal, answer
from dcp.embedded.users import User
from dcp.wire.frame import Frame
from dcp.wire.mechanisms import MECHANISMS, PLAIN
from dcp.wire.memcached import Status


def list_mechs(talk: Conversation, frame: Frame) -> Frame:
    _check_phase(talk)
    return answer(frame, value=" ".join(_mechanisms(talk)).encode())


def auth(talk: Conversation, frame: Frame) -> Frame:
    _check_phase(talk)
    talk.forget_user()
    mechanism = frame.key.decode(errors="replace")
    if mechanism not in _mechanisms(talk):
        raise Refusal(Status.AUTH_ERROR, f"Expected one of {', '.join(_mechanisms(talk))}")
    if mechanism == PLAIN:
        return _enter(talk, frame, _plain_user(talk, frame.value))
    exchange = Exchange(mechanism, lambda name: _password(_user(talk, name)), talk.chance)
    challenge = _judged(exchange.challenge, frame.value)
    talk.session.exchange = exchange
    return answer(frame, Status.AUTH_CONTINUE, value=challenge)


def step(talk: Conversation, frame: Frame) -> Frame:
    _check_phase(talk)
    exchange, talk.session.exchange = talk.session.exchange, None
    if exchange is None or exchange.mechanism.encode() != frame.key:
        raise Refusal(Status.AUTH_ERROR)
    proof = _judged(exchange.finish, frame.value)
    return _enter(talk, frame, _user(talk, exchange.user), proof)


def _judged(say: Callable[[bytes], bytes], message: bytes) -> bytes:
    try:
        return say(message)
    except Failed:
        raise Refusal(Status.AUTH_ERROR) from None


def _mechanisms(talk: Conversation) -> list[str]:
    return list(MECHANISMS) if talk.bucket.release.has_users else [PLAIN]


def _user(talk: Conversation, name: str) -> User | None:
    return (talk.users or {}).get(name)


def _password(user: User | None) -> str | None:
    return None if user is None else user.password


def _plain_user(talk: Conversation, value: bytes) -> User | None:
    _, name, password = [*value.split(b"\0", 2), b"", b""][:3]
    user = _user(talk, name.decode(errors="replace"))
    return user if user is not None and compare_digest(user.password.encode(), password) else None


def _enter(talk: Conversation, frame: Frame, user: User | None, value: bytes = b"") -> Frame:
    if user is None:
        raise Refusal(Status.AUTH_ERROR)
    talk.session.user = user
    return answer(frame, value=value)


def _check_phase(talk: Conversation) -> None:
    if talk.session.opened:
        raise Refusal(Status.NOT_SUPPORTED, "A DCP connection keeps its user")


HANDLERS: dict[str, Handler] = {"sasl_list_mechs": list_mechs, "sasl_auth": auth, "sasl_step": step}
