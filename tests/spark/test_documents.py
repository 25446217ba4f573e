"""Typed documents in Spark: the rows of `from_json`, but for the differences that the page names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dcp.columns.document_schema import document_type, spark_ddl
from dcp.embedded import Cluster
from tests.documents.meaning import RULES, SAME
from tests.documents.test_streams import BAD, SCHEMA
from tests.spark.frames import BOTH_WAYS, Read

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def plain(cell: Any) -> Any:
    """Return a cell of Spark as the rules have it: times in UTC, maps as pairs."""
    if hasattr(cell, "asDict"):
        return cell.asDict()
    if isinstance(cell, dict):
        return list(cell.items())
    return bytes(cell) if isinstance(cell, bytearray) else cell


def without_zone(cell: Any) -> Any:
    return cell.replace(tzinfo=None) if getattr(cell, "tzinfo", None) is not None else cell


def test_from_json_differs_where_the_page_says_so(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        for rule in RULES:
            text = spark.createDataFrame([(rule.text,)], "v string")
            schema = f"a {spark_ddl(document_type(rule.type))}"
            shown = text.select(F.from_json("v", schema).alias("d"))
            (row,) = shown.select(F.col("d.a").cast("string") if "timestamp" in rule.type else F.col("d.a")).collect()
            expected = rule.found if rule.from_json == SAME else rule.from_json
            found = plain(row[0])
            if "timestamp" in rule.type and expected is not None:
                expected = str(without_zone(expected))
            assert found == expected, rule.what
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")


@BOTH_WAYS
def test_a_typed_read_has_the_documents_and_what_was_wrong(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    for number in range(50):
        cluster.upsert(f"good{number}", f'{{"n":{number},"customer":{{"city":"Graz"}},"tags":["a"]}}')
    for number, value in enumerate(BAD):
        cluster.upsert(f"bad{number}", value)
    frame = read(spark, cluster.url, columns="key,document", document_schema=SCHEMA)
    assert frame.columns == ["key", "document", "error"]
    rows = {bytes(row.key): row for row in frame.collect()}
    assert rows[b"good7"].document.asDict(recursive=True) == {
        "n": 7,
        "total": None,
        "customer": {"city": "Graz"},
        "tags": ["a"],
    }
    assert {row.error for key, row in rows.items() if key.startswith(b"good")} == {None}
    for number, error in enumerate(BAD.values()):
        assert rows[b"bad%d" % number].error.startswith(error)


@BOTH_WAYS
def test_a_condition_selects_rows_and_keeps_what_it_cannot_tell(
    spark: SparkSession, cluster: Cluster, read: Read
) -> None:
    for number in range(50):
        cluster.upsert(f"k{number}", f'{{"type":"{"order" if number % 2 else "user"}","n":{number}}}')
    cluster.upsert("image", b"\x89PNG")
    frame = read(spark, cluster.url, columns="key", where="type = 'order' and n < 10", keys="k*,image")
    assert sorted(bytes(row.key) for row in frame.collect()) == [b"image", *(b"k%d" % n for n in range(1, 10, 2))]
    failing = read(spark, cluster.url, columns="key", where="type = 'order'", on_bad_document="fail")
    with pytest.raises(Exception, match=r"document 'image' .*: document: expected JSON"):
        failing.collect()


def test_a_stream_goes_on_past_bad_documents(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    def run() -> None:
        changes = spark.readStream.format("dcp").options(
            url=cluster.url, startingOffsets="earliest", columns="key,document", documentSchema="n bigint"
        )
        rows = changes.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        rows.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()

    cluster.upsert("k1", '{"n":1}')
    cluster.upsert("image", b"\x89PNG")
    run()
    cluster.upsert("k2", '{"n":"2"}')
    run()
    found = {bytes(row.key): row for row in spark.read.parquet(str(tmp_path / "rows")).collect()}
    assert {key: row.document and row.document.n for key, row in found.items()} == {
        b"k1": 1,
        b"image": None,
        b"k2": None,
    }
    assert found[b"k2"].error == 'n: expected bigint, found "2"'
    assert found[b"image"].error.startswith("document: expected JSON")


def test_the_struct_of_a_given_schema_is_that_of_the_documents(spark: SparkSession, cluster: Cluster) -> None:
    cluster.upsert("k1", '{"a b":{"c":[1.5,null]},"d":"2026-01-01"}')
    schema = "key binary, document struct<`a b`: struct<c: array<decimal(3,1)>>, d: date>, error string"
    (row,) = spark.read.format("dcp").schema(schema).options(url=cluster.url).load().collect()
    assert str(row.document["a b"].c) == "[Decimal('1.5'), None]"
    assert str(row.document.d) == "2026-01-01"
    lacking = spark.read.format("dcp").schema("key binary, document struct<d: date>").options(url=cluster.url)
    with pytest.raises(Exception, match="schema: expected the column error as well"):
        lacking.load().collect()


def test_values_that_are_no_text_are_set_aside_with_their_bytes(spark: SparkSession, cluster: Cluster) -> None:
    cluster.upsert("k1", b"text")
    cluster.upsert("k2", b"\xff")
    options = {"url": cluster.url, "columns": "key,value,bad_value", "valueFormat": "string"}
    frame = spark.read.format("dcp").options(**options).load()
    rows = {bytes(row.key): (row.value, row.bad_value and bytes(row.bad_value), row.error) for row in frame.collect()}
    assert rows == {b"k1": ("text", None, None), b"k2": (None, b"\xff", "value: not UTF-8")}
    failing = spark.read.format("dcp").options(**options, onBadValue="fail").load()
    with pytest.raises(Exception, match=r"document .k2. .*: value: expected UTF-8"):
        failing.collect()
