"""Seeds from DNS SRV records, answered by a name server of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest

from dcp.client.connection_string import HostPort
from dcp.client.transport import lookup_srv

NAME = "_couchbases._tcp.cloud.example."
RECORDS = ["20 0 11207 late.example.", "10 1 11207 light.example.", "10 9 11208 heavy.example."]


def serve(door: socket.socket) -> None:
    """Answer queries until an empty message arrives."""
    while True:
        data, peer = door.recvfrom(4096)
        if not data:
            return
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        if query.question[0].name.to_text() == NAME:
            answer.answer.append(dns.rrset.from_text_list(NAME, 60, "IN", "SRV", RECORDS))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        door.sendto(answer.to_wire(), peer)


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.bind(("127.0.0.1", 0))
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], door.getsockname()[1]
        monkeypatch.setattr(dns.resolver, "default_resolver", resolver)
        thread = threading.Thread(target=serve, args=(door,))
        thread.start()
        yield
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bell:
            bell.sendto(b"", door.getsockname())
        thread.join()


@pytest.mark.usefixtures("name_server")
def test_records_are_tried_by_priority_then_by_weight() -> None:
    expected = [("heavy.example", 11208), ("light.example", 11207), ("late.example", 11207)]
    assert lookup_srv(NAME.rstrip("."), 5.0) == tuple(HostPort(host, port) for host, port in expected)


@pytest.mark.usefixtures("name_server")
def test_a_name_without_records_has_none() -> None:
    assert lookup_srv("_couchbase._tcp.single.example", 5.0) == ()
