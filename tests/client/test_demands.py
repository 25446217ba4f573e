"""Connections that are granted less than the first one of their client: nothing is read from them."""

from __future__ import annotations

import logging

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.session.demands import CONSEQUENCES
from tests.client.consumer import PATIENCE, Consumer, catch_up, truth
from tests.waiting import until

STRONGEST = "SCRAM-SHA512"
# What the client does right without.
DISPENSABLE = [
    "SNAPPY",
    "CLUSTERMAP_CHANGE_NOTIFICATION",
    "send_stream_end_on_client_close_stream",
    "max_marker_version",
]


def started(nodes: int = 1) -> Cluster:
    cluster = Cluster(nodes=nodes, vbuckets=4)
    cluster.create_collection("_default", "other")
    write(cluster, 0)
    return cluster


def write(cluster: Cluster, number: int) -> None:
    for collection in ("_default", "other"):
        for n in range(4):
            cluster.upsert(f"key-{n}", f'{{"n":{number}}}', collection=f"_default.{collection}")


def drain(stream: dcp.ChangeStream, consumer: Consumer, cluster: Cluster) -> None:
    """Consume batches until the consumer has the documents of both collections."""
    other = cluster.collection_ids()["_default.other"]
    while consumer.state(other) != truth(cluster, "_default.other"):
        batch = stream.next(PATIENCE)
        assert batch is not None
        consumer.take(batch)
    catch_up(stream, consumer, cluster)


@pytest.mark.parametrize("name", [*CONSEQUENCES, STRONGEST])
def test_a_node_that_grants_less_than_before_is_read_when_it_grants_as_much_again(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with started() as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        consumer = Consumer()
        drain(stream, consumer, cluster)
        with cluster.fault("downgrade", without=name) as fault:
            cluster.restart(0)
            write(cluster, 1)
            until(lambda: fault.hits > 2)
            with pytest.raises(dcp.TimeoutError):
                stream.next(0)
        drain(stream, consumer, cluster)
        warnings = {record.getMessage() for record in caplog.records if record.levelno == logging.WARNING}
        refused = [text for text in warnings if "the first connection of this client" in text]
        missing = f"{name} ({CONSEQUENCES[name]})" if name in CONSEQUENCES else name
        assert all(f"{cluster.addresses[0]}: the node " in text for text in refused)
        # A handshake that was under way when the fault ended may lack something else, which it had done without before.
        assert any(missing in text for text in refused)
    assert sum(map(len, consumer.rows.values())) == 16


def test_weaker_mechanisms_are_not_used() -> None:
    with (
        started() as cluster,
        dcp.connect(cluster.url) as client,
        cluster.fault("downgrade", without="SCRAM-SHA512,SCRAM-SHA256"),
    ):
        client.close_idle()
        with pytest.raises(dcp.TransportError, match="offers SCRAM-SHA1, PLAIN, and nothing as strong as SCRAM-SHA512"):
            client.refresh_map()


@pytest.mark.parametrize("name", DISPENSABLE)
def test_what_the_client_does_right_without_is_not_demanded(name: str) -> None:
    with started() as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        consumer = Consumer()
        drain(stream, consumer, cluster)
        with cluster.fault("downgrade", without=name) as fault:
            cluster.restart(0)
            write(cluster, 1)
            drain(stream, consumer, cluster)
            assert fault.hits


@pytest.mark.parametrize("name", ["COLLECTIONS", "enable_expiry_opcode", "INCLUDE_DELETE_TIMES", "SCRAM-SHA512"])
def test_a_node_that_grants_more_than_before_is_read(name: str) -> None:
    with started() as cluster:
        fault = cluster.fault("downgrade", without=name)
        with dcp.connect(cluster.url) as client, client.stream() as stream:
            consumer = Consumer()
            catch_up(stream, consumer, cluster)
            fault.clear()
            cluster.restart(0)
            write(cluster, 1)
            catch_up(stream, consumer, cluster)


def test_a_node_that_grants_less_than_the_others_does_not_stop_them(caplog: pytest.LogCaptureFixture) -> None:
    with (
        started(nodes=2) as cluster,
        cluster.fault("downgrade", node=1) as fault,
        dcp.connect(cluster.url) as client,
        client.stream() as stream,
    ):
        consumer = Consumer()
        until(lambda: fault.hits > 2)
        batch = stream.next(PATIENCE)
        assert batch is not None
        consumer.take(batch)
        assert set(consumer.rows) <= set(client.map.vbuckets_of(client.map.nodes[0]))
        fault.clear()
        drain(stream, consumer, cluster)
    assert f"{cluster.addresses[1]}: the node does not grant" in caplog.text


def test_a_new_client_resumes_no_stream_of_collections_without_them(caplog: pytest.LogCaptureFixture) -> None:
    with started() as cluster:
        consumer = Consumer()
        with dcp.connect(cluster.url) as client, client.stream(end="now") as stream:
            for batch in stream:
                consumer.take(batch)
            checkpoint = stream.checkpoint
        fault = cluster.fault("downgrade")
        with dcp.connect(cluster.url) as client, client.stream(checkpoint) as stream:
            write(cluster, 1)
            until(lambda: "the checkpoint is of a stream with collections" in caplog.text)
            with pytest.raises(dcp.TimeoutError):
                stream.next(0)
            fault.clear()
            drain(stream, consumer, cluster)
    assert sum(map(len, consumer.rows.values())) == 16


def test_a_new_client_accepts_what_there_is() -> None:
    with (
        started() as cluster,
        dcp.connect(cluster.url),
        cluster.fault("downgrade"),
        dcp.connect(cluster.url) as client,
        client.stream(end="now") as stream,
    ):
        assert sum(map(len, stream)) == 4
