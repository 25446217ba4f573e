"""Filters and columns of a read, without Spark."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from dcp.client.time_search import lowest_cas
from dcp.embedded import Cluster
from dcp.spark.options import Options
from dcp.spark.planner import plan
from dcp.spark.projection import Projection
from dcp.spark.schema import SparkSchema
from dcp.spark.task import read_partition
from tests.spark.rows import mutation


def read(url: str, **options: Any) -> list[dict[str, Any]]:
    """Plan and read. Return the rows."""
    planned = plan(url, **options)
    batches = [batch for partition in planned.partitions for batch in read_partition(partition, planned.options)]
    assert {batch.schema for batch in batches} <= {SparkSchema(planned.options).arrow}
    return [row for batch in batches for row in batch.to_pylist()]


def shop() -> Cluster:
    """Return a cluster with the collection shop.orders."""
    cluster = Cluster(nodes=2, vbuckets=4, replicas=1, seed=1)
    cluster.create_scope("shop")
    cluster.create_collection("shop", "orders")
    return cluster


def test_scope_and_collection_are_columns_on_request() -> None:
    with shop() as cluster:
        for number in range(10):
            cluster.upsert(f"a{number}", b"1")
            cluster.upsert(f"b{number}", b"2", collection="shop.orders")
        found = read(cluster.url, columns="collection,key,scope", key_format="string")
        assert {tuple(row) for row in found} == {("collection", "key", "scope")}
        names = {row["key"]: (row["scope"], row["collection"]) for row in found}
        assert names == {f"a{n}": ("_default", "_default") for n in range(10)} | {
            f"b{n}": ("shop", "orders") for n in range(10)
        }
        assert {row["scope"] for row in read(cluster.url, columns="scope")} == {"_default", "shop"}


def test_an_unknown_collection_has_no_name() -> None:
    projection = Projection(Options("", columns=("collection", "collection_id")), lambda: {9: "shop.orders"})
    assert projection(mutation(projection.wire_columns)).to_pylist() == [{"collection": None, "collection_id": None}]


def test_events_and_keys_are_filtered_but_rollbacks_are_not() -> None:
    with shop() as cluster:
        for number in range(40):
            cluster.upsert(f"order::{number}", b"1")
            cluster.upsert(f"user::{number}", b"1")
        cluster.upsert("größe*", b"1")
        cluster.upsert(b"\xff\n", b"1")
        cluster.delete("order::3")
        cluster.delete("user::3")
        first = plan(cluster.url)
        found = read(cluster.url, columns="key", events="deletion", keys="order::*")
        assert found == [{"key": b"order::3"}]
        some = read(cluster.url, columns="key", keys=["größe**", b"\xff*".decode("latin-1"), "user::7", "."])
        assert sorted(row["key"] for row in some) == ["größe*".encode(), b"user::7"]
        assert len(read(cluster.url, columns="key", keys="*")) == len(read(cluster.url, columns="key"))
        cluster.failover(0, lose=5)
        cluster.upsert("another", b"1")
        rollbacks = read(cluster.url, columns="event,key", start=first.end, events="deletion", keys="nobody")
        assert {row["event"] for row in rollbacks} == {"rollback"}


def test_changes_before_a_time_are_left_out() -> None:
    with shop() as cluster:
        for number in range(100):
            cluster.upsert(f"key {number}", b"1")
        newest = sorted(document.cas for document in cluster.truth().values())
        moment = datetime.fromtimestamp(newest[60] / 1e9, timezone.utc)
        since = lowest_cas(moment)
        wanted = {key for key, document in cluster.truth().items() if document.cas >= since}
        assert 0 < len(wanted) < 100
        found = read(cluster.url, columns="key", start=moment.isoformat())
        assert {row["key"] for row in found} == wanted
        assert read(cluster.url, columns="key", start="2999-01-01T00:00Z") == []


def test_rows_of_a_vbucket_without_an_end_pass_beside_those_after_an_end() -> None:
    def rows(vbucket: int) -> pa.RecordBatch:
        batch = mutation(("vbucket", "seqno", "event", "key"), b"k")
        return batch.set_column(0, "vbucket", pa.array([vbucket], pa.int32())).set_column(1, "seqno", pa.array([9]))

    projection = Projection(Options("", columns=("vbucket",)), dict, {3: 5})
    both = pa.Table.from_batches([rows(3), rows(4)]).combine_chunks().to_batches()[0]
    assert projection(both).to_pylist() == [{"vbucket": 4}]


@pytest.mark.parametrize("dialect", ["tap", "upr1", "upr2"])
def test_older_dialects_are_filtered_alike(dialect: str) -> None:
    with Cluster(vbuckets=2, dialect=dialect) as cluster:
        cluster.load(20)
        found = read(cluster.url, dialect=dialect, columns="key,scope", keys="key-000000000*")
        assert found == [{"key": row["key"], "scope": None} for row in found]
        assert len(found) == 10
