"""Time limits of waits for nodes that answer slowly, or not at all."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

import dcp
from dcp.embedded import Cluster
from tests.client.consumer import PATIENCE, Consumer, catch_up
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
