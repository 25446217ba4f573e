"""Sessions for tests: ready ones without a handshake, and a server that answers handshakes as scripted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import dcp
from dcp.session.demands import Demands
from dcp.session.events import Event
from dcp.session.handshake import Agreement, ConnectionSettings
from dcp.session.sasl import Credentials
from dcp.session.session import Session
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status

MANY = 1 << 30
PASSWORD = "correct horse battery"
SETTINGS = ConnectionSettings("test", "travel", Credentials("alice", PASSWORD), tls=True)

AnySession = TypeVar("AnySession", bound=Session)
Answer = Status | bytes | tuple[Status, bytes]


def requested(**settings: Any) -> ConnectionSettings:
    """Return SETTINGS with others, for the first connection of a client unless `demands` is among them."""
    return replace(SETTINGS, **({"demands": Demands()} | settings))


def decoder(collections: bool) -> dcp.Decoder:
    """Return the decoder that most tests use."""
    return dcp.Decoder(collections=collections)


def ready_session(agreement: Agreement, decoder: Callable[[bool], dcp.Decoder]) -> Session:
    """Return a session whose handshake ended with this agreement."""
    return made_ready(Session(ConnectionSettings("", "", collections=agreement.collections), decoder, 0.0), agreement)


def made_ready(session: AnySession, agreement: Agreement) -> AnySession:
    """End the handshake of a new session with this agreement."""
    session.outgoing()
    session.agreement = agreement
    return session


def hear(session: Session, data: bytes, now: float = 0.0) -> list[Event]:
    """Pass bytes of the node to a session, and return its events."""
    events: list[Event] = []
    while data:
        with session.buffer() as room:
            count = min(len(room), len(data))
            room[:count] = data[:count]
        data = data[count:]
        events += session.received(count, now, MANY, MANY)[0]
    return events


class Peer:
    """A server that accepts everything, with other `answers` by the name of a command or control."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers: dict[str, Answer] = {"sasl_list_mechs": b"SCRAM-SHA512 PLAIN", "get_cluster_config": b"{}"}
        self.answers |= answers or {}
        self.requests: list[Frame] = []

    def answer(self, frame: Frame) -> bytes:
        self.requests.append(frame)
        found = self.answers.get(frame.key.decode() if frame.name == "control" else frame.name, Status.SUCCESS)
        if found is Status.SUCCESS and frame.name == "hello":
            found = frame.value
        status, value = (
            (Status.SUCCESS, found) if isinstance(found, bytes) else found if isinstance(found, tuple) else (found, b"")
        )
        return encode(Frame(frame.name, Magic.RESPONSE, frame.opaque, status=int(status), value=value))

    def named(self, name: str) -> list[Frame]:
        return [frame for frame in self.requests if frame.name == name]

    @property
    def controls(self) -> dict[str, str]:
        return {frame.key.decode(): frame.value.decode() for frame in self.named("control")}


def handshake(peer: Peer, **settings: Any) -> tuple[Session, Agreement]:
    """Return a session after its handshake. Raises what the handshake raises."""
    session = Session(requested(**settings), decoder, 0.0)
    while session.agreement is None:
        (request,) = dcp.decode(session.outgoing())
        hear(session, peer.answer(request))
        if session.agreement is None:
            session.take()
    return session, session.agreement
