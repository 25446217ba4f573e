"""Snapshots that stop before their announced end."""

from __future__ import annotations

import logging

import pytest

import dcp
from dcp.embedded import Cluster
from tests.client.consumer import PATIENCE, Consumer, truth


@pytest.mark.parametrize("memory", [True, False])
def test_a_stream_that_ends_in_a_snapshot_is_gone_on_from(memory: bool, caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(20)
        if memory:
            cluster.upsert("another", b"1")
        consumer = Consumer()
        with cluster.fault("missing_tail", times=1) as fault:
            for batch in client.stream(end="now"):
                consumer.take(batch)
            assert fault.hits == 1
        assert consumer.state() == truth(cluster)
        assert "the node stopped at seqno" in caplog.text
        assert len(consumer.rows[0]) == 20 + memory


def test_a_snapshot_that_the_next_one_cuts_short_is_gone_back_to(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(20)
        consumer = Consumer()
        with cluster.fault("missing_tail", times=1), client.stream() as stream:
            batch = stream.next(PATIENCE)
            assert batch is not None
            consumer.take(batch)
            cluster.upsert("another", b"1")
            while consumer.state() != truth(cluster):
                batch = stream.next(PATIENCE)
                assert batch is not None
                consumer.take(batch)
            assert stream.counters.reconnects == 1
        assert [row.seqno for row in consumer.rows[0]] == list(range(1, 22))
        assert "the node stopped at seqno 19 of a snapshot up to 20" in caplog.text


def test_a_node_that_never_says_it_is_believed_at_last_and_not_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(20)
        with cluster.fault("missing_tail"), caplog.at_level(logging.WARNING):
            rows = sum(len(batch) for batch in client.stream(end="now"))
        assert rows == 19
        assert "changes are missing" in caplog.text


def test_what_is_filtered_away_at_the_end_is_not_missing(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        cluster.create_scope("shop")
        cluster.create_collection("shop", "order")
        for n in range(30):
            cluster.upsert(f"key{n}", b"1", collection=("shop.order", "_default._default")[n % 7 > 2])
            if n % 10 == 0:
                cluster.snapshot()
        for batch in client.stream(end="now", collections=["shop.order"]):
            assert len(batch)
        assert "stopped" not in caplog.text
