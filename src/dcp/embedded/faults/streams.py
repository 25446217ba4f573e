"""Faults of streams: how they are refused, how they end, and when they say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dcp.embedded.connection import ServerConnection, answer
from dcp.embedded.faults.fault import Fault, chain, number, one_of, option, positive, switch
from dcp.embedded.stream import ServerStream
from dcp.wire.dcp import StreamEnd
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status

if TYPE_CHECKING:
    from dcp.embedded.link import ServerLink


@dataclass(eq=False)
class RefuseFault(Fault):
    """Stream requests fail with a status."""

    status: int = option(one_of(Status), "a status by name or number", Status.ETMPFAIL)
    map: bool = option(switch, "whether NOT_MY_VBUCKET comes with the map", False)

    def requested(self, connection: ServerConnection, frame: Frame) -> Frame | None:
        self.hits += 1
        return answer(frame, self.status, value=_map(connection) if self.map else b"")  # type: ignore[arg-type]


def _map(connection: ServerConnection) -> bytes:
    """What the node says when it is asked for the map."""
    handler = connection.handlers.get("get_cluster_config")
    said = handler(connection, Frame("get_cluster_config", Magic.REQUEST)) if handler else None
    return said.value if isinstance(said, Frame) else b""


@dataclass(eq=False)
class RollbackFault(Fault):
    """Resumed streams have to go back: once, or further with every answer of a chain."""

    to: tuple[int, ...] = option(chain, "seqnos, one for each request of a vbucket, such as 300,100", (0,))
    forever: bool = option(switch, "whether the last one is said again and again, even to who begins at 0", False)
    _step: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def requested(self, connection: ServerConnection, frame: Frame) -> Frame | None:
        step = self._step.get(frame.vbucket, 0)
        if not self.forever and (step >= len(self.to) or frame.fields["start_seqno"] == 0):
            return None
        self._step[frame.vbucket] = step + 1
        self.hits += 1
        seqno = self.to[min(step, len(self.to) - 1)]
        return answer(frame, Status.ROLLBACK, fields={"rollback_seqno": seqno})


@dataclass(eq=False)
class EndFault(Fault):
    """Streams end, for a reason, when they have sent so many items."""

    status: int = option(one_of(StreamEnd), "a reason by name or number", StreamEnd.STATE_CHANGED)
    after: int = option(number, "items that are sent before", 0)

    def writes(self, connection: ServerConnection, stream: ServerStream) -> bool:
        if stream.items_sent < self.after:
            # Even one whose items would all go out at once.
            stream.rests_at = self.after
        elif not stream.ending:
            self.hits += 1
            stream.end(self.status)  # type: ignore[arg-type]
        return True


@dataclass(eq=False)
class BeyondEndFault(Fault):
    """Streams go on beyond the seqno at which they should end, as far as there is more."""

    items: int = option(positive, "how many seqnos beyond, at least 1", 1)
    _seen: WeakKeyDictionary[ServerStream, bool] = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def writes(self, connection: ServerConnection, stream: ServerStream) -> bool:
        end = min(stream.accepted.end + self.items, stream.vbucket.high_seqno)
        if end > stream.accepted.end and not self._seen.setdefault(stream, False):
            self._seen[stream] = True
            self.hits += 1
            stream.accepted = replace(stream.accepted, end=end)
        return True


@dataclass(eq=False)
class SilentFault(Fault):
    """Streams are there and say nothing, however much there is to say."""

    def writes(self, connection: ServerConnection, stream: ServerStream) -> bool:
        self.hits += 1
        return False


@dataclass(eq=False)
class OverfillFault(Fault):
    """The node sends more than the flow-control window allows."""

    bytes: int = option(positive, "how many bytes more, at least 1, for all connections together", 1 << 20)

    def rest(self, link: ServerLink, now: float) -> float:
        out = link.connection.out
        if out.stalled and self.hits < self.bytes:
            excess = min(out.outstanding, self.bytes - self.hits)
            self.hits += excess
            out.acknowledge(excess)
        return 0.0


@dataclass(eq=False)
class UnderfillFault(Fault):
    """The node takes the flow-control window for smaller than it is, and waits although there is room."""

    bytes: int = option(positive, "how many bytes smaller, at least 1", 1 << 20)
    _kept: WeakKeyDictionary[ServerLink, int] = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def rest(self, link: ServerLink, now: float) -> float:
        out = link.connection.out
        if out.window and link not in self._kept:
            self.hits += 1
            self._kept[link] = self.bytes
            out.outstanding += self.bytes
        return 0.0

    def cleared(self, links: Sequence[ServerLink]) -> None:
        for link, kept in self._kept.items():
            link.connection.out.acknowledge(kept)


STREAMS: dict[str, type[Fault]] = {
    "refuse": RefuseFault,
    "rollback": RollbackFault,
    "end": EndFault,
    "beyond_end": BeyondEndFault,
    "silent": SilentFault,
    "overfill": OverfillFault,
    "underfill": UnderfillFault,
}
