"""Spark Connect: reads, streams and tables work as in a classic session, and no password is written anywhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dcp
import dcp.spark
from dcp.embedded import Cluster
from tests.spark.lakes import DELTA, NONE, lake
from tests.spark.recipes import recipes
from tests.spark.rows import Documents, replace_and_delete, truth
from tests.spark.test_secrets import pages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = lake()
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
ONCE = {"availableNow": True}


def documents(frame: DataFrame) -> Documents:
    """Return value and CAS by key. Fail if a key is there twice."""
    rows = frame.select("key", "value", "cas").toArrow().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: (row["value"], row["cas"]) for row in rows}


def fill(cluster: Cluster) -> None:
    """Write the documents `key 0` to `key 199`."""
    for number in range(200):
        cluster.upsert(f"key {number}", b"1")


def without_login(cluster: Cluster) -> str:
    """Return the URL of a cluster without user and password."""
    scheme, _, rest = cluster.url.partition("://")
    return f"{scheme}://{rest.partition('@')[2]}"


@pytest.fixture
def login(cluster: Cluster, tmp_path: Path) -> dict[str, Any]:
    """Return options with the password in a file."""
    file = tmp_path / "password"
    file.write_text(cluster.credentials.password)
    return {"username": cluster.credentials.username, "password_file": str(file)}


def test_both_reads_have_all_documents(connect: SparkSession, cluster: Cluster) -> None:
    cluster.load(100)
    assert documents(dcp.spark.read(connect, cluster.url)) == truth(cluster)
    assert documents(connect.read.format("dcp").options(url=cluster.url).load()) == truth(cluster)
    plan = dcp.spark.plan(cluster.url, newest_only=True)
    assert documents(dcp.spark.read(connect, plan)) == truth(cluster)


def test_a_read_has_a_task_for_each_core(connect: SparkSession) -> None:
    """The number is that of the classic session, which this one takes from a plan."""
    with Cluster(vbuckets=8) as cluster:
        cluster.load(100)
        rows = dcp.spark.read(connect, cluster.url, columns="seqno")
        assert rows.selectExpr("spark_partition_id()").distinct().count() == 2


def test_a_stream_calls_a_function_with_each_batch(connect: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(30)
    rows = str(tmp_path / "rows")

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{rows}/batch={number}")

    changes = connect.readStream.format("dcp").options(url=cluster.url, startingOffsets="earliest").load()
    query = changes.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "log"))
    query.trigger(availableNow=True).start().awaitTermination(200)
    assert documents(connect.read.parquet(rows)) == truth(cluster)


def test_changes_are_appended_to_a_table(
    connect: SparkSession, cluster: Cluster, tmp_path: Path, login: dict[str, Any]
) -> None:
    guide = recipes(without_login(cluster), tmp_path)
    for change in (fill, replace_and_delete):
        change(cluster)
        assert guide.append(connect, trigger=ONCE, **login).awaitTermination(200)
        assert documents(guide.documents(connect)) == truth(cluster)


@pytest.mark.skipif(FORMAT is None, reason=NONE)
def test_a_table_is_kept_equal_to_the_bucket(
    connect: SparkSession, cluster: Cluster, tmp_path: Path, login: dict[str, Any]
) -> None:
    assert FORMAT is not None
    table = f"{FORMAT.schema}.over_connect"
    for change in (fill, replace_and_delete):
        change(cluster)
        query = dcp.spark.mirror(
            connect, without_login(cluster), table, checkpoint=str(tmp_path / "log"), format=FORMAT.format, **login
        )
        query.processAllAvailable()
        query.stop()
        assert documents(connect.table(table)) == truth(cluster)


def test_a_view_has_the_changes(connect: SparkSession, cluster: Cluster) -> None:
    cluster.load(10)
    connect.sql(f"CREATE OR REPLACE TEMPORARY VIEW changes USING dcp OPTIONS (url '{cluster.url}')")
    assert documents(connect.table("changes")) == truth(cluster)


def read_table(spark: SparkSession, statement: str) -> None:
    """Create a table, and read it."""
    spark.sql(statement)
    spark.table("changes_table").collect()


@pytest.mark.skipif(FORMAT is DELTA, reason="Delta's catalog refuses tables of data sources in Python itself")
@pytest.mark.parametrize("columns", ["", "(key binary)"])
def test_a_table_of_a_catalog_says_to_use_a_view(spark: SparkSession, cluster: Cluster, columns: str) -> None:
    try:
        with pytest.raises(Exception, match=r"CREATE TABLE: .* use CREATE TEMPORARY VIEW name USING dcp OPTIONS"):
            read_table(spark, f"CREATE TABLE changes_table {columns} USING dcp OPTIONS (url '{cluster.url}')")
    finally:
        spark.sql("DROP TABLE IF EXISTS changes_table")


def test_settings_for_a_server_can_be_set_and_need_no_java(
    connect: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("SPARK_REMOTE", "sc://example.com")
    settings = dcp.spark.session_options()
    assert settings == dcp.spark.session_options(remote=True)
    for name, value in settings.items():
        before = connect.conf.get(name, None)
        connect.conf.set(name, value)
        assert before is None or connect.conf.set(name, before) is None


def test_no_password_is_shown_where_it_is_not_an_option(
    spark: SparkSession, connect: SparkSession, cluster: Cluster, tmp_path: Path, login: dict[str, Any]
) -> None:
    cluster.load(10)
    url, password = without_login(cluster), cluster.credentials.password
    at = str(tmp_path / "rows"), str(tmp_path / "log")
    assert dcp.spark.append(connect, url, at[0], checkpoint=at[1], trigger=ONCE, **login).awaitTermination(200)
    options = {"url": url, "username": login["username"], "passwordFile": login["password_file"]}
    assert connect.read.format("dcp").options(**options).load().count() == 10
    # Its URL is in no option, and Spark does not show what is pickled.
    assert dcp.spark.read(connect, cluster.url).count() == 10
    shown = [*pages(spark)]
    assert any("BatchScan dcp" in page for page in shown)
    assert [page for page in shown if password in page] == []


@pytest.mark.parametrize("table", [dcp.spark.append, dcp.spark.mirror])
def test_a_password_that_would_be_shown_is_refused(
    connect: SparkSession, cluster: Cluster, tmp_path: Path, table: object
) -> None:
    assert callable(table)
    with pytest.raises(dcp.UsageError, match="password: expected it outside of url and options, since Spark Connect"):
        table(connect, cluster.url, "t", checkpoint=str(tmp_path))
    with pytest.raises(dcp.UsageError, match="password: expected it outside"):
        table(connect, without_login(cluster), "t", checkpoint=str(tmp_path), username="a", password="b")


@pytest.mark.parametrize(("session", "count"), [("default", 0), ("d1c5", 1)])
def test_a_password_that_was_shown_is_reported(
    session: str, count: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", session)
    for options in ({"url": "couchbase://a:secret@b/c"}, {"url": "couchbase://b/c", "username": "a"}):
        dcp.spark.DcpDataSource(options)
    assert caplog.text.count("password: Spark Connect wrote it to its pages") == count
    assert "secret" not in caplog.text


def test_credentials_come_from_a_function(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.load(10)
    found = cluster.credentials
    (tmp_path / "vault_of_test.py").write_text(f"def login():\n    return {found.username!r}, {found.password!r}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    plan = dcp.spark.plan(without_login(cluster), credential_provider="vault_of_test:login")
    spark.sparkContext.addPyFile(str(tmp_path / "vault_of_test.py"))
    assert dcp.spark.read(spark, plan).count() == 10
    for name, problem in (
        ("nowhere_module:login", "No module named"),
        ("vault_of_test", "expected the name of a function"),
        ("vault_of_test:absent", "no attribute 'absent'"),
        ("os:getcwd", "expected user and password from os:getcwd, found a str"),
    ):
        with pytest.raises(dcp.UsageError, match=f"credential provider: .*{problem}"):
            dcp.spark.plan(without_login(cluster), credential_provider=name)
