"""Faults of streams: refused requests, rollbacks, early and late ends, silence, and wrong flow control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dcp.embedded.connection import ServerConnection, response
from dcp.embedded.faults.fault import Fault, MemberOf, OneOf, option, positive, positive_size, sequence
from dcp.embedded.stream import ServerStream
from dcp.value_grammar import flag, whole_number
from dcp.wire.dcp import DCP, StreamEnd
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status

if TYPE_CHECKING:
    from dcp.embedded.link import ServerLink


_COMMANDS = OneOf(DCP.by_name, "the name of a command, such as select_bucket")


@dataclass(eq=False)
class RefuseFault(Fault):
    """Refuses stream requests, or another command, with a status.

    Clients see `status` in the response. The connection stays open.
    """

    status: int = option(MemberOf(Status), "status of the response", Status.ETMPFAIL)
    command: str = option(_COMMANDS, "name of the command", "stream_request")
    map: bool = option(flag, "on if NOT_MY_VBUCKET has the cluster map", False)

    def requested(self, connection: ServerConnection, frame: Frame) -> Frame | None:
        self.hits += 1
        value = _cluster_map(connection) if self.map else b""
        return response(frame, self.status, value=value)  # type: ignore[arg-type]


def _cluster_map(connection: ServerConnection) -> bytes:
    """Return the value of the node's response to a request for the cluster map."""
    found = connection.handlers["get_cluster_config"](connection, Frame("get_cluster_config", Magic.REQUEST))
    assert isinstance(found, Frame)
    return found.value


@dataclass(eq=False)
class RollbackFault(Fault):
    """Rolls back resumed streams, once or several times in a row.

    Clients see ROLLBACK with a seqno in response to a request that does not start at 0.
    """

    to: tuple[int, ...] = option(sequence, "seqnos, one for each request of a vbucket, such as 300,100", (0,))
    forever: bool = option(flag, "on to repeat the last seqno for ever, even for a stream that starts at 0", False)
    # Number of rollbacks of each vbucket.
    _step: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def requested(self, connection: ServerConnection, frame: Frame) -> Frame | None:
        step = self._step.get(frame.vbucket, 0)
        if not self.forever and (step >= len(self.to) or frame.fields["start_seqno"] == 0):
            return None
        self._step[frame.vbucket] = step + 1
        self.hits += 1
        seqno = self.to[min(step, len(self.to) - 1)]
        return response(frame, Status.ROLLBACK, fields={"rollback_seqno": seqno})


@dataclass(eq=False)
class EndFault(Fault):
    """Ends streams, with a reason, after a number of items.

    Clients see STREAM_END before the end seqno that they requested.
    """

    status: int = option(MemberOf(StreamEnd), "reason of the end", StreamEnd.STATE_CHANGED)
    after: int = option(whole_number, "number of items that are sent before", 0)

    def may_write(self, connection: ServerConnection, stream: ServerStream) -> bool:
        if stream.items_sent < self.after:
            # Otherwise a stream whose items all fit into one buffer would be done before the fault sees it again.
            stream.pause_at = self.after
        elif not stream.ending:
            self.hits += 1
            stream.end(self.status)  # type: ignore[arg-type]
        return True


@dataclass(eq=False)
class BeyondEndFault(Fault):
    """Continues streams beyond their end seqno, as far as there are items.

    Clients see items above the end seqno that they requested.
    """

    items: int = option(positive, "number of seqnos beyond the end", 1)
    # Streams that were extended.
    _seen: WeakKeyDictionary[ServerStream, bool] = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def may_write(self, connection: ServerConnection, stream: ServerStream) -> bool:
        end = min(stream.granted.end + self.items, stream.vbucket.high_seqno)
        if end > stream.granted.end and not self._seen.setdefault(stream, False):
            self._seen[stream] = True
            self.hits += 1
            stream.granted = replace(stream.granted, end=end)
        return True


@dataclass(eq=False)
class SilentFault(Fault):
    """Grants streams and sends nothing on them.

    Clients see a stream without markers and items, on a connection whose no-ops arrive.
    """

    def may_write(self, connection: ServerConnection, stream: ServerStream) -> bool:
        self.hits += 1
        return False


@dataclass(eq=False)
class OverfillFault(Fault):
    """Sends more bytes than the flow-control window allows.

    Clients see up to `bytes` more than their window allows, before they acknowledge any.
    """

    bytes: int = option(positive_size, "bytes beyond the window, over all connections", 1 << 20)

    def paused_until(self, link: ServerLink, now: float) -> float:
        # Not a pause: this hook runs before each write, where acknowledging on behalf of the client opens the window.
        out = link.connection.out
        if out.stalled and self.hits < self.bytes:
            excess = min(out.outstanding, self.bytes - self.hits)
            self.hits += excess
            out.acknowledge(excess)
        return 0.0


@dataclass(eq=False)
class UnderfillFault(Fault):
    """Takes the flow-control window for smaller than it is, and waits although there is room.

    Clients see a node stop although their window has room, until they acknowledge more.
    """

    bytes: int = option(positive_size, "bytes that the window lacks", 1 << 20)
    # Bytes that were counted as outstanding on each link.
    _withheld: WeakKeyDictionary[ServerLink, int] = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def paused_until(self, link: ServerLink, now: float) -> float:
        out = link.connection.out
        if out.window and link not in self._withheld:
            self.hits += 1
            self._withheld[link] = self.bytes
            out.outstanding += self.bytes
        return 0.0

    def cleared(self, links: Sequence[ServerLink]) -> None:
        for link, withheld in self._withheld.items():
            link.connection.out.acknowledge(withheld)


STREAMS: dict[str, type[Fault]] = {
    "refuse": RefuseFault,
    "rollback": RollbackFault,
    "end": EndFault,
    "beyond_end": BeyondEndFault,
    "silent": SilentFault,
    "overfill": OverfillFault,
    "underfill": UnderfillFault,
}
