"""Streams that end at a checkpoint: slices between checkpoints neither overlap nor leave a gap."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

import dcp
from dcp.embedded import Cluster
from tests.client.consumer import PATIENCE, Consumer, truth
from tests.waiting import until

COLUMNS = ["vbucket", "seqno", "key"]


def rows(stream: dcp.ChangeStream) -> list[tuple[int, int, bytes]]:
    """Return vbucket, seqno and key of each change of a stream."""
    found = [row for batch in stream for row in batch.to_arrow().to_pylist()]
    return [(row["vbucket"], row["seqno"], row["key"]) for row in found]


@pytest.mark.parametrize("columns", [COLUMNS, None], ids=["some columns", "default columns"])
def test_slices_between_checkpoints_do_not_overlap(columns: list[str] | None) -> None:
    """Nodes round the end of a stream up to the end of its snapshot (observed with 7.2.9 and 8.0.1)."""
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(400)
        with client.stream(end="now", batch_rows=30) as stream:
            stops = [stream.checkpoint for _ in stream]
        assert any(not position.complete for stop in stops for position in stop)
        start: dcp.Checkpoint | str = "beginning"
        seen: list[tuple[int, int, bytes]] = []
        for stop in (stops[2], stops[5], stops[-1]):
            with client.stream(start, stop, columns=columns) as stream:
                seen += rows(stream)
                assert [(here.vbucket, here.seqno) for here in stream.checkpoint] == [
                    (here.vbucket, here.seqno) for here in stop
                ]
                start = stream.checkpoint
        assert len(seen) == len(set(seen)) == 400


def test_a_slice_that_ends_in_a_snapshot_keeps_the_window_for_the_next() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        for key, value in (("k", "old"), ("a", "1"), ("k", "new")):
            cluster.upsert(key, value)
        with client.stream(columns=COLUMNS, batch_rows=1) as stream:
            stream.next(10)
            stop = stream.checkpoint
        with client.stream(end=stop, columns=COLUMNS) as stream:
            assert rows(stream) == [(0, 2, b"a")]
            saved = stream.checkpoint
        cluster.failover(cluster.owner("k"), lose=1)
        # Seqno 1 was replaced by 3, which is lost: without the window `k` would be missing for ever.
        with client.stream(saved, "now", columns=["event", "key"]) as stream:
            found = [row for batch in stream for row in batch.to_arrow().to_pylist()]
        assert found[0]["event"] == "rollback"
        assert {row["key"] for row in found[1:]} == {b"k", b"a"}


def test_of_a_vbucket_that_the_end_lacks_nothing_is_read() -> None:
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(50)
        whole = client.positions("now")
        end = replace(whole, positions=whole.positions[:1])
        with client.stream(end=end, columns=COLUMNS) as stream:
            found = []
            # Not up to the end alone: a stream without one would only wait.
            while (batch := stream.next(PATIENCE)) is not None:
                found += batch.to_arrow().column("vbucket").to_pylist()
        assert found == [0] * whole.positions[0].seqno


def test_a_deferred_checkpoint_is_that_of_its_moment() -> None:
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(400)
        end = client.positions("now")
        with client.stream(end=end, batch_rows=30) as stream:
            deferred, found = [], []
            for _ in stream:
                deferred.append(stream.deferred_checkpoint())
                found.append(stream.checkpoint)
        assert [later() for later in deferred] == found
        assert len({checkpoint.to_json() for checkpoint in found}) == len(found) > 10


def test_a_checkpoint_of_a_spark_plan_includes_the_rest_of_its_snapshot() -> None:
    pytest.importorskip("pyspark", reason="plans are Spark's")
    import dcp.spark

    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(50)
        plan = dcp.spark.plan(cluster.url)
        cluster.load(50, prefix="later-")
        assert len(rows(client.stream(end=plan.end, columns=COLUMNS))) >= 50


def test_without_pyarrow_such_a_stream_is_refused_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        end = client.positions("now")
        # As if it were not installed: find_spec finds nothing for an entry of None.
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(dcp.UsageError, match="needs pyarrow: pip install pyarrow"):
            client.stream(end=end)


def test_the_checkpoint_of_a_stream_that_rolled_back_does_not_pass_its_end() -> None:
    """Its start was above its end, so that the node sent rows of the new history up to there, which were cut off."""
    with Cluster(nodes=2, vbuckets=1, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        consumer = Consumer()
        cluster.load(10)
        with client.stream(end="now") as stream:
            for batch in stream:
                consumer.take(batch)
            start = stream.checkpoint
        node = cluster.owner("key")
        cluster.crash(node)
        cluster.recover(node, lose=8)
        cluster.upsert("before", b"1")
        end = client.positions("now")
        cluster.upsert("after", b"1")
        with client.stream(start, end) as stream:
            for batch in stream:
                consumer.take(batch)
            assert b"after" not in consumer.state()
            reached = stream.checkpoint
        with client.stream(reached, "now") as stream:
            for batch in stream:
                consumer.take(batch)
        assert consumer.state() == truth(cluster)


def test_a_rollback_of_one_vbucket_does_not_move_the_end_of_another() -> None:
    """The position of the other one moves past its end, without a row, while the rollback row is queued."""
    default = "_default._default"
    with Cluster(nodes=2, vbuckets=2) as cluster:
        cluster.create_collection("_default", "other")
        # key0 is in vbucket 1, on the other node than the rest.
        for key, size in (("key0", 1), ("key1", 600), ("key3", 100)):
            cluster.upsert(key, bytes(size))
        with dcp.connect(cluster.url, dcp_buffer_size=1000, compression="off") as client:
            end = client.positions("now", collections=[default])
            start = replace(end, positions=(replace(end.positions[1], vbuuid=0xBAD),))
            # One row after the end, which is cut off, fills the window. The node has a position left to send.
            cluster.upsert("key4", bytes(400))
            cluster.upsert("key4", b"1", collection="_default.other")
            silent = cluster.fault("silent", vbuckets=[1])
            with cluster.fault("pause", node=cluster.owner("key0")):
                stream = client.stream(start, end, collections=[default], batch_rows=1, linger=0.0)
                queue = stream._follower._queue
                until(lambda: len(queue.waiting()) == 3)
            until(lambda: len(queue.waiting()) == 4)
            with stream:
                # The second call acknowledges the first row.
                batches = [stream.next(PATIENCE) for _ in range(2)]
                keys = [key for batch in batches if batch for key in batch.to_arrow()["key"].to_pylist()]
                assert keys == [b"key1", b"key3"]
                until(lambda: 0 in queue.waiting()[-1].positions)
                silent.clear()
                assert rows(stream) == [(1, 0, b""), (1, 2, b"key0")]
                reached = stream.checkpoint
            with client.stream(reached, "now", collections=[default], columns=COLUMNS) as stream:
                assert [key for _, _, key in rows(stream)] == [b"key4"]
