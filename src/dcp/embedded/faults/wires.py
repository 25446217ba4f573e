"""Faults of the network, and of a node as a whole: they see bytes, or nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dcp.embedded.faults.fault import FOR_EVER, Fault, Parts, number, option, positive
from dcp.wire.dcp import DCP
from dcp.wire.layout import HEADER_STRUCT, Magic
from dcp.wire.memcached import MAX_FRAME

if TYPE_CHECKING:
    from dcp.embedded.link import ServerLink

# How many pieces a slow link sends in a second.
_PIECES = 50


@dataclass(eq=False)
class PauseFault(Fault):
    """A node stands still, and goes on afterwards as if nothing had been."""

    def rest(self, link: ServerLink, now: float) -> float:
        self.hits += 1
        return FOR_EVER


@dataclass(eq=False)
class PartitionFault(PauseFault):
    """A node cannot be reached, without a word; when it can be again, its connections are gone."""

    def cleared(self, links: Sequence[ServerLink]) -> None:
        for link in links:
            link.gone = link.gone or self.node in (None, link.connection.node.number)


@dataclass(eq=False)
class SlowFault(Fault):
    """A node sends slowly."""

    rate: int = option(positive, "bytes in a second, at least 1", 100_000)
    _next: WeakKeyDictionary[ServerLink, float] = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def rest(self, link: ServerLink, now: float) -> float:
        return self._next.get(link, 0.0)

    def room(self, link: ServerLink, now: float) -> int | None:
        self.hits += 1
        size = min(link.pending, max(1, self.rate // _PIECES))
        self._next[link] = now + size / self.rate
        return size


@dataclass(eq=False)
class CutFault(Fault):
    """A connection breaks when the node has sent, or received, so many bytes on it."""

    sent: int | None = option(number, "after the node has sent so many bytes; without any of these, at once", None)
    streamed: int | None = option(number, "after it has sent so many bytes since a stream was asked for", None)
    received_bytes: int | None = option(number, "after the node has received so many bytes", None)
    times: int | None = option(positive, "how many connections, at least 1", 1)
    _begun: WeakKeyDictionary[ServerLink, int] = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.sent is None and self.streamed is None and self.received_bytes is None:
            self.sent = 0

    def room(self, link: ServerLink, now: float) -> int | None:
        last = self._last(link)
        if last is None:
            return None
        if link.sent >= last:
            self.hits += 1
            link.gone = True
        return max(0, last - link.sent)

    def _last(self, link: ServerLink) -> int | None:
        """How many bytes of the connection the client gets to see."""
        if self.streamed is None or not (link in self._begun or _has_streams(link)):
            return self.sent
        end = self._begun.setdefault(link, link.sent) + self.streamed
        return end if self.sent is None else min(end, self.sent)

    def received(self, link: ServerLink, data: bytes) -> bytes:
        if self.received_bytes is None or link.received < self.received_bytes:
            return data
        self.hits += 1
        link.gone = True
        return data[: max(0, len(data) - (link.received - self.received_bytes))]


@dataclass(eq=False)
class SplitFault(Fault):
    """Every write is a few bytes, whatever the frames are."""

    size: int = option(positive, "bytes of a write, at least 1", 1)

    def room(self, link: ServerLink, now: float) -> int | None:
        self.hits += link.pending > 0
        return self.size


@dataclass(eq=False)
class GarbageFault(Fault):
    """Bytes that are no frame, in front of what a node sends on a connection with streams."""

    size: int = option(positive, "how many bytes, at least 1", 32)
    times: int | None = option(positive, "how often, at least once", 1)

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        if not _has_streams(link):
            return parts
        self.hits += 1
        noise = bytearray(self.random.randbytes(self.size))
        noise[0] = next(byte for byte in iter(lambda: self.random.getrandbits(8), None) if byte not in set(Magic))
        return [bytes(noise), *parts]


@dataclass(eq=False)
class OversizeFault(Fault):
    """A frame that says it is larger than any may be."""

    size: int = option(number, "bytes of its body", MAX_FRAME + 1)
    times: int | None = option(positive, "how often, at least once", 1)

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        if not _has_streams(link):
            return parts
        self.hits += 1
        opcode = DCP.by_name["mutation"].opcode
        return [HEADER_STRUCT.pack(Magic.REQUEST, opcode, 0, 0, 0, 0, min(self.size, 0xFFFF_FFFF), 0, 0), *parts]


def _has_streams(link: ServerLink) -> bool:
    """Or had one: a short stream is over when its bytes are looked at."""
    return bool(link.connection.sources or link.connection.out.items)


WIRES: dict[str, type[Fault]] = {
    "pause": PauseFault,
    "partition": PartitionFault,
    "slow": SlowFault,
    "cut": CutFault,
    "split": SplitFault,
    "garbage": GarbageFault,
    "oversize": OversizeFault,
}
