"""The columns `scope` and `collection` of a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import dcp
from dcp import Frame
from dcp.client.agent import Agent
from dcp.columns.path_columns import CollectionPaths
from dcp.embedded import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(vbuckets=2) as cluster:
        cluster.create_scope("shop")
        cluster.create_collection("shop", "order")
        cluster.upsert("a", b"1")
        cluster.upsert("b", b"2", collection="shop.order")
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[dcp.Client]:
    with dcp.connect(cluster.url) as client:
        yield client


def test_rows_have_the_names_of_their_collections(client: dcp.Client) -> None:
    found = pa.table(client.stream(end="now", columns="collection,key,scope"))
    assert sorted(found.to_pylist(), key=lambda row: row["key"]) == [
        {"collection": "_default", "key": b"a", "scope": "_default"},
        {"collection": "order", "key": b"b", "scope": "shop"},
    ]


def test_the_schema_has_the_names_before_there_are_rows(client: dcp.Client) -> None:
    stream = client.stream("now", "now", columns=["collection", "seqno", "collection_id"], document="id bigint")
    assert stream.schema.names == ("collection", "seqno", "collection_id", "document", "error")
    schema = pa.schema(stream.schema)
    assert schema.field("collection").type == pa.string()
    assert schema.field("seqno").type == pa.uint64()
    assert schema.field("document").type == pa.struct([("id", pa.int64())])
    assert pa.table(stream).schema == schema


def test_a_collection_that_is_new_has_its_name(cluster: Cluster, client: dcp.Client) -> None:
    stream = client.stream(columns="collection,key")
    seen = len(stream.next(10) or [])
    while seen < 2:
        seen += len(stream.next(10) or [])
    cluster.create_collection("shop", "item")
    cluster.upsert("c", b"3", collection="shop.item")
    batch = stream.next(10)
    assert batch is not None
    assert batch.to_arrow().to_pylist() == [{"collection": "item", "key": b"c"}]


def test_a_node_that_does_not_know_a_new_collection_yet_is_asked_again(
    cluster: Cluster, client: dcp.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes load a new manifest at different times. One vbucket has heard of it: the other sends nothing."""
    older = client._agent.ask("get_collections_manifest").value
    answered, times = Agent.ask, 0

    def outdated(agent: Agent, name: str, **parts: Any) -> Frame:
        nonlocal times
        answer = answered(agent, name, **parts)
        times += name == "get_collections_manifest"
        return replace(answer, value=older) if name == "get_collections_manifest" and times == 1 else answer

    with cluster.fault("silent", vbuckets=[1]):
        stream = client.stream("now", columns="collection,key")
        cluster.create_collection("shop", "item")
        key = next(key for key in (b"%d" % n for n in range(99)) if cluster._bucket.vbucket_of(key) == 0)
        monkeypatch.setattr(Agent, "ask", outdated)
        cluster.upsert(key, b"3", collection="shop.item")
        batch = stream.next(10)
        assert batch is not None
        assert batch.to_arrow().to_pylist() == [{"collection": "item", "key": key}]
        assert times == 2


def test_a_name_that_was_known_stays_when_its_collection_is_dropped() -> None:
    manifests = iter([{8: "shop.order", 9: "shop.item"}, {0: "_default._default"}])
    paths = CollectionPaths(lambda: next(manifests))
    ids = pa.array([9, 8, None], pa.uint32())
    assert paths(ids)[1].to_pylist() == ["item", "order", None]
    # An id that is in no manifest is asked for once.
    for _ in range(2):
        assert paths(pa.array([0, 7, 9], pa.uint32()))[1].to_pylist() == ["_default", None, "item"]


def test_a_time_and_an_end_leave_the_names(client: dcp.Client) -> None:
    found = pa.table(client.stream("-1h", client.positions("now"), columns="scope,key"))
    assert sorted(found["scope"].to_pylist()) == ["_default", "shop"]


def test_a_rollback_has_no_collection(cluster: Cluster) -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        stream = client.stream(columns="event,collection")
        cluster.upsert("a", b"1")
        assert stream.next(10) is not None
        cluster.failover(cluster.owner("a"), lose=1)
        batch = stream.next(10)
        assert batch is not None
        assert batch.to_arrow().to_pylist() == [{"event": "rollback", "collection": None}]


def test_a_batch_whose_names_cannot_be_found_was_not_taken(cluster: Cluster) -> None:
    with dcp.connect(cluster.url, bootstrap_timeout=0.5) as client:
        stream = client.stream(columns="collection,key")
        with (
            cluster.fault("refuse", command="get_collections_manifest", status="etmpfail"),
            pytest.raises(dcp.DcpError),
        ):
            stream.next(10)
        assert [position.seqno for position in stream.checkpoint] == [0, 0]
    with dcp.connect(cluster.url) as client:
        found = pa.table(client.stream(stream.checkpoint, "now", columns="collection"))
        assert sorted(found["collection"].to_pylist()) == ["_default", "order"]


def test_without_pyarrow_the_names_are_refused_before_the_stream_starts(
    client: dcp.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it were not installed: find_spec finds nothing for an entry of None.
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(dcp.UsageError, match="names of scopes and collections need pyarrow: pip install pyarrow"):
        client.stream(columns="scope,key")
    assert client.stream("now", "now", columns="key").schema.names == ("key",)
