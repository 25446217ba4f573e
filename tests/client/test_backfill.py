"""Backfills in another form: out of order, or with every version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from tests.client.consumer import PATIENCE, Consumer, truth

SHOP: dict[str, Any] = {"collections": ["shop.order"], "out_of_order": True}


def write(cluster: Cluster, numbers: range) -> None:
    """Load keys in descending order, so that the order of keys is not that of seqnos."""
    for n in numbers:
        cluster.upsert(f"order{999 - n}", f"{n}", collection="shop.order")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=1, replicas=1) as cluster:
        cluster.create_scope("shop")
        cluster.create_collection("shop", "order")
        cluster.load(50)
        write(cluster, range(200))
        # Only what is not in memory any more is read by key.
        cluster.snapshot()
        yield cluster


def catch_up(stream: dcp.ChangeStream, consumer: Consumer, cluster: Cluster) -> None:
    number = cluster.collection_ids()["shop.order"]
    while consumer.state(number) != truth(cluster, "shop.order"):
        batch = stream.next(PATIENCE)
        assert batch is not None
        consumer.take(batch)


def seqnos(batch: dcp.Batch) -> list[int]:
    found: list[int] = batch.to_arrow().column("seqno").to_pylist()
    return found


def newest(cluster: Cluster) -> int:
    return max(found.seqno for found in cluster.truth("shop.order").values())


def test_what_a_collection_has_comes_in_any_order_and_then_what_changes_in_order(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client, client.stream(**SHOP) as stream:
        consumer = Consumer()
        came: list[int] = []
        while len(came) < 200:
            batch = stream.next(PATIENCE)
            assert batch is not None
            consumer.take(batch)
            came += seqnos(batch)
        assert came == sorted(came, reverse=True)
        write(cluster, range(200, 210))
        catch_up(stream, consumer, cluster)
        (position,) = stream.checkpoint
        assert (position.seqno, consumer.rollbacks) == (newest(cluster), [])


def test_the_position_stays_at_the_beginning_until_all_is_there(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        stream = client.stream(end="now", batch_rows=50, **SHOP)
        before = [position.seqno for _ in range(3) if next(stream) for position in stream.checkpoint]
        assert before == [0, 0, 0]
        assert sum(map(len, stream)) == 50
        (position,) = stream.checkpoint
        assert position.seqno >= newest(cluster)


def test_in_order_is_what_nobody_asks_otherwise(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        ways: list[dict[str, Any]] = [{"collections": ["shop.order"]}, {"out_of_order": True}]
        for options in ways:
            came = [seqno for batch in client.stream(end="now", **options) for seqno in seqnos(batch)]
            assert came == sorted(came)
            assert came


@pytest.mark.parametrize("lost", [0, 20], ids=["the connection", "writes"])
def test_what_came_of_a_snapshot_that_breaks_is_taken_back_and_comes_again(cluster: Cluster, lost: int) -> None:
    """A failover loses the first rows that were delivered; no node can report them as undone afterwards."""
    with dcp.connect(cluster.url, dcp_buffer_size=4000) as client:
        stream, consumer = client.stream(batch_rows=10, **SHOP), Consumer()
        for _ in range(3):
            consumer.take(next(stream))
        had = max(row.seqno for row in consumer.rows[0])
        if lost:
            cluster.failover(0, lose=lost)
        else:
            cluster.fault("cut")
        catch_up(stream, consumer, cluster)
        assert consumer.rollbacks[0] == (0, had, 0)
        assert client.stats().rollbacks == len(consumer.rollbacks) == 1


def test_a_break_is_an_error_for_who_cannot_go_back(cluster: Cluster) -> None:
    with dcp.connect(cluster.url, dcp_buffer_size=4000) as client:
        stream = client.stream(batch_rows=10, on_rollback="fail", **SHOP)
        next(stream)
        cluster.failover(0)
        with pytest.raises(dcp.RollbackError, match=r"back from seqno [1-9][0-9]* to 0 "):
            for _ in stream:
                pass


def test_rows_out_of_order_cannot_wait_for_disks(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client, pytest.raises(dcp.LocalProtocolError, match=r"without persisted_only"):
        client.stream(persisted_only=True, **SHOP)


# Every version.


def versions(stream: dcp.ChangeStream) -> list[tuple[str, bytes]]:
    return [
        (row["event"], row["value"])
        for batch in stream
        for row in batch.to_arrow().to_pylist()
        if row["key"] == b"same"
    ]


def test_every_version_comes_in_its_order_to_who_asks_for_them() -> None:
    with Cluster(vbuckets=4, history=True) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(20)
        for n in range(3):
            cluster.upsert("same", f"{n}")
        cluster.delete("same")
        cluster.upsert("same", "back")
        cluster.snapshot()
        last = ("mutation", b"back")
        mutations = [("mutation", b"%d" % n) for n in range(3)]
        assert versions(client.stream(end="now", history=True)) == [*mutations, ("deletion", b""), last]
        assert versions(client.stream(end="now")) == [last]


def test_versions_that_are_in_memory_come_all_too() -> None:
    with Cluster(vbuckets=4, history=True) as cluster, dcp.connect(cluster.url) as client:
        written = [("mutation", b"%d" % n) for n in range(5)]
        for _, value in written:
            cluster.upsert("same", value)
        assert versions(client.stream(end="now", history=True)) == written
        with client.stream("now", history=True) as stream:
            for n in range(3):
                cluster.upsert("same", f"live {n}")
            last = client.positions("now")
            came: list[tuple[str, bytes]] = []
            while len(came) < 3:
                batch = stream.next(30)
                assert batch is not None
                came += [(row["event"], row["value"]) for row in batch.to_arrow().to_pylist()]
            assert came == [("mutation", b"live %d" % n) for n in range(3)]
            assert sum(place.seqno for place in last) == 8


def test_who_goes_on_inside_of_a_history_misses_no_version() -> None:
    with Cluster(vbuckets=1, history=True) as cluster, dcp.connect(cluster.url) as client:
        for n in range(100):
            cluster.upsert("same", f"{n}")
        cluster.snapshot()
        stream = client.stream(history=True, batch_rows=30)
        assert len(next(stream)) == 30
        rest = versions(client.stream(stream.checkpoint, "now", history=True))
        assert rest == [("mutation", b"%d" % n) for n in range(30, 100)]


def test_a_bucket_without_history_says_so() -> None:
    with (
        Cluster(vbuckets=1) as cluster,
        dcp.connect(cluster.url) as client,
        pytest.raises(dcp.ServerError, match=r"history: the bucket keeps none"),
    ):
        next(client.stream(history=True))


def test_rows_out_of_order_end_at_a_checkpoint_too(cluster: Cluster) -> None:
    """Some batches of such a snapshot have no row above those before, but rows above the end."""
    with dcp.connect(cluster.url) as client:
        end = client.positions("now", collections=["shop.order"])
        write(cluster, range(200, 250))
        cluster.snapshot()
        with client.stream(end=end, batch_rows=1, linger=0.0, **SHOP) as stream:
            found = [seqno for batch in stream for seqno in seqnos(batch)]
        assert len(found) == 200
        assert max(found) <= next(iter(end)).seqno
