"""Benchmark `spark_documents`: documents as typed columns in Spark, against bytes and `from_json`, from one cluster.

Each read goes into the noop sink. `from_json` parses what the read of bytes delivers, so the difference of the two is
its own time, on the cores of the session. What decoding takes is measured beside it, in this process, on one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING

from dcp.bench import bench_documents
from dcp.bench.bench_documents import ALL, NONE
from dcp.bench.bench_spark import drain, session
from dcp.bench.frames import CACHED, MIB, Case
from dcp.bench.producer import producing
from dcp.bench.timing import Measurement, Sample, take_turns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPED, FROM_JSON, BYTES = "documentSchema", "bytes, then from_json", "bytes"
CORES = 2
# Bytes of the bucket for each byte of `total`, a million documents by default, with fewer repetitions.
_SCALE, _FEWER = 5, 3
_TOTAL = 64 * MIB
_SIZE, _AROUND = bench_documents.IN_SPARK, 80
CASES = (Case(value=_SIZE, key=14, mix="documents", total=_SCALE * _TOTAL, in_cache=False),)


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = _TOTAL) -> Iterator[Measurement]:
    """Measure each case with a bucket of 5 times `total` bytes."""
    with session() as spark:
        for case in cases:
            yield typed_case(spark, case.sized(_SCALE * total), max(1, repetitions // _FEWER))


def typed_case(spark: SparkSession, case: Case, repetitions: int) -> Measurement:
    """Measure one case."""
    count = max(1, case.total // (case.value + _AROUND))
    # With what fills them up, these are 8 fields.
    schema = f"{bench_documents.schema_of(case.value)}, remark string"
    with producing(count, case.value, orders=True) as url:
        typed, plain = typed_read(spark, url, schema), bytes_read(spark, url)
        contenders: dict[str, Callable[[], object]] = {
            TYPED: lambda: drain(typed),
            FROM_JSON: lambda: drain(parsed(plain, schema)),
            BYTES: lambda: drain(plain),
        }
        times = take_turns(contenders, repetitions)
    samples = {name: Sample(times[name], count, count * (case.value + _AROUND)) for name in contenders}
    return Measurement("spark_documents", case, samples | decoding(case, schema, repetitions))


def typed_read(spark: SparkSession, url: str, schema: str) -> DataFrame:
    """Return the documents as one struct."""
    options = {"url": url, "minPartitions": CORES, "columns": "document", "documentSchema": schema}
    return spark.read.format("dcp").options(**options).load().select("document")


def bytes_read(spark: SparkSession, url: str) -> DataFrame:
    """Return the documents as bytes."""
    return spark.read.format("dcp").options(url=url, minPartitions=CORES, columns="value").load().select("value")


def parsed(values: DataFrame, schema: str) -> DataFrame:
    """Return the documents of bytes, parsed by Spark."""
    from pyspark.sql.functions import col, from_json

    return values.select(from_json(col("value").cast("string"), schema).alias("document"))


def decoding(case: Case, schema: str, repetitions: int) -> dict[str, Sample]:
    """Return what the same documents take without Spark."""
    chance = Random(case.value)
    count = min(CACHED, case.total) // (case.value + _AROUND) + 1
    wire = b"".join(
        bench_documents.frame(number, bench_documents.order(case.value, number, chance))
        for number in range(1, count + 1)
    )
    times = take_turns(
        {ALL: bench_documents.decode(wire, schema), NONE: bench_documents.decode(wire, None)}, repetitions
    )
    return {name: Sample(times[name], count, len(wire)) for name in times}
