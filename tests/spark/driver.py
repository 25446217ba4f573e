"""A Spark driver as a process: `python -m tests.spark.driver MASTER LAKE [once]`, with the URL in the environment.

It reads the bucket into LAKE/batch, and then appends its changes as docs/spark-sinks.md does: without an end, or up to
now.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import dcp.spark
from tests.spark.recipes import recipes

URL = "DCP_TEST_URL"
# Printed after the batch read.
READ = "the bucket is read"
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
    # Each shuffle partition is a task, and there is little to shuffle.
    "spark.sql.shuffle.partitions": "4",
    # A task that is slower than others gets a second attempt on the other worker, while the first one runs.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1",
    "spark.speculation.efficiency.enabled": "false",
}


def main(master: str, lake: str, *mode: str) -> None:
    """Start a session and run the job in it."""
    builder = SparkSession.builder.master(master).config(map=SETTINGS)
    spark = builder.config(map=dcp.spark.session_options()).getOrCreate()
    try:
        run(spark, lake, *mode)
    finally:
        spark.stop()


def run(spark: SparkSession, lake: str, *mode: str) -> None:
    """Read and follow the bucket; with the mode `once`, only follow it up to now."""
    spark.dataSource.register(dcp.spark.DcpDataSource)
    guide = recipes(os.environ[URL], Path(lake))
    if not mode:
        dcp.spark.read(spark, guide.url, min_partitions=2).write.parquet(f"{lake}/batch")
        print(READ, flush=True)
    trigger = {"availableNow": True} if mode else None
    guide.append(spark, max_offsets=1000, trigger=trigger).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
