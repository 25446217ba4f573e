"""Faults on command: the table of all faults, and those that are active in a cluster.

    with cluster.fault("refuse", status="NOT_MY_VBUCKET", times=2) as fault:
        ...
    assert fault.hits == 2

Faults of clusters with the same seed make the same random choices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING

from dcp.embedded.faults.fault import Fault, Parts, changed_options, create_fault, option_text, options_of
from dcp.embedded.faults.frames import FRAMES
from dcp.embedded.faults.streams import STREAMS
from dcp.embedded.faults.wires import WIRES
from dcp.embedded.stream import ServerStream
from dcp.errors import UsageError

if TYPE_CHECKING:
    from dcp.embedded.connection import FrameSource, Handler, ServerConnection
    from dcp.embedded.link import ServerLink
    from dcp.wire.frame import Frame

# All faults by name: those of the network, of streams and of frames.
FAULTS: Mapping[str, type[Fault]] = WIRES | STREAMS | FRAMES


def describe_faults() -> str:
    """Return a text with a line for each fault and each of its options, with defaults."""
    lines = []
    for name, fault in FAULTS.items():
        lines.append(f"{name}: {(fault.__doc__ or '').splitlines()[0]}")
        lines += [f"  {one.name}={option_text(one.default)}: {one.metadata['help']}" for one in options_of(fault)]
    return "\n".join(lines)


class Faults:
    """Active faults, in the order in which they were started. `seed` is that of their random choices.

    The methods are called with the cluster's lock held. Hot paths check `active` first, usually an empty tuple.
    """

    def __init__(self, seed: int | None = None) -> None:
        # A new tuple for each change: hooks may clear faults while it is iterated over.
        self.active: tuple[Fault, ...] = ()
        self._random = Random(seed)
        self._started = 0

    def add(self, name: str, options: dict[str, object], nodes: int, vbuckets: int) -> Fault:
        """Start a fault in a cluster with this number of nodes and vbuckets."""
        # A list takes names of any type.
        if name not in list(FAULTS):
            raise UsageError(f"fault: expected one of {', '.join(FAULTS)}; found {name!r}")
        fault = create_fault(name, FAULTS[name], options)
        _check_exists(f"fault {name}: node", fault.node or 0, nodes)
        _check_exists(f"fault {name}: vbuckets", max(fault.vbuckets or {0}), vbuckets)
        fault.random.seed(self._random.random())
        self._started += 1
        fault.name, fault.number = name, self._started
        self.active += (fault,)
        return fault

    def remove(self, fault: Fault, links: list[ServerLink]) -> bool:
        """End a fault, and return whether it was active."""
        if fault not in self.active:
            return False
        self.active = tuple(other for other in self.active if other is not fault)
        fault.cleared(links)
        return True

    # Hooks, combined over all active faults.

    def paused_until(self, link: ServerLink, now: float) -> float:
        """Return the latest of the times until which the link must not send."""
        return max((fault.paused_until(link, now) for fault in self._concerning(link)), default=0.0)

    def room(self, link: ServerLink, now: float) -> int | None:
        """Return the smallest number of bytes that the link may send at once; None for no limit."""
        rooms = [fault.room(link, now) for fault in self._concerning(link)]
        return min((room for room in rooms if room is not None), default=None)

    def received(self, link: ServerLink, data: bytes) -> bytes:
        """Return the bytes that the node receives."""
        for fault in self._concerning(link):
            data = fault.received(link, data)
        return data

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        """Return the bytes that the client receives."""
        for fault in self._concerning(link):
            parts = fault.sending(link, parts)
        return parts

    def may_write(self, connection: ServerConnection, source: FrameSource) -> bool:
        """Return whether a stream may write now."""
        if not self.active or not isinstance(source, ServerStream):
            return True
        node, vbucket = connection.node.number, source.vbucket.number
        return all(fault.may_write(connection, source) for fault in self.active if fault.concerns(node, vbucket))

    def on_request(self, handler: Handler) -> Handler:
        """Return a handler of requests with the faults before it."""

        def handle(connection: ServerConnection, frame: Frame) -> object:
            for fault in self.active:
                if frame.name != fault.command or not fault.concerns(connection.node.number, frame.vbucket):
                    continue
                if (refusal := fault.requested(connection, frame)) is not None:
                    return refusal
            return handler(connection, frame)

        return handle  # type: ignore[return-value]

    def _concerning(self, link: ServerLink) -> list[Fault]:
        return [fault for fault in self.active if fault.concerns(link.connection.node.number)]


def _check_exists(name: str, highest: int, count: int) -> None:
    if highest >= count:
        raise UsageError(f"{name}: expected 0 to {count - 1}, found {highest}: it would never act")


class FaultHandle:
    """Handle of a fault, which is active until `clear` is called or the `with` block of the handle ends."""

    def __init__(self, fault: Fault, clear: Callable[[], None]) -> None:
        self._fault = fault
        self._clear = clear

    @property
    def name(self) -> str:
        """Name of the fault, as in the table of faults."""
        return self._fault.name

    @property
    def number(self) -> int:
        """Number of the fault among all that were started in its cluster, from 1 on."""
        return self._fault.number

    @property
    def options(self) -> dict[str, str]:
        """Options that differ from their defaults, in the form in which they may be given."""
        return changed_options(self._fault)

    @property
    def hits(self) -> int:
        """Number of times that the fault has acted. Faults that count bytes count these."""
        return self._fault.hits

    def clear(self) -> None:
        """End the fault, and undo what can be undone. Also works after the cluster was closed, and twice."""
        self._clear()

    def __enter__(self) -> FaultHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"<fault {self.name}, {self.hits} hits>"
