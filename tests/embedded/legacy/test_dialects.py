"""Clusters that speak the predecessors of DCP, on real sockets."""

from __future__ import annotations

import re
import socket

import pytest

from dcp.embedded.cluster import Cluster
from dcp.errors import LocalProtocolError
from dcp.wire.frame import Frame, decode, encode
from dcp.wire.layout import Magic
from dcp.wire.tap import TapConnectFlag
from tests.embedded.raw_client import keys


def exchange(cluster: Cluster, *frames: bytes, ends_with: bytes = b"") -> bytes:
    """Return all bytes until the node closes the connection, or has sent `ends_with`."""
    host, _, port = cluster.addresses[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(b"".join(frames))
        found = b""
        while (piece := sock.recv(1 << 16)) and not (ends_with and (found + piece).endswith(ends_with)):
            found += piece
        return found + piece


@pytest.mark.parametrize("options", [{"server_version": "4.6"}, {"dialect": "tap"}])
def test_a_dump_of_everything(options: dict[str, str]) -> None:
    with Cluster(
        vbuckets=4, server_version=options.get("server_version", "8.0"), dialect=options.get("dialect", "dcp")
    ) as cluster:
        cluster.load(2000, value_size=50)
        connect = Frame("tap_connect", Magic.REQUEST, fields={"flags": int(TapConnectFlag.DUMP)})
        frames = decode(exchange(cluster, encode(connect, "tap")), "tap")
        assert {frame.key: frame.value for frame in frames if frame.name == "mutation"} == {
            key: truth.value for key, truth in cluster.truth().items()
        }


@pytest.mark.parametrize("draft", ["upr1", "upr2"])
def test_a_stream_of_a_draft(draft: str) -> None:
    with Cluster(vbuckets=1, dialect=draft) as cluster:
        cluster.load(500)
        numbers = {"start_seqno": 0, "end_seqno": 500, "vbuuid": 0, "high_seqno": 0}
        fields = numbers if draft == "upr1" else {"flags": 0} | numbers
        end = Frame("stream_end_ok", Magic.RESPONSE, 3) if draft == "upr1" else None
        end = end or Frame("stream_end", Magic.REQUEST, 3, fields={"reason": 0})
        request = encode(Frame("stream_request", Magic.REQUEST, 3, fields=fields), draft)
        received = exchange(cluster, request, ends_with=encode(end, draft))
        assert sorted(keys(decode(received, draft))) == sorted(cluster.truth())


def test_another_dialect_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match=re.escape("dialect: expected one of")):
        Cluster(dialect="upr3")
