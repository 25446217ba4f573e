"""Faults of the network and of whole nodes: they act on bytes, whatever frames those are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dcp.embedded.faults.fault import FOREVER, Fault, Parts, option, positive, positive_size
from dcp.value_grammar import size as byte_count
from dcp.wire.dcp import DCP
from dcp.wire.layout import HEADER_STRUCT, Magic
from dcp.wire.memcached import MAX_FRAME

if TYPE_CHECKING:
    from dcp.embedded.link import ServerLink

# Writes per second of a slow link.
_WRITES_PER_SECOND = 50


@dataclass(eq=False)
class PauseFault(Fault):
    """Suspends a node; afterwards it continues as if nothing had happened.

    Clients see open connections on which nothing arrives, not even no-ops. New connections are accepted, and not
    answered.
    """

    def paused_until(self, link: ServerLink, now: float) -> float:
        self.hits += 1
        return FOREVER


@dataclass(eq=False)
class PartitionFault(PauseFault):
    """Drops all packets of a node; its connections are gone when the network is back.

    Clients see what they see of a pause, and then the end of all connections.
    """

    def cleared(self, links: Sequence[ServerLink]) -> None:
        for link in links:
            link.gone = link.gone or self.node in (None, link.connection.node.number)


@dataclass(eq=False)
class SlowFault(Fault):
    """Limits the rate at which a node sends.

    Clients see data and no-ops arrive late, at `rate` bytes per second on each connection.
    """

    rate: int = option(positive_size, "bytes per second", 100_000)
    # Time of the next write of each link.
    _next: WeakKeyDictionary[ServerLink, float] = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def paused_until(self, link: ServerLink, now: float) -> float:
        return self._next.get(link, 0.0)

    def room(self, link: ServerLink, now: float) -> int | None:
        self.hits += 1
        count = min(link.pending, max(1, self.rate // _WRITES_PER_SECOND))
        self._next[link] = now + count / self.rate
        return count


@dataclass(eq=False)
class CutFault(Fault):
    """Breaks a connection after a number of bytes.

    Clients see a connection end, in the middle of a frame if the number of bytes is reached there.
    """

    sent: int | None = option(byte_count, "bytes that the node has sent; 0 if no option is given", None)
    streamed: int | None = option(byte_count, "bytes that it has sent since a stream was requested", None)
    received_bytes: int | None = option(byte_count, "bytes that the node has received", None)
    times: int | None = option(positive, "how many connections", 1)
    # Bytes that each link had sent when its first stream was requested.
    _begun: WeakKeyDictionary[ServerLink, int] = field(default_factory=WeakKeyDictionary, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.sent is None and self.streamed is None and self.received_bytes is None:
            self.sent = 0

    def room(self, link: ServerLink, now: float) -> int | None:
        last = self._last_byte(link)
        if last is None:
            return None
        if link.sent >= last:
            self.hits += 1
            link.gone = True
        return max(0, last - link.sent)

    def _last_byte(self, link: ServerLink) -> int | None:
        """Return the number of bytes of the connection that the client receives; None for all."""
        if self.streamed is None or not (link in self._begun or _has_streams(link)):
            return self.sent
        end = self._begun.setdefault(link, link.sent) + self.streamed
        return end if self.sent is None else min(end, self.sent)

    def received(self, link: ServerLink, data: bytes) -> bytes:
        if self.received_bytes is None or link.received < self.received_bytes:
            return data
        self.hits += 1
        link.gone = True
        # link.received counts this data already.
        return data[: max(0, len(data) - (link.received - self.received_bytes))]


@dataclass(eq=False)
class SplitFault(Fault):
    """Sends a few bytes at a time, whatever the frames are.

    Clients see all frames, in pieces of `size` bytes.
    """

    size: int = option(positive_size, "bytes of a write", 1)

    def room(self, link: ServerLink, now: float) -> int | None:
        self.hits += link.pending > 0
        return self.size


@dataclass(eq=False)
class GarbageFault(Fault):
    """Sends bytes that are no frame before the frames of a connection with streams.

    Clients see a byte that is no magic where a frame begins, on a connection that cannot be read any further.
    """

    size: int = option(positive_size, "number of bytes", 32)
    times: int | None = option(positive, "how often", 1)

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        if not _has_streams(link):
            return parts
        self.hits += 1
        noise = bytearray(self.random.randbytes(self.size))
        # Any first byte but a magic, so that no client can take the noise for a frame.
        noise[0] = next(byte for byte in iter(lambda: self.random.getrandbits(8), None) if byte not in set(Magic))
        return [bytes(noise), *parts]


@dataclass(eq=False)
class OversizeFault(Fault):
    """Sends the header of a frame that is larger than any may be.

    Clients see a length that no frame has. Reading on would take memory without limit.
    """

    size: int = option(byte_count, "bytes of its body, as the header says", MAX_FRAME + 1)
    times: int | None = option(positive, "how often", 1)

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        if not _has_streams(link):
            return parts
        self.hits += 1
        opcode = DCP.by_name["mutation"].opcode
        return [HEADER_STRUCT.pack(Magic.REQUEST, opcode, 0, 0, 0, 0, min(self.size, 0xFFFF_FFFF), 0, 0), *parts]


def _has_streams(link: ServerLink) -> bool:
    """Return whether a link has streams, or had one: a short stream may be over before its bytes are sent."""
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
