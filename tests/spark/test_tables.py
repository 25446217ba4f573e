"""`dcp.spark.append` and `dcp.spark.mirror`: what their tables have agrees with the cluster, whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dcp
import dcp.spark
from dcp.embedded import Cluster
from tests.spark.lakes import NONE, Lake, lake
from tests.spark.rows import Documents, replace_and_delete, truth
from tests.spark.tables_by_chance import Schedule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

FORMAT = lake()
with_merge = pytest.mark.skipif(FORMAT is None, reason=NONE)
Start = Callable[..., "StreamingQuery"]


def documents(frame: DataFrame) -> Documents:
    """Return value and CAS by key. Fail if a key is there twice."""
    rows = frame.select("key", "value", "cas").toArrow().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: (row["value"], row["cas"]) for row in rows}


def newest(changes: DataFrame) -> DataFrame:
    """Return the newest version of each document of a table of changes, as docs/spark-sinks.md does."""
    return changes.sparkSession.sql(
        """
        SELECT newest.* FROM (SELECT max_by(struct(*), seqno) AS newest FROM {changes} GROUP BY collection_id, key)
        WHERE newest.event = 'mutation'
        """,
        changes=changes,
    )


def fail_over_with_losses(cluster: Cluster, node: int) -> None:
    """Fail a node over. The last writes of each of its vbuckets are on no other node, and are lost."""
    cluster.set_lag(3)
    for number in range(100):
        cluster.upsert(f"key {number}", b"lost on node %d" % node)
    cluster.failover(node)
    cluster.set_lag(0)


def test_a_table_of_changes_has_each_change_once_and_none_that_was_lost(spark: SparkSession, tmp_path: Path) -> None:
    with Cluster(nodes=4, vbuckets=8, replicas=2, seed=1) as cluster:
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        path, changes = str(tmp_path / "changes"), str(tmp_path / "checkpoint")
        query = dcp.spark.append(spark, cluster.url, path, checkpoint=changes)
        query.processAllAvailable()
        fail_over_with_losses(cluster, 0)
        replace_and_delete(cluster)
        query.processAllAvailable()
        query.stop()
        fail_over_with_losses(cluster, 1)
        query = dcp.spark.append(spark, cluster.url, path, checkpoint=changes, max_offsets=50)
        query.processAllAvailable()
        query.stop()
        table = spark.read.parquet(path)
        assert table.where("event = 'rollback'").count() == 0
        assert table.select("vbucket", "seqno").distinct().count() == table.count()
        assert documents(newest(table)) == truth(cluster)


def test_a_table_that_lacks_purged_deletions_is_not_continued(spark: SparkSession, tmp_path: Path) -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.load(20)

        def append() -> None:
            once = {"availableNow": True}
            at = str(tmp_path / "changes"), str(tmp_path / "checkpoint")
            dcp.spark.append(spark, cluster.url, at[0], checkpoint=at[1], trigger=once).awaitTermination(200)

        append()
        for key in list(cluster.truth())[:10]:
            cluster.delete(key)
        cluster.snapshot()
        cluster.purge()
        with pytest.raises(Exception, match="RollbackError"):
            append()


def test_a_table_with_other_columns_is_refused(spark: SparkSession, tmp_path: Path, cluster: Cluster) -> None:
    spark.sql("CREATE TABLE other_columns (vbucket int, seqno string) USING parquet")
    try:
        with pytest.raises(dcp.UsageError, match="column seqno of type bigint, found string: add it, or choose others"):
            dcp.spark.mirror(spark, cluster.url, "other_columns", checkpoint=str(tmp_path))
    finally:
        spark.sql("DROP TABLE other_columns")


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"columns": "lock_time"}, "lock_time of type bigint"),
        ({"document_schema": "id bigint"}, "document of type struct<id:bigint>"),
        ({}, "value of type binary"),
    ],
)
def test_a_table_needs_the_chosen_columns_only(
    spark: SparkSession, tmp_path: Path, cluster: Cluster, options: dict[str, Any], missing: str
) -> None:
    identity, document = "vbucket int, seqno bigint, collection_id bigint, key binary", "cas bigint, flags bigint"
    spark.sql(f"CREATE TABLE narrow ({identity}, {document}, expiry bigint, datatype int) USING parquet")
    try:
        with pytest.raises(dcp.UsageError, match=f"table narrow: expected a column {missing}, found none"):
            dcp.spark.mirror(spark, cluster.url, "narrow", checkpoint=str(tmp_path), **options)
    finally:
        spark.sql("DROP TABLE narrow")


def test_options_are_those_of_the_source(spark: SparkSession, tmp_path: Path, cluster: Cluster) -> None:
    for call in (dcp.spark.append, dcp.spark.mirror):
        with pytest.raises(dcp.UsageError, match="vbuckets: expected"):
            call(spark, cluster.url, "t", checkpoint=str(tmp_path), vbuckets="many")
        with pytest.raises(dcp.UsageError, match=r"keys: expected names without commas, found 'a,b,c'"):
            call(spark, cluster.url, "t", checkpoint=str(tmp_path), keys=("a", "b,c"))


@pytest.fixture
def merging(tmp_path: Path) -> Lake:
    assert FORMAT is not None
    return FORMAT


@with_merge
def test_changes_are_appended_to_a_table_of_a_catalog(spark: SparkSession, tmp_path: Path, merging: Lake) -> None:
    table = f"{merging.schema}.changes"
    with Cluster(nodes=2, vbuckets=8, replicas=1) as cluster:
        cluster.load(50)
        query = dcp.spark.append(
            spark,
            cluster.url,
            table,
            checkpoint=str(tmp_path),
            format=merging.format,
            columns=["event", "seqno", "collection_id", "key", "value", "cas"],
        )
        query.processAllAvailable()
        cluster.delete("key-0000000003")
        query.processAllAvailable()
        query.stop()
        assert documents(newest(spark.table(table))) == truth(cluster)
        assert spark.table(table).count() == 51


@with_merge
def test_a_mirror_has_the_documents_of_the_bucket_after_lossy_failovers_and_restarts(
    spark: SparkSession, tmp_path: Path, merging: Lake
) -> None:
    table = f"{merging.schema}.documents"
    with Cluster(nodes=4, vbuckets=8, replicas=2, seed=1) as cluster:

        def check(**options: Any) -> None:
            at = str(tmp_path / "checkpoint")
            query = dcp.spark.mirror(spark, cluster.url, table, checkpoint=at, format=merging.format, **options)
            query.processAllAvailable()
            query.stop()
            assert documents(spark.table(table)) == truth(cluster)

        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        check(max_offsets=80)
        replace_and_delete(cluster)
        fail_over_with_losses(cluster, 0)
        for number in range(60):
            cluster.upsert(f"new {number}", b"1")
        check()
        # A failover that loses what every copy had: no option can rule that out.
        cluster.failover(1, lose=20)
        cluster.upsert("new", b"{}")
        check()


@with_merge
def test_a_mirror_forgets_documents_whose_deletions_were_purged(
    spark: SparkSession, tmp_path: Path, merging: Lake
) -> None:
    table = f"{merging.schema}.purged"
    with Cluster(vbuckets=2) as cluster:
        cluster.load(20)

        def check(checkpoint: str, **options: Any) -> None:
            at = str(tmp_path / checkpoint)
            query = dcp.spark.mirror(spark, cluster.url, table, checkpoint=at, format=merging.format, **options)
            query.processAllAvailable()
            query.stop()
            assert documents(spark.table(table)) == truth(cluster)

        check("first")
        for key in list(cluster.truth())[:4]:
            cluster.delete(key)
        cluster.snapshot()
        cluster.purge()
        cluster.upsert("new", b"{}")
        check("first", max_offsets=12)
        for key in list(cluster.truth())[:4]:
            cluster.delete(key)
        cluster.snapshot()
        cluster.purge()
        check("first", fail_on_data_loss=False)
        # A new checkpoint begins with what exists, and the table has what existed before.
        for key in list(cluster.truth())[:4]:
            cluster.delete(key)
        cluster.snapshot()
        cluster.purge()
        check("second", max_offsets=12)


@with_merge
def test_a_mirror_of_a_collection_has_typed_columns(spark: SparkSession, tmp_path: Path, merging: Lake) -> None:
    table = f"{merging.schema}.orders"
    with Cluster(vbuckets=4) as cluster:
        cluster.create_collection("_default", "orders")
        cluster.upsert("elsewhere", b"{}")
        cluster.upsert("one", '{"id": 1, "customer": {"city": "Ulm"}}', collection="_default.orders")
        cluster.upsert("two", '{"id": "2"}', collection="_default.orders")
        query = dcp.spark.mirror(
            spark,
            cluster.url,
            table,
            checkpoint=str(tmp_path),
            format=merging.format,
            collections="orders",
            key_format="string",
            columns="document",
            document_schema="id bigint, customer struct<city string>",
        )
        query.processAllAvailable()
        cluster.upsert("one", '{"id": 3, "customer": {"city": "Bonn"}}', collection="_default.orders")
        query.processAllAvailable()
        query.stop()
        rows = {row.key: row for row in spark.table(table).collect()}
        assert {*rows} == {"one", "two"}
        assert (rows["one"].document.id, rows["one"].document.customer.city, rows["one"].error) == (3, "Bonn", None)
        assert rows["two"].error.startswith("id: expected bigint")
        assert [*rows["one"].asDict()] == ["vbucket", "seqno", "collection_id", "key", "document", "error"]


@with_merge
@pytest.mark.parametrize("seed", range(2))
def test_a_mirror_agrees_with_the_cluster_after_random_failures(
    spark: SparkSession, tmp_path: Path, merging: Lake, seed: int
) -> None:
    with Schedule(spark, seed, tmp_path, merging) as schedule:
        schedule.run()
