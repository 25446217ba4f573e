"""Network captures (pcap and pcapng): the byte streams of their TCP connections."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, NamedTuple

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
# Link types by the class that parses their packets. Loopback captures differ between systems.
_LINKS = {
    dpkt.pcap.DLT_NULL: dpkt.loopback.Loopback,
    dpkt.pcap.DLT_LOOP: dpkt.loopback.Loopback,
    dpkt.pcap.DLT_EN10MB: dpkt.ethernet.Ethernet,
    dpkt.pcap.DLT_LINUX_SLL: dpkt.sll.SLL,
    dpkt.pcap.DLT_RAW: dpkt.ip.IP,
}


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


def streams(data: bytes) -> Iterator[tuple[float, Flow, bytes]]:
    """Yield the bytes of every TCP connection in a capture, in order: (time, direction, bytes).

    Raises DcpError if the capture is damaged or of an unknown link type.
    """
    flows: dict[Flow, _Reassembly] = {}
    for time, packet in _packets(data):
        segment = packet.data.data if isinstance(packet.data, dpkt.ip.IP | dpkt.ip6.IP6) else None
        if not isinstance(segment, dpkt.tcp.TCP):
            continue
        flow = Flow(_address(packet.data.src, segment.sport), _address(packet.data.dst, segment.dport))
        # A capture may begin in the middle of a connection: then its first segment counts as the start. A SYN takes one
        # sequence number, and begins a new connection if the port is reused.
        if segment.flags & dpkt.tcp.TH_SYN or flow not in flows:
            flows[flow] = _Reassembly(segment.seq + bool(segment.flags & dpkt.tcp.TH_SYN))
        if arrived := flows[flow].take(segment.seq, bytes(segment.data)):
            yield time, flow, arrived


def _packets(data: bytes) -> Iterator[tuple[float, Any]]:
    """Yield each packet of a capture with its time."""
    try:
        reader = _MAGICS[data[:4]](io.BytesIO(data))
        link = _LINKS.get(reader.datalink())
        if link is None:
            known = ", ".join(str(number) for number in sorted(_LINKS))
            raise DcpError(f"capture: link type {reader.datalink()}: expected one of {known}")
        for time, packet in reader:
            # A raw IP link has no frame around the packet; the others have one with the packet as its data.
            yield time, link(packet) if link is not dpkt.ip.IP else dpkt.Packet(data=dpkt.ip.IP(packet))
    except (dpkt.Error, ValueError) as error:
        raise DcpError(f"capture: damaged or truncated: {error}") from None


def _address(host: bytes, port: int) -> str:
    """Return host and port as text, IPv6 in brackets."""
    # dpkt returns addresses as 4 or 16 bytes.
    address = ip_address(host)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


@dataclass(slots=True)
class _Reassembly:
    """Reassembly of one direction: repeated bytes are dropped, early segments wait for those before them."""

    next: int
    early: dict[int, bytes] = field(default_factory=dict)

    def take(self, sequence: int, data: bytes) -> bytes:
        """Add a segment. Return the bytes that are in order now."""
        if data:
            # Of two segments with the same start, the longer one has everything.
            self.early[sequence] = max(data, self.early.get(sequence, b""), key=len)
        arrived = b""
        # A segment that starts at or before the next byte is ready; the part that was seen before is cut off.
        while ready := [start for start in self.early if self._distance(start) <= 0]:
            for start in ready:
                segment = self.early.pop(start)[-self._distance(start) :]
                arrived += segment
                self.next = (self.next + len(segment)) & 0xFFFF_FFFF
        return arrived

    def _distance(self, sequence: int) -> int:
        """Return how far a sequence number is ahead of the next expected one. Numbers wrap at 32 bits."""
        return (sequence - self.next + 0x8000_0000) % 0x1_0000_0000 - 0x8000_0000
