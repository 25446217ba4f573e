"""Connections as such: pipelined requests, noise, unknown commands."""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.embedded.link import Link
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from tests.embedded.raw_client import CommandClient, DcpClient, make_bucket

STORE = {"flags": 0, "expiry": 0}


def encoded(name: str, **parts: object) -> bytes:
    return dcp.encode(dcp.Frame(name, Magic.REQUEST, **parts))  # type: ignore[arg-type]


def test_responses_wait_until_earlier_ones_are_sent() -> None:
    client = CommandClient()
    client.request("set", key=b"k", fields=STORE, value=bytes(1 << 20))
    wanted = 50
    client.connection.receive(encoded("get", key=b"k") * wanted, 0.0)
    found, most = 0, 0
    while sent := b"".join(map(bytes, client.connection.send(0.0))):
        found += len(dcp.decode(sent))
        most = max(most, len(sent))
    assert found == wanted
    # 4 MiB of responses may be queued, and one more is added before the node stops.
    assert most < 6 << 20


def test_requests_that_arrive_while_responses_wait_are_answered_later() -> None:
    client = CommandClient()
    client.request("set", key=b"k", fields=STORE, value=bytes(5 << 20))
    client.connection.receive(encoded("get", key=b"k") * 2, 0.0)
    assert client.connection.backlogged
    client.connection.receive(encoded("version"), 0.0)
    names = []
    while sent := b"".join(map(bytes, client.connection.send(0.0))):
        names += [frame.name for frame in dcp.decode(sent)]
    assert names == ["get", "get", "version"]
    assert not client.connection.backlogged


def test_a_client_that_reads_no_responses_is_not_read_until_it_does() -> None:
    client = CommandClient()
    client.request("set", key=b"k", fields=STORE, value=bytes(3 << 20))
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as theirs,
        listener.accept()[0] as ours,
    ):
        # Less than one response.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        link = Link(ours, client.connection)
        assert link.events == selectors.EVENT_READ
        # One response may wait, and its client may send requests. Two are more than 4 MiB.
        for requests, events in ((1, selectors.EVENT_WRITE | selectors.EVENT_READ), (3, selectors.EVENT_WRITE)):
            theirs.setblocking(True)
            theirs.sendall(encoded("get", key=b"k") * requests)
            link.read(0.0)
            while link.write(0.0):
                pass
            assert link.events == events
            # The node's thread waits for an event, and does not try again at once.
            assert not link.write(0.0)
            theirs.setblocking(False)
            while client.connection.backlogged or link.events != selectors.EVENT_READ:
                link.write(0.0)
                with suppress(BlockingIOError):
                    while theirs.recv(1 << 20):
                        pass
            assert not link.write(0.0)


def test_a_connection_whose_socket_is_gone_handles_no_request() -> None:
    client = CommandClient()
    client.connection.closed()
    client.connection.receive(encoded("set", key=b"k", fields=STORE), 0.0)
    assert client.connection.send(0.0) == []
    assert not [*client.bucket.active(0)]


def test_a_connection_is_closed_once() -> None:
    consumer, calls = DcpClient(make_bucket()), list[str]()
    consumer.stream()
    consumer.connection.on_close.append(lambda: calls.append("closed"))
    consumer.connection.closed()
    consumer.connection.closed()
    assert calls == ["closed"]
    assert not consumer.connection.sources


def test_what_is_due_first_is_done_first() -> None:
    client = CommandClient()
    for second in (0, 5):
        client.now = second
        assert client.request_all("seqno_persistence", fields={"seqno": 99}) == []
    assert client.connection.due() == 30.0


@pytest.mark.parametrize("opcode", [0x00, 0x0B, 0x53])
def test_a_request_in_the_form_of_a_server_is_refused(opcode: int) -> None:
    (answer,) = CommandClient().exchange(bytes([Magic.SERVER_REQUEST, opcode]) + bytes(22))
    assert (answer.magic, answer.status) == (Magic.SERVER_RESPONSE, Status.UNKNOWN_COMMAND)


@given(st.binary(max_size=200))
def test_noise_is_answered_or_closes_the_connection(data: bytes) -> None:
    client = CommandClient()
    for answer in client.exchange(data):
        assert answer.kind.answers


@given(opcode=st.integers(0, 255), body=st.binary(max_size=60), key=st.integers(0, 60), extras=st.integers(0, 60))
def test_no_request_crashes_the_node(opcode: int, body: bytes, key: int, extras: int) -> None:
    client = CommandClient()
    client.hello()
    header = bytes([Magic.REQUEST, opcode]) + key.to_bytes(2, "big") + bytes([extras, 0, 0, 0])
    client.exchange(header + len(body).to_bytes(4, "big") + bytes(12) + body)


@pytest.mark.parametrize("opcode", [0x99, 0xEE])
def test_an_unknown_command_is_refused(opcode: int) -> None:
    (answer,) = CommandClient().exchange(bytes([Magic.REQUEST, opcode]) + bytes(22))
    assert (answer.name, answer.status) == ("unknown", Status.UNKNOWN_COMMAND)
