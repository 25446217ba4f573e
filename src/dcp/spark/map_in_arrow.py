"""A read as a DataFrame over mapInArrow, which is the fastest way for Arrow batches into Spark."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dcp.errors import LocalProtocolError
from dcp.spark.options import Options
from dcp.spark.planner import Plan, plan_for
from dcp.spark.schema import SparkSchema
from dcp.spark.task import read_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, source: str | Plan, **options: Any) -> DataFrame:
    """Return the changes of a bucket as a DataFrame.

    source: the URL of the bucket, couchbase://host/bucket, or a plan from `dcp.spark.plan`.
    options: those of docs/spark.md, with a URL only; names are case-insensitive, underscores are ignored.

    The read is planned here: every action on the DataFrame starts and ends at the same seqnos, and includes the rest of
    the snapshot that its end lies in. Raises LocalProtocolError for a wrong option.
    """
    if isinstance(source, Plan):
        if options:
            raise LocalProtocolError(f"options: expected none with a plan, found {', '.join(sorted(options))}")
        planned = source
    else:
        planned = plan_for(Options.of({"url": source, **options}), _parallelism(spark))
    partitions, chosen = planned.partitions, planned.options

    def dcp_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_partition(partitions[number], chosen)

    # One row with its number for each partition; its task reads that partition.
    numbers = spark.range(0, len(partitions), 1, max(1, len(partitions)))
    return map_partitions(numbers, dcp_changes, SparkSchema(chosen))


def map_partitions(
    numbers: DataFrame, tasks: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: SparkSchema
) -> DataFrame:
    """Return the DataFrame that `tasks` makes of partition numbers."""
    with warnings.catch_warnings():
        # mapInArrow checks the version of pandas, although only pyarrow is used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        return numbers.mapInArrow(tasks, schema.ddl)


def _parallelism(spark: SparkSession) -> int:
    """Return the number of cores of the session; 1 in Spark Connect, which has no SparkContext."""
    context = getattr(spark, "sparkContext", None)
    return 1 if context is None else int(context.defaultParallelism)
