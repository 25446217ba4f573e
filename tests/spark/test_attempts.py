"""Tasks that are killed, stalled or cancelled: no row is lost or delivered twice, and no connection is left."""

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
from dcp.spark.task import WIRE_BYTES
from tests.spark.frames import BOTH_WAYS, Read
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def connections(cluster: Cluster) -> int:
    """Return the number of open connections to all nodes."""
    return sum(traffic.connections for traffic in cluster.stats().values())


def streams(cluster: Cluster) -> int:
    """Return the number of open streams of all nodes."""
    return sum(traffic.streams for traffic in cluster.stats().values())


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Let Spark pass rows to Python in batches of 100."""
    rows = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(rows, 100)
    yield
    spark.conf.unset(rows)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@BOTH_WAYS
def test_a_task_that_is_killed_is_retried(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    def kill_first_attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 1 and context.attemptNumber() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            attempt = pa.repeat(context.attemptNumber(), batch.num_rows).cast(pa.int32())
            yield pa.record_batch([batch.column(0), attempt], ["key", "attempt"])

    # Enough for about two batches from each node.
    cluster.load(4000, value_size=1000)
    frame = read(spark, cluster.url, columns="key,value").mapInArrow(kill_first_attempt, "key binary, attempt int")
    rows = frame.toArrow()
    assert sorted(rows["key"].to_pylist()) == sorted(cluster.truth())
    assert set(rows["attempt"].to_pylist()) == {1}
    until(lambda: connections(cluster) == 0)


@BOTH_WAYS
def test_a_limit_ends_stalled_tasks(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    # Enough for two batches from the other vbuckets of each node: Spark sees a batch only when the next one follows.
    cluster.load(8 * WIRE_BYTES // 1000, value_size=1000)
    stalled = tuple(partition.vbuckets[0] for partition in dcp.spark.plan(cluster.url).partitions)
    with cluster.fault("silent", vbuckets=stalled):
        assert len(read(spark, cluster.url).limit(3).collect()) == 3
        until(lambda: connections(cluster) == 0)


@BOTH_WAYS
def test_a_job_that_is_cancelled_leaves_no_connection(spark: SparkSession, cluster: Cluster, read: Read) -> None:
    from pyspark import InheritableThread

    cluster.load(100)
    errors: list[str] = []

    def count() -> None:
        spark.sparkContext.setJobGroup("stalled", "waits for silent nodes")
        try:
            read(spark, cluster.url).count()
        except Exception as error:
            errors.append(str(error))

    with cluster.fault("silent"):
        job = InheritableThread(target=count)
        job.start()
        until(lambda: streams(cluster) == 8)
        spark.sparkContext.cancelJobGroup("stalled")
        job.join()
        until(lambda: connections(cluster) == 0)
    assert ["cancelled" in text for text in errors] == [True]


def test_a_query_that_is_stopped_leaves_no_connection(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    cluster.load(100)
    changes = spark.readStream.format("dcp").options(url=cluster.url, startingOffsets="earliest").load()
    with cluster.fault("silent"):
        query = changes.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        until(lambda: streams(cluster) == 8)
        query.stop()
        until(lambda: connections(cluster) == 0)
    assert query.exception() is None
