"""Tasks that die, wait for nothing, or are stopped: no row is lost or doubled, and no connection is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import dcp.spark
from dcp.embedded import Cluster
from dcp.spark import task
from tests.spark.test_read import ROADS, Read
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def connections(cluster: Cluster) -> int:
    return sum(traffic.connections for traffic in cluster.stats().values())


def streams(cluster: Cluster) -> int:
    return sum(traffic.streams for traffic in cluster.stats().values())


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """What Python gets from Spark, a hundred rows at a time."""
    rows = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(rows, 100)
    yield
    spark.conf.unset(rows)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@ROADS
def test_a_task_that_dies_in_its_middle_is_tried_again(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    def dies_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 1 and context.attemptNumber() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            attempt = pa.repeat(context.attemptNumber(), batch.num_rows).cast(pa.int32())
            yield pa.record_batch([batch.column(0), attempt], ["key", "attempt"])

    # About two batches from each node.
    cluster.load(4000, value_size=1000)
    frame = read(spark, cluster.url, columns="key,value").mapInArrow(dies_at_first, "key binary, attempt int")
    rows = frame.toArrow()
    assert sorted(rows["key"].to_pylist()) == sorted(cluster.truth())
    assert set(rows["attempt"].to_pylist()) == {1}
    until(lambda: connections(cluster) == 0)


@ROADS
def test_a_limit_ends_tasks_that_wait(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    # Enough for two batches from the other vbuckets of each node: the second one pushes the end of the first to Spark.
    cluster.load(8 * task._ASKED // 1000, value_size=1000)
    waits = tuple(partition.vbuckets[0] for partition in dcp.spark.plan(cluster.url).partitions)
    with cluster.fault("silent", vbuckets=waits):
        assert len(read(spark, cluster.url).limit(3).collect()) == 3
        until(lambda: connections(cluster) == 0)


@ROADS
def test_a_job_that_is_cancelled_leaves_no_connection(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    from pyspark import InheritableThread

    cluster.load(100)
    told: list[str] = []

    def count() -> None:
        spark.sparkContext.setJobGroup("waits", "for what never comes")
        try:
            read(spark, cluster.url).count()
        except Exception as error:
            told.append(str(error))

    with cluster.fault("silent"):
        job = InheritableThread(target=count)
        job.start()
        until(lambda: streams(cluster) == 8)
        spark.sparkContext.cancelJobGroup("waits")
        job.join()
        until(lambda: connections(cluster) == 0)
    assert ["cancelled" in text for text in told] == [True]


def test_a_query_that_is_stopped_leaves_no_connection(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(100)
    changes = spark.readStream.format("dcp").options(url=cluster.url, startingOffsets="earliest").load()
    with cluster.fault("silent"):
        query = changes.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        until(lambda: streams(cluster) == 8)
        query.stop()
        until(lambda: connections(cluster) == 0)
    assert query.exception() is None
