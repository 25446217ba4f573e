"""Passwords are in nothing that Spark shows or stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest

import dcp.spark
from dcp.embedded import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = ["jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/"]
ANSWERS = ["environment", "jobs", "stages?details=true", "allexecutors", "storage/rdd"]


def pages(spark: SparkSession) -> Iterator[str]:
    """Yield the pages and API answers of the session's web server, about all queries so far."""
    base = spark.sparkContext.uiWebUrl
    api = f"api/v1/applications/{spark.sparkContext.applicationId}"
    ran = json.loads(text(f"{base}/{api}/sql?length=1000"))
    yield json.dumps(ran)
    for path in [*PAGES, *(f"{api}/{answer}" for answer in ANSWERS)]:
        yield text(f"{base}/{path}")
    for execution in ran[-5:]:
        yield text(f"{base}/SQL/execution/?id={execution['id']}")


def text(url: str) -> str:
    """Return the body of a page."""
    with urlopen(url) as answer:
        return str(answer.read(), "utf-8")


def test_the_password_is_on_no_page_in_no_plan_and_in_no_file(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.load(10)
    password = cluster.credentials.password
    scheme, _, rest = cluster.url.partition("://")
    apart = {"url": f"{scheme}://{rest.partition('@')[2]}", "username": "dcp", "password": password}
    for frame in (
        dcp.spark.read(spark, cluster.url),
        spark.read.format("dcp").options(url=cluster.url).load(),
        spark.read.format("dcp").options(**apart).load(),
    ):
        frame.explain(True)
        assert frame.count() == 10
    stream = spark.readStream.format("dcp").options(**apart, startingOffsets="earliest").load()
    written = stream.writeStream.format("json").option("checkpointLocation", str(tmp_path / "log"))
    query = written.trigger(availableNow=True).start(str(tmp_path / "rows"))
    assert query.awaitTermination(200)
    query.explain(True)
    plans = capsys.readouterr().out
    assert plans.count("Physical Plan") == 4
    shown = [plans, *(progress.json for progress in query.recentProgress), *pages(spark)]
    assert any("BatchScan dcp" in page for page in shown[1:])
    assert [page for page in shown if password in page] == []
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(b"positions" in file.read_bytes() for file in files)
    assert [file for file in files if password.encode() in file.read_bytes()] == []
