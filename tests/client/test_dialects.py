"""Clusters that speak what came before DCP, followed over real sockets."""

from __future__ import annotations

import pytest

import dcp
from dcp.client.dialects import SESSIONS
from dcp.embedded import Cluster
from dcp.wire import DIALECTS
from tests.client.consumer import Consumer, truth
from tests.client.test_follow import PATIENCE, catch_up

DRAFTS = ["upr1", "upr2"]
drafts = pytest.mark.parametrize("dialect", DRAFTS)


@drafts
def test_a_bucket_is_copied_and_gone_on_from(dialect: str) -> None:
    with Cluster(nodes=2, vbuckets=8, dialect=dialect) as cluster:
        cluster.load(1000)
        cluster.delete("key-0000000007")
        cluster.expire("key-0000000008")
        consumer = Consumer()
        with dcp.connect(cluster.url, dialect=dialect) as client:
            stream = client.stream(end="now")
            for batch in stream:
                consumer.take(batch)
            assert consumer.state() == truth(cluster)
            saved = stream.checkpoint.to_json()
        before = sum(map(len, consumer.rows.values()))
        cluster.upsert("another", b'{"a":1}')
        cluster.delete("key-0000000003")
        with (
            dcp.connect(f"{cluster.url}&dialect={dialect}") as client,
            client.stream(dcp.Checkpoint.from_json(saved)) as stream,
        ):
            catch_up(stream, consumer, cluster)
        assert sum(map(len, consumer.rows.values())) == before + 2


@drafts
def test_now_is_where_it_begins(dialect: str) -> None:
    with Cluster(vbuckets=4, dialect=dialect) as cluster, dcp.connect(cluster.url, dialect=dialect) as client:
        cluster.load(100)
        with client.stream("now") as stream:
            cluster.upsert("later", b"1")
            batch = stream.next(PATIENCE)
            assert batch is not None
            assert batch.to_arrow().column("key").to_pylist() == [b"later"]


@drafts
def test_writes_that_a_failover_lost_are_taken_back(dialect: str) -> None:
    with (
        Cluster(nodes=3, vbuckets=8, replicas=1, dialect=dialect) as cluster,
        dcp.connect(cluster.url, dialect=dialect) as client,
    ):
        cluster.load(300)
        consumer = Consumer()
        with client.stream() as stream:
            catch_up(stream, consumer, cluster)
            cluster.failover(0, lose=5)
            catch_up(stream, consumer, cluster)
        assert consumer.rollbacks


@drafts
def test_a_consumer_that_is_slow_stops_the_node(dialect: str) -> None:
    with (
        Cluster(vbuckets=2, dialect=dialect) as cluster,
        dcp.connect(cluster.url, dialect=dialect, dcp_buffer_size=20_000) as client,
    ):
        cluster.load(2000, value_size=1000)
        consumer = Consumer()
        stream = client.stream(end="now", batch_rows=10)
        for batch in stream:
            consumer.take(batch)
            # What waits is at most the window and what was read at once.
            assert stream.counters.bytes < sum(map(len, consumer.rows.values())) * 1100 + (1 << 20)
        assert consumer.state() == truth(cluster)


@pytest.mark.parametrize("dialect", [name for name in SESSIONS if name != "dcp"])
@pytest.mark.parametrize("options", [{"scope": "_default"}, {"collections": ["_default"]}, {"persisted_only": True}])
def test_a_stream_is_not_chosen_by_what_a_dialect_lacks(dialect: str, options: dict[str, object]) -> None:
    with Cluster(vbuckets=2, dialect=dialect) as cluster, dcp.connect(cluster.url, dialect=dialect) as client:
        name = next(iter(options))
        with pytest.raises(dcp.LocalProtocolError, match=f"^{name}: {DIALECTS[dialect].title} has no such thing"):
            client.stream(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["compression=off", "noop_interval=20", "dcp_priority=low"])
def test_a_connection_does_not_ignore_what_a_dialect_lacks(option: str) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=f"^{option.partition('=')[0]}: UPR draft 2 has no such thing"):
        dcp.connect(f"couchbase://localhost/b?dialect=upr2&{option}")
