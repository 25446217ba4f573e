"""Bounds of what delivered batches hold: a node that ignores the window is not read any more."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import cramjam
import pytest

import dcp
from dcp.client.follow.node_link import NodeLink
from dcp.embedded import Cluster
from dcp.wire import DIALECTS
from dcp.wire.memcached import Status
from tests.client.consumer import PATIENCE, link_of
from tests.client.hostile import HostileNode, marker, mutation
from tests.waiting import until

WINDOW, MAX_FRAME = 64 << 10, 32 << 10
# Two windows, a frame, and the batch that exceeds them: half a window.
MOST_HELD = 2 * WINDOW + MAX_FRAME + WINDOW // 2
COUNT = 4000


def take_turns(link: NodeLink) -> None:
    """Wait until a link's thread has had the time to receive twice."""
    for _ in range(3):
        done = threading.Event()
        link.run_in_thread(lambda _, done=done: done.set())  # type: ignore[misc]
        assert done.wait(PATIENCE)


def drain(stream: dcp.ChangeStream, count: int) -> int:
    """Take batches until there are `count` rows. Return the most that the stream's connection held before any."""
    link, most = link_of(stream), 0
    while count > 0:
        most = max(most, link.held)
        batch = stream.next(PATIENCE)
        assert batch is not None
        count -= len(batch)
    return most


def pour(value: bytes, datatype: int = 0) -> Any:
    """Return the script of a node that sends `COUNT` rows at once, whatever the window."""

    def script(guest: socket.socket, opaque: int) -> None:
        rows = (mutation(opaque, seqno, value, datatype=datatype) for seqno in range(1, COUNT + 1))
        guest.sendall(marker(opaque, 0, COUNT) + b"".join(rows))

    return script


@pytest.mark.parametrize("answer", [Status.SUCCESS, Status.EINVAL], ids=["ignores the window", "refuses the window"])
@pytest.mark.parametrize(
    ("value", "datatype"),
    [(bytes(1000), 0), (bytes(cramjam.snappy.compress_raw(bytes(20_000))), 2)],
    ids=["plain", "compressed"],
)
def test_a_node_without_a_window_is_read_no_further_than_the_consumer_allows(
    answer: Status, value: bytes, datatype: int
) -> None:
    with ExitStack() as closing:
        node = closing.enter_context(HostileNode(pour(value, datatype), {"connection_buffer_size": answer}))
        client = closing.enter_context(dcp.connect(node.url, dcp_buffer_size=WINDOW))
        stream = closing.enter_context(client.stream(max_frame=MAX_FRAME))
        link = link_of(stream)
        until(lambda: link.full)
        take_turns(link)
        held = link.held
        assert held <= MOST_HELD
        take_turns(link)
        assert link.held == held
        assert client.stats().stuck == {}
        assert drain(stream, COUNT) <= MOST_HELD


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_delivers_all_within_the_bound(dialect: Any) -> None:
    with ExitStack() as closing:
        cluster = closing.enter_context(Cluster(vbuckets=1, dialect=dialect))
        client = closing.enter_context(dcp.connect(cluster.url, dcp_buffer_size=WINDOW, dialect=dialect))
        cluster.load(COUNT, value_size=1000)
        if dialect == "dcp":
            cluster.fault("overfill", bytes=1 << 30)
        stream = closing.enter_context(client.stream(max_frame=MAX_FRAME))
        # The consumer comes late: everything that may arrive has arrived.
        link = link_of(stream)
        until(lambda: link.held >= WINDOW)
        take_turns(link)
        assert drain(stream, COUNT) <= MOST_HELD


def test_a_document_larger_than_the_window_does_not_stop_a_node_that_keeps_to_it() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url, dcp_buffer_size=WINDOW) as client:
        for n in range(3):
            cluster.upsert(f"large{n}", bytes(20_000_000))
        with client.stream(end="now") as stream:
            link = link_of(stream)
            until(lambda: link.held > 20_000_000)
            take_turns(link)
            assert not link.full
            assert sum(map(len, stream)) == 3


def test_the_time_in_which_a_node_is_not_read_is_not_its_silence() -> None:
    with ExitStack() as closing:
        node = closing.enter_context(HostileNode(pour(bytes(1000))))
        client = closing.enter_context(dcp.connect(node.url, dcp_buffer_size=WINDOW, noop_interval=1))
        stream = closing.enter_context(client.stream(max_frame=MAX_FRAME))
        link = link_of(stream)
        until(lambda: link.full)
        assert link.session is not None
        began = link.session.last_heard
        # Twice the interval of noops, and a second more.
        until(lambda: time.monotonic() > began + 3)
        drain(stream, COUNT)
        assert client.stats().reconnects == 0


def test_a_connection_over_tls_that_was_full_is_read_again() -> None:
    pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    with Cluster(vbuckets=1, tls=True) as cluster, cluster.fault("overfill", bytes=1 << 30):
        cluster.load(COUNT, value_size=1000)
        with (
            dcp.connect(cluster.tls_url, ca_cert_path=cluster.ca_file, dcp_buffer_size=WINDOW) as client,
            client.stream(max_frame=MAX_FRAME) as stream,
        ):
            link = link_of(stream)
            until(lambda: link.full)
            take_turns(link)
            drain(stream, COUNT)


@pytest.mark.parametrize("tls", [False, True])
def test_rows_are_a_sign_of_life(tls: bool) -> None:
    if tls:
        pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    with Cluster(vbuckets=1, tls=tls) as cluster:
        options: dict[str, Any] = {"ca_cert_path": cluster.ca_file} if tls else {}
        with (
            dcp.connect(cluster.tls_url if tls else cluster.url, **options) as client,
            client.stream(linger=0.0) as stream,
        ):
            heard = []
            for number in range(3):
                cluster.upsert("key", str(number))
                drain(stream, 1)
                session = link_of(stream).session
                assert session is not None
                heard.append(session.last_heard)
            assert heard == sorted(set(heard))
