"""What a session tells its owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dcp.session.handshake import Agreement
from dcp.session.stream import Stream
from dcp.wire.frame import Frame


@dataclass(frozen=True, slots=True)
class Ready:
    """Streams can be asked for."""

    agreement: Agreement


@dataclass(frozen=True, slots=True)
class Accepted:
    """A stream will come."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The producer does not have what a position is built on: the consumer has to go back to `seqno`."""

    stream: Stream
    seqno: int


@dataclass(frozen=True, slots=True)
class Purged:
    """The node forgot deletions up to `seqno`, some of them perhaps behind `start`, where the stream began."""

    stream: Stream
    start: int
    seqno: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A stream will not come. `body` is what the producer says of it: words, or a cluster map."""

    stream: Stream
    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class Ended:
    """A stream is over."""

    stream: Stream
    reason: int


@dataclass(frozen=True, slots=True)
class MapChanged:
    """A newer cluster map; None where only its number was told."""

    config: Any


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a command."""

    frame: Frame


Event = Ready | Accepted | RolledBack | Purged | Refused | Ended | MapChanged | Answered
