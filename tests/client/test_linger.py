"""Rows that wait for `linger` when something happens to their stream or connection: none is lost, none is late."""

from __future__ import annotations

import socket
import time

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.wire.dcp import StreamEnd
from tests.client.consumer import PATIENCE
from tests.client.hostile import HostileNode, marker, mutation, stream_end

# Seconds after which no test waits any more.
HOUR = 3600.0


def seqnos(stream: dcp.ChangeStream, count: int) -> list[int]:
    """Return the seqnos of the next rows."""
    found: list[int] = []
    while len(found) < count:
        batch = stream.next(PATIENCE)
        assert batch is not None
        found += batch.to_arrow().column("seqno").to_pylist()
    return found


def test_rows_before_a_marker_are_delivered_when_their_connection_breaks_after_it() -> None:
    """The position of the stream is after them by then, and it resumes there."""

    def script(guest: socket.socket, opaque: int) -> None:
        streams.append(opaque)
        if len(streams) == 1:
            guest.sendall(marker(opaque, 0, 1) + mutation(opaque, 1) + marker(opaque, 2, 3))
            guest.shutdown(socket.SHUT_RDWR)
        else:
            guest.sendall(marker(opaque, 2, 2) + mutation(opaque, 2) + stream_end(opaque))

    streams: list[int] = []
    with HostileNode(script) as node, dcp.connect(node.url) as client, client.stream(linger=HOUR) as stream:
        assert seqnos(stream, 2) == [1, 2]


def test_rows_before_the_end_of_a_stream_do_not_wait_for_the_stream_after_it() -> None:
    def script(guest: socket.socket, opaque: int) -> None:
        streams.append(opaque)
        if len(streams) == 1:
            guest.sendall(marker(opaque, 0, 1) + mutation(opaque, 1) + stream_end(opaque, reason=StreamEnd.SLOW))

    streams: list[int] = []
    with HostileNode(script) as node, dcp.connect(node.url) as client, client.stream(linger=HOUR) as stream:
        assert seqnos(stream, 1) == [1]


def test_a_row_waits_for_others_after_its_arrival() -> None:
    def script(guest: socket.socket, opaque: int) -> None:
        guest.sendall(marker(opaque, 0, 9) + mutation(opaque, 1))

    with (
        HostileNode(script) as node,
        dcp.connect(node.url) as client,
        client.stream(linger=HOUR) as stream,
        pytest.raises(dcp.TimeoutError),
    ):
        stream.next(1)


def test_a_stream_is_closed_at_the_end_of_its_block() -> None:
    with Cluster() as cluster, dcp.connect(cluster.url) as client:
        with client.stream() as stream:
            assert not stream.closed
        assert stream.closed


def test_an_idle_stream_takes_no_processor() -> None:
    with Cluster() as cluster, dcp.connect(cluster.url, stats_interval=0) as client, client.stream() as stream:
        cluster.upsert("key", b"")
        assert seqnos(stream, 1) == [1]
        begun = time.process_time()
        with pytest.raises(dcp.TimeoutError):
            stream.next(1)
        # A thread that does not sleep takes all of this second, unless others leave it less.
        assert time.process_time() - begun < 0.25
