"""What can go wrong on command: the table of faults, and those that are on.

    with cluster.fault("refuse", status="NOT_MY_VBUCKET", times=2) as fault:
        ...
    assert fault.hits == 2

The same seed of a cluster makes the same trouble.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING

from dcp.embedded.faults.fault import Fault, Parts, make, options_of
from dcp.embedded.faults.frames import FRAMES
from dcp.embedded.faults.streams import STREAMS
from dcp.embedded.faults.wires import WIRES
from dcp.embedded.stream import ServerStream
from dcp.errors import LocalProtocolError

if TYPE_CHECKING:
    from dcp.embedded.connection import FrameSource, Handler, ServerConnection
    from dcp.embedded.link import ServerLink
    from dcp.wire.frame import Frame

FAULTS: Mapping[str, type[Fault]] = WIRES | STREAMS | FRAMES


def describe() -> str:
    """Every fault and its options, a line each, for people."""
    lines = []
    for name, fault in FAULTS.items():
        lines.append(f"{name}: {(fault.__doc__ or '').splitlines()[0]}")
        lines += [f"  {one.name}={_shown(one.default)}: {one.metadata['says']}" for one in options_of(fault)]
    return "\n".join(lines)


def _shown(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else "" if default is None else str(default)


class Faults:
    """Those that are on, in the order in which they came, at the places where they act.

    seed: of what is random in them.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.on: tuple[Fault, ...] = ()
        self._random = Random(seed)

    def add(self, name: str, options: dict[str, object], nodes: int, vbuckets: int) -> Fault:
        """A fault that acts from now on, on some of so many nodes and vbuckets."""
        if name not in FAULTS:
            raise LocalProtocolError(f"fault: expected one of {', '.join(FAULTS)}; found {name!r}")
        fault = make(name, FAULTS[name], options)
        _check(f"fault {name}: node", fault.node or 0, nodes)
        _check(f"fault {name}: vbuckets", max(fault.vbuckets or {0}), vbuckets)
        fault.random.seed(self._random.random())
        self.on += (fault,)
        return fault

    def remove(self, fault: Fault, links: list[ServerLink]) -> None:
        if fault in self.on:
            self.on = tuple(other for other in self.on if other is not fault)
            fault.cleared(links)

    # Where they act. Whoever calls asks first whether any is on, if it is in a hurry.

    def rest(self, link: ServerLink, now: float) -> float:
        return max((fault.rest(link, now) for fault in self._here(link)), default=0.0)

    def room(self, link: ServerLink, now: float) -> int | None:
        return min((room for fault in self._here(link) if (room := fault.room(link, now)) is not None), default=None)

    def received(self, link: ServerLink, data: bytes) -> bytes:
        for fault in self._here(link):
            data = fault.received(link, data)
        return data

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        for fault in self._here(link):
            parts = fault.sending(link, parts)
        return parts

    def writes(self, connection: ServerConnection, source: FrameSource) -> bool:
        if not self.on or not isinstance(source, ServerStream):
            return True
        node, vbucket = connection.node.number, source.vbucket.number
        return all(fault.writes(connection, source) for fault in self.on if fault.concerns(node, vbucket))

    def on_request(self, handler: Handler) -> Handler:
        """The handler of stream requests, and what faults make of it."""

        def handle(connection: ServerConnection, frame: Frame) -> object:
            for fault in self.on:
                refused = (
                    fault.requested(connection, frame)
                    if fault.concerns(connection.node.number, frame.vbucket)
                    else None
                )
                if refused is not None:
                    return refused
            return handler(connection, frame)

        return handle  # type: ignore[return-value]

    def _here(self, link: ServerLink) -> list[Fault]:
        return [fault for fault in self.on if fault.concerns(link.connection.node.number)]


def _check(what: str, highest: int, count: int) -> None:
    if highest >= count:
        raise LocalProtocolError(f"{what}: expected 0 to {count - 1}, found {highest}: it would never act")


class FaultHandle:
    """A fault that is on until it is cleared, or its `with` block ends. The hits are counted."""

    def __init__(self, name: str, fault: Fault, clear: Callable[[], None]) -> None:
        self.name = name
        self._fault = fault
        self._clear = clear

    @property
    def hits(self) -> int:
        """How often it has acted: for what counts bytes, how many."""
        return self._fault.hits

    def clear(self) -> None:
        """Let everything be right again, as far as it can be."""
        self._clear()

    def __enter__(self) -> FaultHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __repr__(self) -> str:
        return f"<fault {self.name}, {self.hits} hits>"
