"""A driver of its own: `python -m tests.spark.driver MASTER LAKE [once]`, with the url in the environment.

Reads the bucket into LAKE/batch, and then follows it as the guide does, for ever or up to now.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import dcp.spark
from tests.spark.recipes import recipes

URL = "DCP_TEST_URL"
# What is printed then.
READ = "the bucket is read"
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
    # There is little to shuffle, and each part of it is a task.
    "spark.sql.shuffle.partitions": "4",
    # A task that is slower than others gets a second attempt next to the first, on the other worker.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1",
    "spark.speculation.efficiency.enabled": "false",
}


def main(master: str, lake: str, *how: str) -> None:
    builder = SparkSession.builder.master(master).config(map=SETTINGS)
    spark = builder.config(map=dcp.spark.session_options()).getOrCreate()
    try:
        run(spark, lake, *how)
    finally:
        spark.stop()


def run(spark: SparkSession, lake: str, *how: str) -> None:
    spark.dataSource.register(dcp.spark.DcpDataSource)
    guide = recipes(os.environ[URL], Path(lake))
    if not how:
        dcp.spark.read(spark, guide.url, min_partitions=2).write.parquet(f"{lake}/batch")
        print(READ, flush=True)
    stream = guide.follow(spark, guide.upsert, maxOffsetsPerTrigger="1000")
    if how:
        stream = stream.trigger(availableNow=True)
    stream.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
