"""Captures for the tests of `dcp inspect`: packets of the public one with another link layer, or without a segment.

Nothing here uses the package under test.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import dpkt

PUBLIC = Path(__file__).parents[1] / "captures" / "couchbase-xattr.pcapng"
ETHERNET, BSD_RAW, RAW, COOKED_2 = 1, 12, 101, 276
# Port of the server that sends the stream of the public capture, and of the client that receives it.
SERVER, CLIENT = 12000, 50787


class Packet(NamedTuple):
    """IP packet with its time in seconds."""

    time: float
    data: bytes

    @property
    def segment(self) -> dpkt.tcp.TCP:
        """TCP segment of the packet."""
        return dpkt.ip.IP(self.data).data


def public() -> list[Packet]:
    """Return the IP packets of the public capture, which has the link type of BSD's loopback."""
    with PUBLIC.open("rb") as file:
        return [Packet(float(time), packet[4:]) for time, packet in dpkt.pcapng.Reader(file)]


def linked(data: bytes, link: int) -> bytes:
    """Return an IP packet with the header of a link type before it."""
    # https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html: protocol, zeros, interface, ARPHRD, type, address.
    headers = {COOKED_2: struct.pack(">HHIHBB8s", 0x0800, 0, 1, 772, 0, 6, bytes(8)), RAW: b"", BSD_RAW: b""}
    headers[ETHERNET] = bytes(12) + b"\x08\x00"
    return headers[link] + data


def pcap(packets: Iterable[Packet], link: int = RAW) -> bytes:
    """Return a pcap file of little-endian numbers and times in microseconds."""
    return struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, link) + b"".join(pcap_records(packets, link))


def pcap_records(packets: Iterable[Packet], link: int = RAW) -> Iterator[bytes]:
    """Yield each packet as a record of a pcap file."""
    for packet in packets:
        data = linked(packet.data, link)
        micros = round(packet.time * 1e6)
        yield struct.pack("<IIII", micros // 10**6, micros % 10**6, len(data), len(data)) + data


def pcapng(packets: Iterable[Packet], link: int = RAW) -> bytes:
    """Return a pcapng file of little-endian numbers and times in microseconds."""
    return pcapng_header(link) + b"".join(pcapng_records(packets, link))


def pcapng_header(link: int = RAW) -> bytes:
    """Return the section header and the interface of a pcapng file."""
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    return section + struct.pack("<IIHHII", 1, 20, link, 0, 262_144, 20)


def pcapng_records(packets: Iterable[Packet], link: int = RAW) -> Iterator[bytes]:
    """Yield each packet as a block of a pcapng file."""
    for packet in packets:
        data = linked(packet.data, link)
        padded = data + bytes(-len(data) % 4)
        size, micros = 32 + len(padded), round(packet.time * 1e6)
        yield (
            struct.pack("<IIIIIII", 6, size, 0, micros >> 32, micros & 0xFFFF_FFFF, len(data), len(data))
            + padded
            + struct.pack("<I", size)
        )


def tcp(payload: bytes, sequence: int, *, ack: int = 0, source: int = SERVER, target: int = CLIENT) -> Packet:
    """Return a packet with a TCP segment over IPv4. Its time is 1 s after the epoch."""
    flags = dpkt.tcp.TH_ACK
    segment = dpkt.tcp.TCP(sport=source, dport=target, seq=sequence, ack=ack, flags=flags, data=payload)
    packet = dpkt.ip.IP(src=b"\x7f\0\0\1", dst=b"\x7f\0\0\1", p=6, data=segment, len=40 + len(payload))
    return Packet(1.0, bytes(packet))
