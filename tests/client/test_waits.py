"""Time limits of waits for nodes that answer slowly, or not at all."""

from __future__ import annotations

import select
import socket
from datetime import datetime, timezone

import pytest

import dcp
from dcp.client.follow.node_link import NodeLink
from dcp.client.follow.settings import BatchLimits
from dcp.embedded import Cluster
from dcp.session.handshake import Agreement
from dcp.session.session import Session
from tests.client.consumer import PATIENCE, Consumer, catch_up
from tests.client.links import Unheard
from tests.session.harness import decoder, ready_session
from tests.waiting import until


def test_bytes_that_trickle_in_do_not_extend_the_handshake_of_a_stream() -> None:
    consumer = Consumer()
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(20)
        with dcp.connect(cluster.url, bootstrap_timeout=1) as client, client.stream() as stream:
            catch_up(stream, consumer, cluster)
            # The cluster map alone would take a minute.
            with cluster.fault("slow", node=1, rate=20):
                cluster.fault("partition", node=1).clear()
                # The first is that of the connection that was cut off.
                until(lambda: client.stats().reconnects > 2)
            cluster.load(40, prefix="later")
            catch_up(stream, consumer, cluster)


def test_the_search_for_a_time_ends_with_an_error_when_a_node_sends_nothing() -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(40)
        now = datetime.now(timezone.utc)
        with (
            cluster.fault("silent", node=1),
            dcp.connect(cluster.url, refusal_timeout=0.5) as client,
            pytest.raises(
                dcp.TimeoutError, match=r"for a time: no progress on vbuckets .* accepted their streams, and"
            ),
        ):
            client.stream(now)


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_on_which_nothing_arrives_is_replaced(tls: bool, caplog: pytest.LogCaptureFixture) -> None:
    if tls:
        pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    with Cluster(vbuckets=1, tls=tls) as cluster:
        url = f"{cluster.tls_url}?ca_cert_path={cluster.ca_file}" if tls else cluster.url
        with (
            cluster.fault("no_noops") as fault,
            dcp.connect(url, noop_interval=1, stats_interval=0) as client,
            client.stream() as stream,
        ):
            until(lambda: "no byte from the node for 2 s" in caplog.text)
            fault.clear()
            cluster.upsert("later", b"1")
            batch = stream.next(PATIENCE)
            assert batch is not None
            assert batch.to_arrow().column("key").to_pylist() == [b"later"]


def test_bytes_that_a_node_does_not_take_are_sent_once_it_does() -> None:
    def ask(session: Session) -> None:
        # More than the system takes at once.
        for _ in range(4000):
            session.send_command("get_failover_log")

    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    link = NodeLink(
        "one:11210", lambda: near, lambda _: ready_session(Agreement(), decoder), Unheard(), BatchLimits(1, 1, 0.0)
    )
    link.run_in_thread(ask)
    link.start()
    with far:
        until(lambda: not select.select([], [near], [], 0)[1])
        far.settimeout(PATIENCE)
        left = 24 * 4000
        while left:
            left -= len(far.recv(left))
        link.close()
        link.thread.join()
