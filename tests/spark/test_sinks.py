"""The recipes of docs/spark-sinks.md: the tables that they write have the documents of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import dcp.spark
from dcp.embedded import Cluster
from tests.spark.recipes import recipes
from tests.spark.rows import replace_and_delete, truth

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class BatchedSink:
    """Calls the sink of the guide as a stream does, with batch reads, which start faster than a stream."""

    def __init__(self, spark: SparkSession, cluster: Cluster, at: Path) -> None:
        self.guide = recipes(cluster.url, at)
        self._spark, self._cluster = spark, cluster
        self._next = dcp.spark.plan(cluster.url)
        self._number = -1

    def batch(self, again: bool = False) -> None:
        """Write the next batch, or repeat the last one."""
        if not again:
            self._plan, self._number = self._next, self._number + 1
        self.guide.upsert(dcp.spark.read(self._spark, self._plan), self._number)

    def plan(self) -> None:
        """Put everything that was written so far into the next batch."""
        self._next = dcp.spark.plan(self._cluster.url, start=self._next.end)

    @property
    def state(self) -> DataFrame:
        """Documents as of the last batch."""
        return self.guide.state(self._spark)


def documents(frame: DataFrame) -> dict[bytes, tuple[bytes, int]]:
    """Return value and CAS by key. Fail if a key is there twice."""
    rows = frame.select("key", "value", "cas").toArrow().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: (row["value"], row["cas"]) for row in rows}


def test_log_and_state_agree_with_the_cluster_after_a_failover_that_lost_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        sink = BatchedSink(spark, cluster, tmp_path)
        sink.batch()
        before = truth(cluster)
        # New versions of documents, some of which are lost in the failover.
        replace_and_delete(cluster)
        sink.plan()
        sink.batch()
        assert documents(sink.state) == truth(cluster)
        cluster.failover(0, lose=20)
        cluster.upsert("new", b"{}")
        sink.plan()
        sink.batch()
        log = spark.read.parquet(str(tmp_path / "changes"))
        assert log.where("event = 'rollback'").count() > 0
        assert documents(sink.state) == documents(sink.guide.latest(log)) == truth(cluster)
        assert documents(sink.guide.latest(log.where("batch = 0"))) == before
        assert len(list((tmp_path / "state").iterdir())) == 2


def test_a_repeated_batch_replaces_its_files(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(50)
    sink = BatchedSink(spark, cluster, tmp_path)
    sink.batch()
    cluster.load(80)
    sink.plan()
    sink.batch()
    cluster.delete("key-0000000003")
    sink.batch(again=True)
    sink.plan()
    sink.batch()
    assert documents(sink.state) == truth(cluster)
    assert spark.read.parquet(str(tmp_path / "changes")).count() == 50 + 80 + 1


def test_documents_of_a_collection_that_was_dropped_can_be_left_out(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "stock")
    cluster.upsert("a", b"1")
    cluster.upsert("b", b"2", collection="shop.stock")
    sink = BatchedSink(spark, cluster, tmp_path)
    sink.batch()
    cluster.drop_collection("shop", "stock")
    cluster.create_collection("shop", "stock")
    cluster.upsert("c", b"3", collection="shop.stock")
    sink.plan()
    sink.batch()
    kept = sink.guide.without_dropped_collections(sink.state)
    assert documents(kept) == truth(cluster) | truth(cluster, "shop.stock")
    assert documents(kept) != documents(sink.state)


def test_a_collection_is_a_typed_table(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    guide = recipes(cluster.url, tmp_path)
    cluster.create_scope("shop")
    cluster.create_collection("shop", "orders")
    cluster.upsert("elsewhere", b"{}")
    for number in range(30):
        text = f'{{"total": 0.5, "id": {2**62 + number}, "lines": [{{"sku": "s{number}"}}]}}'
        cluster.upsert(f"order {number}", text, collection="shop.orders")
    cluster.delete("order 7", collection="shop.orders")
    cluster.upsert("order 8", '{"total": 9}', collection="shop.orders")
    table = guide.export(spark, "shop.orders", "total double, id bigint, lines array<struct<sku string>>")
    assert table.dtypes[1:3] == [("total", "double"), ("id", "bigint")]
    found = {row.key: row for row in table.collect()}
    assert set(found) == {key.decode() for key in truth(cluster, "shop.orders")}
    assert (found["order 3"].id, found["order 3"].lines[0].sku) == (2**62 + 3, "s3")
    assert (found["order 8"].total, found["order 8"].id) == (9.0, None)
    cluster.upsert("order 9", '{"total": "much"}', collection="shop.orders")
    cluster.upsert("image", b"\x89PNG", collection="shop.orders")
    rejects = guide.export(spark, "shop.orders", "total double").where("error is not null").collect()
    assert {row.key: row.error.partition(",")[0] for row in rejects} == {
        "order 9": "total: expected double",
        "image": "document: expected JSON",
    }
