"""A name server on a local socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest


@contextmanager
def name_server(monkeypatch: pytest.MonkeyPatch, records: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Answer questions of this process about SRV records, by name, with a dot at its end. Yield the names asked for."""
    asked: list[str] = []

    def serve() -> None:
        while True:
            data, peer = door.recvfrom(4096)
            if not data:
                return
            query = dns.message.from_wire(data)
            answer, name = dns.message.make_response(query), query.question[0].name.to_text()
            asked.append(name)
            if name in records:
                answer.answer.append(dns.rrset.from_text_list(name, 60, "IN", "SRV", records[name]))
            else:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            door.sendto(answer.to_wire(), peer)

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.bind(("127.0.0.1", 0))
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], door.getsockname()[1]
        monkeypatch.setattr(dns.resolver, "default_resolver", resolver)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bell:
                bell.sendto(b"", door.getsockname())
            thread.join()
