"""A read as a DataFrame, over mapInArrow: the fastest road into Spark."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dcp.errors import LocalProtocolError
from dcp.spark.options import Options
from dcp.spark.planner import Plan, plan_for
from dcp.spark.schema import Schema
from dcp.spark.task import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, source: str | Plan, **options: Any) -> DataFrame:
    """The changes of a bucket, from a url with options, or as a plan says.

    What is read is planned here: every action on the DataFrame goes from the same start to the same end, and on
    to the end of the snapshot in which that lies.
    """
    if isinstance(source, Plan):
        if options:
            raise LocalProtocolError(f"options: expected none beside a plan, found {', '.join(sorted(options))}")
        planned = source
    else:
        planned = plan_for(Options.of({"url": source, **options}), _parallelism(spark))
    partitions, chosen = planned.partitions, planned.options

    def dcp_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from rows(partitions[number], chosen)

    numbers = spark.range(0, len(partitions), 1, max(1, len(partitions)))
    return in_arrow(numbers, dcp_changes, Schema(chosen))


def in_arrow(
    numbers: DataFrame, tasks: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: Schema
) -> DataFrame:
    """What tasks make of numbers."""
    with warnings.catch_warnings():
        # Spark looks at the version of pandas, of which nothing is used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        return numbers.mapInArrow(tasks, schema.ddl)


def _parallelism(spark: SparkSession) -> int:
    """A session of Spark Connect has no context here."""
    context = getattr(spark, "sparkContext", None)
    return 1 if context is None else int(context.defaultParallelism)
