"""Rows that wait for `linger` when something happens to their stream or connection: none is lost, none is late."""

from __future__ import annotations

import itertools
import socket
import threading
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


def test_a_stream_that_ends_for_an_unknown_reason_is_requested_again() -> None:
    def script(guest: socket.socket, opaque: int) -> None:
        streams.append(opaque)
        guest.sendall(marker(opaque, 0, 9) + mutation(opaque, len(streams)))
        if len(streams) == 1:
            guest.sendall(stream_end(opaque, reason=0x99))

    streams: list[int] = []
    with HostileNode(script) as node, dcp.connect(node.url) as client, client.stream() as stream:
        assert seqnos(stream, 2) == [1, 2]
        assert stream.counters.stream_ends == {"153": 1}


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


def test_rows_that_trickle_in_are_delivered_when_the_first_of_them_has_waited() -> None:
    """The pauses between them are shorter than `linger`, so it would never end if each row began it again."""

    def script(guest: socket.socket, opaque: int) -> None:
        guest.sendall(marker(opaque, 0, 10**9))
        for seqno in itertools.count(1):
            guest.sendall(mutation(opaque, seqno))
            if delivered.wait(0.02):
                return

    delivered = threading.Event()
    with HostileNode(script) as node, dcp.connect(node.url) as client, client.stream(linger=0.5) as stream:
        try:
            assert seqnos(stream, 1)[0] == 1
        finally:
            delivered.set()


def test_rows_that_trickle_in_over_tls_are_delivered_when_the_first_of_them_has_waited() -> None:
    pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    with Cluster(vbuckets=1, tls=True) as cluster, dcp.connect(cluster.tls_url, ca_cert_path=cluster.ca_file) as client:

        def write() -> None:
            for number in itertools.count():
                cluster.upsert(f"key{number}", b"1")
                if delivered.wait(0.02):
                    return

        delivered = threading.Event()
        writer = threading.Thread(target=write)
        with client.stream(linger=0.5) as stream:
            writer.start()
            try:
                assert seqnos(stream, 1)[0] == 1
            finally:
                delivered.set()
                writer.join()


def test_a_stream_is_closed_at_the_end_of_its_block() -> None:
    with Cluster() as cluster, dcp.connect(cluster.url) as client:
        with client.stream() as stream:
            assert not stream.closed
        assert stream.closed


@pytest.mark.parametrize("tls", [False, True])
def test_an_idle_stream_takes_no_processor(tls: bool) -> None:
    if tls:
        pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    with (
        Cluster(tls=tls) as cluster,
        dcp.connect(cluster.tls_url, stats_interval=0, ca_cert_path=cluster.ca_file)
        if tls
        else dcp.connect(cluster.url, stats_interval=0) as client,
        client.stream() as stream,
    ):
        cluster.upsert("key", b"")
        assert seqnos(stream, 1) == [1]
        begun = time.process_time()
        with pytest.raises(dcp.TimeoutError):
            stream.next(1)
        # A thread that does not sleep takes all of this second, unless others leave it less.
        assert time.process_time() - begun < 0.25
