"""Network captures (pcap and pcapng): the byte streams of their TCP connections."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, NamedTuple, Protocol

import dpkt

from dcp.errors import DcpError

# First bytes of a file: pcapng, and pcap in both byte orders with times in micro- or nanoseconds.
_MAGICS = {
    b"\n\r\r\n": dpkt.pcapng.Reader,
    b"\xa1\xb2\xc3\xd4": dpkt.pcap.Reader,
    b"\xd4\xc3\xb2\xa1": dpkt.pcap.Reader,
    b"\xa1\xb2\x3c\x4d": dpkt.pcap.Reader,
    b"\x4d\x3c\xb2\xa1": dpkt.pcap.Reader,
}
MAGIC_SIZE = 4


def _raw_ip(packet: bytes) -> dpkt.Packet:
    """Return a packet that has no link layer: its first four bits are the version of IP."""
    return dpkt.Packet(data=(dpkt.ip6.IP6 if packet[:1] >= b"\x60" else dpkt.ip.IP)(packet))


# Link types by what parses their packets. Loopback captures differ between systems. Files should have 101 for raw IP,
# but BSD's number for it, 12, is found as well (https://www.tcpdump.org/linktypes.html).
_LINKS = {
    dpkt.pcap.DLT_NULL: dpkt.loopback.Loopback,
    dpkt.pcap.DLT_LOOP: dpkt.loopback.Loopback,
    dpkt.pcap.DLT_EN10MB: dpkt.ethernet.Ethernet,
    dpkt.pcap.DLT_LINUX_SLL: dpkt.sll.SLL,
    dpkt.pcap.DLT_LINUX_SLL2: dpkt.sll2.SLL2,
    12: _raw_ip,
    101: _raw_ip,
}
# Largest record that is read, so that a damaged length does not fill the memory. tcpdump cuts packets at 256 KiB.
_MAX_RECORD = 64 << 20
# Bytes of a direction that wait for those before them. In a capture of one direction nothing acknowledges them, and
# after this many the ones before are not expected any more. The windows of TCP are rarely larger.
_MAX_EARLY = 8 << 20
# Directions that are remembered. The one that was silent for longest is forgotten first.
_MAX_FLOWS = 16_384


class Source(Protocol):
    """File or pipe from which a capture is read."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next `size` bytes; fewer only at the end."""
        ...


class Flow(NamedTuple):
    """One direction of a TCP connection."""

    source: str
    target: str

    @property
    def connection(self) -> frozenset[str]:
        """Key of the connection: the same for both directions."""
        return frozenset(self)


def is_capture(data: bytes) -> bool:
    """Return whether a file is a pcap or a pcapng capture, by its first bytes."""
    return data[:4] in _MAGICS


class Segment(NamedTuple):
    """Next bytes of one direction.

    time: seconds since 1970 of the packet with which they were complete.
    missing: number of bytes before them that the capture lacks.
    last: True if the direction ends here, or restarts with a new connection.
    """

    time: float
    flow: Flow
    data: bytes
    missing: int = 0
    last: bool = False


def streams(source: Source) -> Iterator[Segment]:
    """Yield the bytes of every TCP connection in a capture, each as soon as it was read and those before it are known.

    Bytes are missing if the receiver acknowledged them, or if too many that follow them have waited. Raises DcpError
    if the capture is damaged or of an unknown link type.
    """
    flows: OrderedDict[Flow, _Reassembly] = OrderedDict()
    time = 0.0
    for time, packet in _packets(source):
        segment = packet.data.data if isinstance(packet.data, dpkt.ip.IP | dpkt.ip6.IP6) else None
        if not isinstance(segment, dpkt.tcp.TCP):
            continue
        flow = Flow(_address(packet.data.src, segment.sport), _address(packet.data.dst, segment.dport))
        starts = bool(segment.flags & dpkt.tcp.TH_SYN)
        if starts and flow in flows:
            yield from flows.pop(flow).rest(time, flow)
        # A capture may begin in the middle of a connection: then its first segment counts as the start. A SYN takes one
        # sequence number, and begins a new connection if the port is reused.
        if flow not in flows:
            flows[flow] = _Reassembly((segment.seq + starts) & 0xFFFF_FFFF)
        flows.move_to_end(flow)
        yield from flows[flow].take(time, flow, segment.seq, bytes(segment.data))
        if segment.flags & dpkt.tcp.TH_ACK and (opposite := Flow(flow.target, flow.source)) in flows:
            yield from flows[opposite].acknowledge(time, opposite, segment.ack)
        if segment.flags & dpkt.tcp.TH_FIN:
            yield from flows[flow].finish(time, flow, segment.seq + len(segment.data))
        if segment.flags & dpkt.tcp.TH_RST:
            yield from flows.pop(flow).rest(time, flow)
        if len(flows) > _MAX_FLOWS:
            silent, waiting = flows.popitem(last=False)
            yield from waiting.rest(time, silent)
    for flow, waiting in flows.items():
        yield from waiting.rest(time, flow)


class _Bounded:
    """Source whose records are of a limited size."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raises ValueError for a size that no packet has."""
        if not 0 <= size <= _MAX_RECORD:
            raise ValueError(f"a record of {size} bytes")
        return self._source.read(size)


def _packets(source: Source) -> Iterator[tuple[float, Any]]:
    """Yield each packet of a capture with its time."""
    try:
        magic = source.read(MAGIC_SIZE)
        reader = _MAGICS[magic](_Bounded(Rewound(magic, source)))
        link = _LINKS.get(reader.datalink())
        if link is None:
            known = ", ".join(str(number) for number in sorted(_LINKS))
            raise DcpError(f"capture: link type {reader.datalink()}: expected one of {known}")
        for time, packet in reader:
            # Times in nanoseconds are read as Decimal.
            yield float(time), link(packet)
    except (dpkt.Error, ValueError) as error:
        raise DcpError(f"capture: damaged or truncated: {error}") from None


class Rewound:
    """Source of which some bytes were read already, and are put back."""

    def __init__(self, head: bytes, source: Source) -> None:
        self._head, self._source = head, source

    def read(self, size: int = -1, /) -> bytes:
        """Return the next `size` bytes, or all."""
        if not self._head:
            return self._source.read(size)
        if size < 0:
            taken, self._head = self._head, b""
            return taken + self._source.read()
        taken, self._head = self._head[:size], self._head[size:]
        return taken + self._source.read(size - len(taken))


def _address(host: bytes, port: int) -> str:
    """Return host and port as text, IPv6 in brackets."""
    # dpkt returns addresses as 4 or 16 bytes.
    address = ip_address(host)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


@dataclass(slots=True)
class _Reassembly:
    """Reassembly of one direction: repeated bytes are dropped, early segments wait for those before them.

    next: sequence number of the next byte.
    acknowledged: sequence number up to which the receiver has everything.
    over: True once the sender has sent everything. Repeated segments may still follow.
    """

    next: int
    acknowledged: int = -1
    over: bool = False
    early: dict[int, bytes] = field(default_factory=dict)
    waiting: int = 0

    def __post_init__(self) -> None:
        self.acknowledged = self.next

    def take(self, time: float, flow: Flow, sequence: int, data: bytes) -> Iterator[Segment]:
        """Add a segment. Yield the bytes that are in order now."""
        known = self.early.get(sequence, b"")
        # Of two segments with the same start, the longer one has everything.
        if len(data) > len(known):
            self.early[sequence] = data
            self.waiting += len(data) - len(known)
        if arrived := self._in_order():
            yield Segment(time, flow, arrived)
        yield from self._after_gaps(time, flow)

    def acknowledge(self, time: float, flow: Flow, sequence: int) -> Iterator[Segment]:
        """Take an acknowledgement of the receiver. Yield the bytes after those that are missing by it."""
        if self._distance(sequence) > self._distance(self.acknowledged):
            self.acknowledged = sequence
            yield from self._after_gaps(time, flow)

    def finish(self, time: float, flow: Flow, sequence: int) -> Iterator[Segment]:
        """Take the sender's FIN. End the direction, unless bytes before it have yet to arrive."""
        if not self.over and self._distance(sequence) == 0:
            self.over = True
            yield Segment(time, flow, b"", last=True)

    def rest(self, time: float, flow: Flow) -> Iterator[Segment]:
        """End the direction: yield the bytes that still wait, and the gap after them if more were acknowledged."""
        if self.over:
            return
        yield from self._after_gaps(time, flow, all_of_them=True)
        # A FIN is acknowledged like one byte, and may be missing itself.
        missing = self._distance(self.acknowledged)
        yield Segment(time, flow, b"", missing if missing > 1 else 0, last=True)

    def _after_gaps(self, time: float, flow: Flow, *, all_of_them: bool = False) -> Iterator[Segment]:
        """Yield the bytes after each gap that will not be filled any more."""
        # A receiver that acknowledged a byte has it: the capture missed it.
        while self.early and (all_of_them or self.waiting > _MAX_EARLY or self._distance(self.acknowledged) > 0):
            first = min(self.early, key=self._distance)
            missing, self.next = self._distance(first), first
            yield Segment(time, flow, self._in_order(), missing)

    def _in_order(self) -> bytes:
        """Remove and return the bytes without a gap before them."""
        arrived = []
        # A segment that starts at or before the next byte is ready; the part that was seen before is cut off.
        while ready := [start for start in self.early if self._distance(start) <= 0]:
            for start in ready:
                data = self.early.pop(start)
                self.waiting -= len(data)
                segment = data[-self._distance(start) :]
                arrived.append(segment)
                self.next = (self.next + len(segment)) & 0xFFFF_FFFF
        return b"".join(arrived)

    def _distance(self, sequence: int) -> int:
        """Return how far a sequence number is ahead of the next expected one. Numbers wrap at 32 bits."""
        return (sequence - self.next + 0x8000_0000) % 0x1_0000_0000 - 0x8000_0000
