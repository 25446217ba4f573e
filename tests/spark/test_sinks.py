"""The recipes of the guide, run as they stand there: what they keep is what the cluster has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dcp.spark
from dcp.embedded import Cluster
from tests.spark.recipes import recipes
from tests.spark.rows import replace_and_delete, truth

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Lake:
    """What a stream does to its sink, without the time that it takes to start one."""

    def __init__(self, spark: SparkSession, cluster: Cluster, at: Path) -> None:
        self.guide = recipes(cluster.url, at)
        self._spark, self._cluster = spark, cluster
        self._next = dcp.spark.plan(cluster.url)
        self._number = -1

    def batch(self, again: bool = False) -> None:
        """The next one, or the last one again."""
        if not again:
            self._plan, self._number = self._next, self._number + 1
        self.guide.upsert(dcp.spark.read(self._spark, self._plan), self._number)

    def plan(self) -> None:
        """What is there by now is in the next batch."""
        self._next = dcp.spark.plan(self._cluster.url, start=self._next.end)

    @property
    def state(self) -> DataFrame:
        return self.guide.state(self._spark)


def documents(frame: DataFrame) -> dict[bytes, tuple[bytes, int]]:
    rows = frame.select("key", "value", "cas").toArrow().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: (row["value"], row["cas"]) for row in rows}


def test_the_log_and_the_state_are_what_the_cluster_has_after_a_failover_that_lost_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        lake = Lake(spark, cluster, tmp_path)
        lake.batch()
        before = truth(cluster)
        # Versions that replace what there was, and that nobody has any more afterwards.
        replace_and_delete(cluster)
        lake.plan()
        lake.batch()
        assert documents(lake.state) == truth(cluster)
        cluster.failover(0, lose=20)
        cluster.upsert("new", b"{}")
        lake.plan()
        lake.batch()
        log = spark.read.parquet(str(tmp_path / "changes"))
        assert log.where("event = 'rollback'").count() > 0
        assert documents(lake.state) == documents(lake.guide.latest(log)) == truth(cluster)
        assert documents(lake.guide.latest(log.where("batch = 0"))) == before
        assert len(list((tmp_path / "state").iterdir())) == 2


def test_a_batch_that_runs_again_replaces_what_it_wrote(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(50)
    lake = Lake(spark, cluster, tmp_path)
    lake.batch()
    cluster.load(80)
    lake.plan()
    lake.batch()
    cluster.delete("key-0000000003")
    lake.batch(again=True)
    lake.plan()
    lake.batch()
    assert documents(lake.state) == truth(cluster)
    assert spark.read.parquet(str(tmp_path / "changes")).count() == 50 + 80 + 1


def test_documents_of_a_collection_that_was_dropped_can_be_left_out(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "stock")
    cluster.upsert("a", b"1")
    cluster.upsert("b", b"2", collection="shop.stock")
    lake = Lake(spark, cluster, tmp_path)
    lake.batch()
    cluster.drop_collection("shop", "stock")
    cluster.create_collection("shop", "stock")
    cluster.upsert("c", b"3", collection="shop.stock")
    lake.plan()
    lake.batch()
    kept = lake.guide.without_dropped_collections(lake.state)
    assert documents(kept) == truth(cluster) | truth(cluster, "shop.stock")
    assert documents(kept) != documents(lake.state)


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
    with pytest.raises(Exception, match="MALFORMED_RECORD_IN_PARSING"):
        guide.export(spark, "shop.orders", "total double").collect()
