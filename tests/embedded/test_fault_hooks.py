"""Faults at one link of a node, of which the test has the other end and the clock; and faults of its streams."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dcp.embedded.faults import Faults
from dcp.embedded.faults.fault import FOREVER, Fault, changed_options
from dcp.embedded.link import ServerLink
from dcp.errors import UsageError
from dcp.wire.frame import Frame, decode, encode
from dcp.wire.layout import HEADER_STRUCT, Magic
from dcp.wire.memcached import MAX_FRAME, Feature
from tests.embedded.raw_client import (
    CommandClient,
    DcpClient,
    RawClient,
    filled_bucket,
    make_bucket,
    summaries,
)
from tests.embedded.sockets import TIMEOUT

STORE = {"flags": 0, "expiry": 0}


def started(faults: Faults, name: str, **options: Any) -> Fault:
    """Start a fault in a cluster of 2 nodes and 8 vbuckets."""
    return faults.add(name, options, nodes=2, vbuckets=8)


class Wire:
    """Link of a client's connection, and the socket at its other end."""

    def __init__(self, client: RawClient, faults: Faults, ours: socket.socket, theirs: socket.socket) -> None:
        self.link = ServerLink(ours, client.connection, faults)
        self.socket = theirs
        self._received = 0

    def send(self, *frames: Frame) -> None:
        """Send frames at once, and let the node read them."""
        data = b"".join(map(encode, frames))
        self.socket.sendall(data)
        end = self.link.received + len(data)
        while self.link.received < end:
            self.link.read(0.0)

    def receive(self, now: float = 0.0) -> bytes:
        """Let the node write all that it may, and return that."""
        before = -1
        while self.link.sent != before:
            before = self.link.sent
            self.link.write(now)
        count, self._received = self.link.sent - self._received, self.link.sent
        return self.socket.recv(count, socket.MSG_WAITALL) if count else b""


@contextmanager
def wire(client: RawClient, faults: Faults) -> Iterator[Wire]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), TIMEOUT) as theirs,
        listener.accept()[0] as ours,
    ):
        yield Wire(client, faults, ours, theirs)


VERSION = Frame("version", Magic.REQUEST)


# The network.


def test_a_slow_link_sends_a_part_of_its_rate_and_waits() -> None:
    faults = Faults()
    fault = started(faults, "slow", rate=1000)
    with wire(CommandClient(), faults) as link:
        link.send(VERSION)
        (answer,) = CommandClient().request_all("version", opaque=0)
        whole = encode(answer)
        # 50 writes in a second, of which the last one has less.
        assert len(whole) == 45
        assert link.receive() == whole[:20]
        assert (link.link.due(), link.receive(0.01)) == (0.02, b"")
        # It is read meanwhile.
        assert link.link.events == selectors.EVENT_READ
        assert link.receive(0.02) == whole[20:40]
        assert link.receive(0.04) == whole[40:]
        assert (faults.paused_until(link.link, 0.04), fault.hits) == (0.045, 3)


def test_a_slow_link_is_asked_as_soon_as_its_connection_is() -> None:
    faults = Faults()
    started(faults, "slow", rate=1)
    consumer = DcpClient(make_bucket(), controls={"set_noop_interval": "0.5"})
    with wire(consumer, faults) as link:
        link.send(VERSION)
        assert len(link.receive()) == 1
        assert link.link.due() == 0.5


def test_the_slowest_of_several_faults_counts() -> None:
    faults = Faults()
    started(faults, "slow", rate=1000)
    started(faults, "slow", rate=10)
    with wire(CommandClient(), faults) as link:
        link.send(VERSION)
        assert len(link.receive()) == 1
        assert link.link.due() == 0.1


def test_a_pause_acts_each_time_that_a_link_would_write() -> None:
    faults = Faults()
    fault = started(faults, "pause")
    with wire(CommandClient(), faults) as link:
        assert (link.receive(), fault.hits) == (b"", 1)
        assert (link.link.events, link.link.due()) == (0, None)
        assert faults.paused_until(link.link, 0.0) == FOREVER


@pytest.mark.parametrize(("sent", "streamed", "expected"), [(400, 1000, 400), (1000, 50, None), (None, 50, None)])
def test_a_connection_is_cut_at_the_first_of_its_limits(sent: int | None, streamed: int, expected: int | None) -> None:
    faults = Faults()
    consumer = DcpClient(filled_bucket(50)[0])
    started(faults, "cut", sent=sent, streamed=streamed)
    with wire(consumer, faults) as link:
        link.send(VERSION)
        before = len(link.receive())
        consumer.send_stream_request()
        total = before + len(link.receive())
        assert total == (expected or before + streamed)
        assert link.link.gone


@pytest.mark.parametrize("limit", ["within the second request", "at its end", "beyond it"])
def test_a_node_receives_no_more_than_a_fault_lets_it(limit: str) -> None:
    requests = [Frame("set", Magic.REQUEST, key=b"\0%d" % n, fields=STORE) for n in range(2)]
    size = len(encode(requests[0]))
    received = {"within the second request": size + 5, "at its end": 2 * size, "beyond it": 2 * size + 1}[limit]
    faults, client = Faults(), CommandClient(make_bucket())
    fault = started(faults, "cut", received_bytes=received)
    client.hello()
    with wire(client, faults) as link:
        link.send(*requests)
        assert [item.key for item in client.bucket.active(0)] == [b"0", b"1"][: 1 if limit.startswith("within") else 2]
        cut = limit != "beyond it"
        assert (link.link.gone, fault.hits) == (cut, cut)


def test_noise_begins_with_no_magic() -> None:
    faults = Faults(seed=1)
    fault = started(faults, "garbage", size=3, times=None)
    consumer = DcpClient(make_bucket())
    with wire(consumer, faults) as link:
        assert fault.sending(link.link, [b"before any stream"]) == [b"before any stream"]
        consumer.send_stream_request()
        sent = [fault.sending(link.link, [b"frame"]) for _ in range(300)]
    noise = [bytes(first) for first, _ in sent]
    assert {len(each) for each in noise} == {3}
    assert not {each[0] for each in noise} & set(Magic)
    assert len({each[0] for each in noise}) > 100


@pytest.mark.parametrize(("options", "size"), [({}, MAX_FRAME + 1), ({"size": 1 << 40}, 0xFFFF_FFFF)])
def test_an_oversized_frame_has_a_header_of_a_mutation(options: dict[str, int], size: int) -> None:
    faults = Faults()
    fault = started(faults, "oversize", **options)
    consumer = DcpClient(make_bucket())
    with wire(consumer, faults) as link:
        consumer.send_stream_request()
        header, frame = fault.sending(link.link, [b"frame"])
    assert (HEADER_STRUCT.unpack(header), frame) == ((Magic.REQUEST, 0x57, 0, 0, 0, 0, size, 0, 0), b"frame")


# Frames.


def test_faults_of_frames_leave_responses_alone() -> None:
    faults, client = Faults(), CommandClient(make_bucket())
    fault = started(faults, "gap", items=100, after=0)
    client.hello(Feature.COLLECTIONS, Feature.MUTATION_SEQNO)
    with wire(client, faults) as link:
        # The response has a seqno, as an item has.
        link.send(Frame("set", Magic.REQUEST, key=b"\0k", fields=STORE))
        (answer,) = decode(link.receive())
    assert (answer.name, answer.fields["seqno"], fault.hits) == ("set", 1, 0)


def test_only_frames_that_are_left_out_are_acknowledged_for_the_client() -> None:
    faults = Faults()
    started(faults, "gap", items=2, after=1)
    consumer = DcpClient(filled_bucket(5)[0], controls={"connection_buffer_size": "100000"})
    with wire(consumer, faults) as link:
        consumer.send_stream_request()
        _, *frames = decode(link.receive())
        assert summaries(frames)[1:] == [("mutation", 1), ("mutation", 4), ("mutation", 5)]
        assert link.link.connection.out.outstanding == sum(len(encode(frame)) for frame in frames)


def test_a_fault_of_noops_leaves_streams_alone() -> None:
    faults = Faults()
    fault = started(faults, "no_noops")
    consumer = DcpClient(filled_bucket(1)[0])
    with wire(consumer, faults) as link:
        consumer.send_stream_request()
        assert [frame.name for frame in decode(link.receive())] == ["stream_request", "snapshot_marker", "mutation"]
        due = consumer.connection.due()
        assert due is not None
        consumer.connection.tick(due)
        assert (link.receive(due), fault.hits) == (b"", 1)


# Streams.


def consumer_of(faults: Faults, controls: dict[str, str] | None = None) -> DcpClient:
    consumer = DcpClient(filled_bucket(5)[0], controls=controls)
    consumer.connection.may_write = faults.may_write
    return consumer


def test_a_stream_is_extended_once() -> None:
    faults = Faults()
    fault = started(faults, "beyond_end", items=1)
    # A window of one or two items.
    consumer = consumer_of(faults, {"connection_buffer_size": "100"})
    consumer.stream(end=6)
    for n in range(6, 11):
        consumer.bucket.store(b"new-%d" % n, b"", number=0)
    seqnos = []
    for _ in range(20):
        consumer.acknowledge(10_000)
        seqnos += [frame.fields["seqno"] for frame in consumer.receive() if frame.name == "mutation"]
    assert (seqnos[-1], fault.hits) == (10, 1)


def test_a_silent_stream_is_asked_in_each_turn() -> None:
    faults = Faults()
    fault = started(faults, "silent")
    assert consumer_of(faults).stream() == []
    # In the turn that sent the response, and in the one that found nothing to send.
    assert fault.hits == 2


def test_a_window_is_exceeded_by_no_more_than_asked() -> None:
    faults = Faults()
    fault = started(faults, "overfill", bytes=100)
    with wire(CommandClient(), faults) as link:
        out = link.link.connection.out
        out.window = 60
        left = []
        for _ in range(3):
            out.outstanding = 60
            fault.paused_until(link.link, 0.0)
            left.append(out.outstanding)
    assert (left, fault.hits) == ([0, 20, 60], 100)


# Options.


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gap", {"node": 2}, "fault gap: node: expected 0 to 1, found 2"),
        ("gap", {"vbuckets": "0-8"}, "fault gap: vbuckets: expected 0 to 7, found 8"),
        ("rollback", {"to": []}, "fault rollback: to: expected one number or more"),
        ("downgrade", {"without": "COLLECTIONS,NO_SUCH"}, "fault downgrade: without: expected names"),
        ("gap", {"items": None}, "fault gap: items: expected"),
    ],
)
def test_options_that_no_fault_has_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        started(Faults(), name, **options)


def test_options_are_shown_as_they_may_be_given() -> None:
    given: dict[str, object] = {"to": (300, 100, 0), "vbuckets": [5, 3], "forever": True, "times": None}
    fault = started(Faults(), "rollback", **given)
    shown = changed_options(fault)
    assert shown == {"to": "300,100,0", "vbuckets": "3,5", "forever": "on"}
    assert changed_options(started(Faults(), "rollback", **shown)) == shown
