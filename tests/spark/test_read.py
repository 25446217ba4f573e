"""Batch reads with Spark, over mapInArrow and the data source: the rows are those of the cluster."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import dcp.spark
from dcp.embedded import Cluster
from tests.spark.frames import BOTH_WAYS, Read, with_data_source, with_map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def documents(frame: DataFrame) -> dict[bytes, tuple[bytes, int, int, int, int]]:
    """Return the documents that the rows of a read add up to."""
    found: dict[bytes, tuple[bytes, int, int, int, int]] = {}
    for row in frame.select("event", "key", "value", "cas", "seqno", "rev_seqno", "vbucket").collect():
        if row.event == "mutation":
            found[bytes(row.key)] = (bytes(row.value), row.cas, row.seqno, row.rev_seqno, row.vbucket)
        else:
            found.pop(bytes(row.key), None)
    return found


def truth(cluster: Cluster, **where: str) -> dict[bytes, tuple[bytes, int, int, int, int]]:
    """Return the documents that the cluster has."""
    return {key: (t.value, t.cas, t.seqno, t.rev_seqno, t.vbucket) for key, t in cluster.truth(**where).items()}


@BOTH_WAYS
def test_a_read_has_the_documents_of_the_cluster(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    cluster.load(2000, value_size=300)
    for number in range(0, 200, 3):
        cluster.delete(f"key-{number:010}")
    frame = read(spark, cluster.url, min_partitions="4")
    assert documents(frame) == truth(cluster)
    assert frame.rdd.getNumPartitions() == 4


@BOTH_WAYS
def test_only_requested_columns_are_read(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    cluster.upsert("a", b'{"n": 1}', flags=0xFFFF_FFFF)
    frame = read(spark, cluster.url, columns="flags,key,value,timestamp", key_format="string", value_format="string")
    # The column `error` says which values are no text.
    assert frame.dtypes == [
        *(("flags", "bigint"), ("key", "string"), ("value", "string"), ("timestamp", "timestamp"), ("error", "string")),
    ]
    (row,) = frame.collect()
    assert row.error is None
    assert row[:3] == (0xFFFF_FFFF, "a", '{"n": 1}')
    assert int(row.timestamp.timestamp() * 1e6) == pytest.approx(cluster.truth()[b"a"].cas / 1000, abs=100)


def test_a_schema_selects_columns(spark: SparkSession, cluster: Cluster) -> None:
    cluster.upsert("a", b"{}")
    reader = spark.read.format("dcp").options(url=cluster.url)
    assert reader.schema("seqno long, key binary").load().collect() == [(1, b"a")]
    with pytest.raises(Exception, match="schema: seqno: expected bigint, found string"):
        reader.schema("seqno string").load().collect()


@BOTH_WAYS
def test_only_requested_collections_are_read(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "stock")
    cluster.create_collection("shop", "orders")
    for number in range(20):
        cluster.upsert(f"d{number}", b"{}")
        cluster.upsert(f"s{number}", b"{}", collection="shop.stock")
        cluster.upsert(f"o{number}", b"{}", collection="shop.orders")
    stock = truth(cluster, collection="shop.stock")
    orders = truth(cluster, collection="shop.orders")
    assert documents(read(spark, cluster.url, scope="shop", collections="stock")) == stock
    assert documents(read(spark, cluster.url, scope="shop")) == stock | orders
    assert documents(read(spark, cluster.url, collections="shop.orders, _default._default")) == orders | truth(cluster)


@BOTH_WAYS
def test_only_requested_vbuckets_are_read(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    cluster.load(100)
    some = {key: row for key, row in truth(cluster).items() if row[4] in (0, 1, 2, 5)}
    assert documents(read(spark, cluster.url, vbuckets="0-2,5")) == some


@BOTH_WAYS
def test_a_read_of_nothing_is_empty(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    assert read(spark, cluster.url).collect() == []
    cluster.upsert("a", b"{}")
    assert read(spark, cluster.url, start="latest").collect() == []


def test_the_next_read_resumes_where_the_plan_ends(spark: SparkSession, cluster: Cluster) -> None:
    cluster.load(500)
    plan = dcp.spark.plan(cluster.url)
    assert documents(dcp.spark.read(spark, pickle.loads(pickle.dumps(plan)))) == truth(cluster)
    before = cluster.truth()
    cluster.upsert("new", b"{}")
    cluster.delete("key-0000000007")
    kept = dcp.Checkpoint.from_json(plan.end.to_json())
    changes = dcp.spark.read(spark, cluster.url, start=kept).collect()
    assert {(row.event, bytes(row.key)) for row in changes} == {("mutation", b"new"), ("deletion", b"key-0000000007")}
    assert set(before) - {bytes(row.key) for row in changes if row.event == "deletion"} | {b"new"} == set(
        cluster.truth()
    )
    again = with_data_source(spark, cluster.url, startingOffsets=plan.end.to_json(), endingOffsets=plan.end.to_json())
    assert again.collect() == []


def test_a_text_column_refuses_bytes_that_are_not_utf8(spark: SparkSession, cluster: Cluster) -> None:
    cluster.upsert(b"\xff", b"\xff\xfe")
    with pytest.raises(Exception, match="keyFormat: expected UTF-8"):
        dcp.spark.read(spark, cluster.url, columns="key", key_format="string").collect()
    with pytest.raises(Exception, match="value: expected UTF-8"):
        dcp.spark.read(spark, cluster.url, value_format="string", on_bad_value="fail").collect()


@BOTH_WAYS
def test_the_password_is_in_no_plan(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    cluster.upsert("a", b"{}")
    frame = read(spark, cluster.url)
    plans = frame._jdf.queryExecution().toString()
    assert "dcp" in plans
    assert cluster.credentials.password not in plans + str(frame) + repr(dcp.spark.plan(cluster.url))


def test_a_password_in_a_file_is_not_part_of_the_plan(cluster: Cluster, tmp_path: Any, monkeypatch: Any) -> None:
    file = tmp_path / "password"
    file.write_text(cluster.credentials.password + "\n", "utf-8")
    scheme, _, hosts = cluster.url.partition("://")
    url = f"{scheme}://{hosts.partition('@')[2]}"
    by_file = dcp.spark.plan(url, username=cluster.credentials.username, password_file=str(file))
    monkeypatch.setenv("DCP_USERNAME", cluster.credentials.username)
    monkeypatch.setenv("DCP_PASSWORD", cluster.credentials.password)
    by_environment = dcp.spark.plan(url)
    secret = cluster.credentials.password.encode()
    assert secret not in pickle.dumps(by_file) + pickle.dumps(by_environment)
    assert secret in pickle.dumps(dcp.spark.plan(cluster.url))


@BOTH_WAYS
def test_a_frame_may_be_used_more_than_once(spark: SparkSession, read: Read) -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.load(10)
        keys = read(spark, cluster.url, columns="key", min_partitions="4")
        counted = keys.union(keys).groupBy("key").count().collect()
        assert {bytes(row.key): row[1] for row in counted} == dict.fromkeys(cluster.truth(), 2)
        assert keys.count() == 10


def test_spark_finds_the_source_without_registration(spark: SparkSession, cluster: Cluster) -> None:
    cluster.load(10)
    # A new session does not have the sources that were registered in another one.
    assert with_data_source(spark.newSession(), cluster.url).count() == 10


def test_wrong_options_are_reported(spark: SparkSession, cluster: Cluster) -> None:
    with pytest.raises(
        Exception,
        match=r"option 'colums': unknown .did you mean columns\?.*expected one of bucket, collections, columns",
    ):
        with_data_source(spark, cluster.url, colums="key")
    with pytest.raises(dcp.LocalProtocolError, match="there is no column 'kex'"):
        with_map_in_arrow(spark, cluster.url, columns=["kex"])


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_workers_have_the_environment_of_the_session_options(spark: SparkSession) -> None:
    wanted = {
        name.removeprefix("spark.executorEnv."): value
        for name, value in dcp.spark.session_options().items()
        if name.startswith("spark.executorEnv.")
    }

    def environment(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"value": pa.array([os.environ.get(name) for name in wanted], pa.string())})

    found = spark.range(0, 1, 1, 1).mapInArrow(environment, "value string").collect()
    assert [row.value for row in found] == list(wanted.values())
    assert all(wanted.values())
