"""A server that is asked one thing at a time, and answers as it is told to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import dcp
from dcp.session.events import Event
from dcp.session.handshake import Agreement, ConnectionSettings
from dcp.session.sasl import Credentials
from dcp.session.session import Session
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status

MANY = 1 << 30
PASSWORD = "correct horse battery"
WISHES = ConnectionSettings("test", "travel", Credentials("alice", PASSWORD), tls=True)

Said = Status | bytes | tuple[Status, bytes]


def decoder(collections: bool) -> dcp.Decoder:
    return dcp.Decoder(collections=collections)


def hear(session: Session, data: bytes, now: float = 0.0) -> list[Event]:
    events: list[Event] = []
    while data:
        with session.buffer() as room:
            count = min(len(room), len(data))
            room[:count] = data[:count]
        data = data[count:]
        events += session.received(count, now, MANY, MANY)[0]
    return events


class Peer:
    """Takes everything, but for `said`: by the name of a command, or of a control."""

    def __init__(self, said: Mapping[str, Said] | None = None) -> None:
        self.said: dict[str, Said] = {"sasl_list_mechs": b"SCRAM-SHA512 PLAIN", "get_cluster_config": b"{}"}
        self.said |= said or {}
        self.asked: list[Frame] = []

    def answer(self, frame: Frame) -> bytes:
        self.asked.append(frame)
        said = self.said.get(frame.key.decode() if frame.name == "control" else frame.name, Status.SUCCESS)
        if said is Status.SUCCESS and frame.name == "hello":
            said = frame.value
        status, value = (
            (Status.SUCCESS, said) if isinstance(said, bytes) else said if isinstance(said, tuple) else (said, b"")
        )
        return encode(Frame(frame.name, Magic.RESPONSE, frame.opaque, status=int(status), value=value))

    def named(self, name: str) -> list[Frame]:
        return [frame for frame in self.asked if frame.name == name]

    @property
    def controls(self) -> dict[str, str]:
        return {frame.key.decode(): frame.value.decode() for frame in self.named("control")}


def shake(peer: Peer, **wishes: Any) -> tuple[Session, Agreement]:
    """The session when it is ready. Raises what the handshake raises."""
    session = Session(replace(WISHES, **wishes), decoder, 0.0)
    while session.agreement is None:
        (asked,) = dcp.decode(session.outgoing())
        hear(session, peer.answer(asked))
        if session.agreement is None:
            session.take()
    return session, session.agreement
