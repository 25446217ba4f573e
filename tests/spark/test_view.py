"""Rows and columns that a read asks for, without Spark."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.client.time_search import tick
from dcp.embedded import Cluster
from dcp.spark.options import Options
from dcp.spark.planner import plan
from dcp.spark.projection import View
from dcp.spark.schema import Schema
from dcp.spark.task import rows
from tests.spark.test_task import mutation


def read(url: str, **options: Any) -> list[dict[str, Any]]:
    planned = plan(url, **options)
    batches = [batch for partition in planned.partitions for batch in rows(partition, planned.options)]
    assert {batch.schema for batch in batches} <= {Schema(planned.options).arrow}
    return [row for batch in batches for row in batch.to_pylist()]


def shop() -> Cluster:
    cluster = Cluster(nodes=2, vbuckets=4, replicas=1, seed=1)
    cluster.create_scope("shop")
    cluster.create_collection("shop", "orders")
    return cluster


def test_names_of_scope_and_collection_come_where_they_are_asked_for() -> None:
    with shop() as cluster:
        for number in range(10):
            cluster.upsert(f"a{number}", b"1")
            cluster.upsert(f"b{number}", b"2", collection="shop.orders")
        found = read(cluster.url, columns="collection,key,scope", keyFormat="string")
        assert {tuple(row) for row in found} == {("collection", "key", "scope")}
        told = {row["key"]: (row["scope"], row["collection"]) for row in found}
        assert told == {f"a{n}": ("_default", "_default") for n in range(10)} | {
            f"b{n}": ("shop", "orders") for n in range(10)
        }
        assert {row["scope"] for row in read(cluster.url, columns="scope")} == {"_default", "shop"}


def test_a_collection_that_nobody_knows_has_no_names() -> None:
    view = View(Options("", columns=("collection", "collection_id")), lambda: {9: "shop.orders"})
    assert view(mutation(view.decoded)).to_pylist() == [{"collection": None, "collection_id": None}]


def test_only_events_and_keys_that_were_asked_for_come_and_what_is_undone() -> None:
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
        told = read(cluster.url, columns="event,key", start=first.end, events="deletion", keys="nobody")
        assert {row["event"] for row in told} == {"rollback"}


def test_changes_before_a_time_do_not_come() -> None:
    with shop() as cluster:
        for number in range(100):
            cluster.upsert(f"key {number}", b"1")
        newest = sorted(document.cas for document in cluster.truth().values())
        moment = datetime.fromtimestamp(newest[60] / 1e9, timezone.utc)
        since = tick("start", moment) or 0
        wanted = {key for key, document in cluster.truth().items() if document.cas >= since}
        assert 0 < len(wanted) < 100
        found = read(cluster.url, columns="key", startingTimestamp=moment.isoformat())
        assert {row["key"] for row in found} == wanted
        assert read(cluster.url, columns="key", startingTimestamp="2999-01-01T00:00Z") == []


@given(st.sets(st.text(st.characters(categories=["L", "P", "S", "N"]), min_size=1), min_size=1, max_size=5))
def test_a_key_is_taken_as_it_stands(keys: set[str]) -> None:
    wanted = {key for key in keys if not key.endswith("*")} or {"x"}
    view = View(Options("", columns=("key",), keys=tuple(wanted)), dict)
    there = {*keys, "x", "xx", *(f"{key}x" for key in keys)}
    found = view(mutation(view.decoded, *(key.encode() for key in there))).to_pylist()
    assert {row["key"].decode() for row in found} == there & wanted


@pytest.mark.parametrize("dialect", ["tap", "upr1", "upr2"])
def test_what_was_before_dcp_is_filtered_alike(dialect: str) -> None:
    with Cluster(vbuckets=2, dialect=dialect) as cluster:
        cluster.load(20)
        found = read(cluster.url, dialect=dialect, columns="key,scope", keys="key-000000000*")
        assert found == [{"key": row["key"], "scope": None} for row in found]
        assert len(found) == 10
