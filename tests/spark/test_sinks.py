"""The examples of docs/spark-sinks.md: the tables that they write have the documents of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcp.embedded import Cluster
from tests.spark.lakes import NONE, lake
from tests.spark.recipes import recipes
from tests.spark.rows import Documents, replace_and_delete, truth

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = lake()


def documents(frame: DataFrame) -> Documents:
    """Return value and CAS by key. Fail if a key is there twice."""
    rows = frame.select("key", "value", "cas").toArrow().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: (row["value"], row["cas"]) for row in rows}


def test_the_newest_changes_are_the_documents(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    guide, once = recipes(cluster.url, tmp_path), {"availableNow": True}
    for number in range(200):
        cluster.upsert(f"key {number}", b"1")
    assert guide.append(spark, trigger=once).awaitTermination(200)
    replace_and_delete(cluster)
    assert guide.append(spark, trigger=once).awaitTermination(200)
    assert documents(guide.documents(spark)) == truth(cluster)


@pytest.mark.skipif(FORMAT is None, reason=NONE)
def test_documents_of_a_collection_that_was_dropped_can_be_removed(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    import dcp.spark

    assert FORMAT is not None
    guide, table = recipes(cluster.url, tmp_path), f"{FORMAT.schema}.dropped"
    cluster.create_scope("shop")
    cluster.create_collection("shop", "stock")
    cluster.upsert("a", b"1")
    cluster.upsert("b", b"2", collection="shop.stock")
    query = dcp.spark.mirror(spark, cluster.url, table, checkpoint=str(tmp_path), format=FORMAT.format)
    query.processAllAvailable()
    cluster.drop_collection("shop", "stock")
    cluster.create_collection("shop", "stock")
    cluster.upsert("c", b"3", collection="shop.stock")
    query.processAllAvailable()
    query.stop()
    existing = truth(cluster) | truth(cluster, "shop.stock")
    assert documents(spark.table(table)) != existing
    guide.remove_dropped_collections(spark, table)
    assert documents(spark.table(table)) == existing


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
