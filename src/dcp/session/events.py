"""Events of a session, in the order in which they happened on the connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dcp.session.handshake import Agreement
from dcp.session.stream import ConsumerStream
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status


@dataclass(frozen=True, slots=True)
class SessionReady:
    """End of the handshake: streams can be opened, commands can be sent."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class StreamAccepted:
    """Accepted stream request: rows will follow."""

    stream: ConsumerStream


@dataclass(frozen=True, slots=True)
class StreamRolledBack:
    """Stream request answered with ROLLBACK: the consumer has to go back to `seqno` and ask again."""

    stream: ConsumerStream
    seqno: int


@dataclass(frozen=True, slots=True)
class DeletionsPurged:
    """Purge of deletions up to `seqno` on the node, above `start`, where the stream resumed: some may be missed."""

    stream: ConsumerStream
    start: int
    seqno: int


@dataclass(frozen=True, slots=True)
class StreamRefused:
    """Stream request answered with any other error.

    body: decoded body of the answer, such as a cluster map for NOT_MY_VBUCKET; bytes if it could not be decoded.
    """

    stream: ConsumerStream
    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """End of a stream, with the reason of the node."""

    stream: ConsumerStream
    reason: int


@dataclass(frozen=True, slots=True)
class MapChanged:
    """Newer cluster map, parsed from JSON; None if the node sent only its revision, or only a hint."""

    config: Any


@dataclass(frozen=True, slots=True)
class CommandAnswered:
    """Answer to `Session.send_command`, under the opaque that it returned."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class MessageIgnored:
    """Message of the node that no stream of the client can use.

    answer: status with which it was answered; None for no answer.
    """

    name: str
    opcode: int
    vbucket: int
    answer: Status | None = None


Event = (
    SessionReady
    | StreamAccepted
    | StreamRolledBack
    | DeletionsPurged
    | StreamRefused
    | StreamEnded
    | MapChanged
    | CommandAnswered
    | MessageIgnored
)
