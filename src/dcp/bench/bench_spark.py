"""Benchmark `spark`: a read into the noop sink, compared with tasks that receive the same bytes and discard them.

The floor, the least that any reader takes, receives what the read receives, over connections that are set up alike, and
yields the batches of the same rows, which its worker keeps since the first repetition. `prebuilt` does that without a
socket; `received` is the producer without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import dcp.spark
from dcp.bench.frames import KIB, MIB, Case
from dcp.bench.producer import producing
from dcp.bench.timing import Measurement, Sample, take_turns
from dcp.client.commands import CommandConnection
from dcp.client.connection_string import HostPort
from dcp.position import Progress
from dcp.session.events import StreamEnded
from dcp.spark.map_in_arrow import map_partitions
from dcp.spark.schema import SparkSchema
from dcp.spark.task import read_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ, SOURCE, FLOOR, PREBUILT, RECEIVED = "read", 'format("dcp")', "floor", "prebuilt", "received"
# Bytes of the bucket for each byte of `total`, with fewer repetitions: starting tasks takes a large part of short runs.
_SCALE, _FEWER = 10, 2
_TOTAL = 64 * MIB
CASES = tuple(Case(value=value, key=14, total=_SCALE * _TOTAL, in_cache=False) for value in (KIB, 128))
_BUFFER, _UNLIMITED = 1 << 20, 1 << 30


@dataclass(frozen=True)
class FloorTask:
    """Work of a task of the floor: how many bytes it receives, and how many rows they hold."""

    partition: dcp.spark.Partition
    bytes: int
    rows: int


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = _TOTAL) -> Iterator[Measurement]:
    """Measure each case with a bucket of 10 times `total` bytes."""
    with session() as spark:
        for case in cases:
            yield spark_case(spark, case.sized(_SCALE * total), max(1, repetitions // _FEWER))


@contextmanager
def session() -> Iterator[SparkSession]:
    """Start a local Spark session without progress output."""
    for library in ("pyspark", "pandas"):
        # Without pandas, mapInArrow fails only when it is used.
        import_module(library)
    from pyspark.sql import SparkSession

    options: dict[str, Any] = dcp.spark.session_options() | {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
    spark.dataSource.register(dcp.spark.DcpDataSource)
    try:
        yield spark
    finally:
        spark.stop()


def spark_case(spark: SparkSession, case: Case, repetitions: int) -> Measurement:
    """Measure one case."""
    with producing(max(1, case.total // (case.value + case.key + 64)), case.value) as url:
        plan = dcp.spark.plan(url, min_partitions=2)
        login = plan.options.login_url()
        floor_tasks = [floor_task(login, partition) for partition in plan.partitions]
        source = spark.read.format("dcp").options(url=url, minPartitions=2).load()
        contenders: dict[str, Callable[[], object]] = {
            READ: lambda: drain(dcp.spark.read(spark, plan)),
            SOURCE: lambda: drain(source),
            FLOOR: lambda: drain(frame_of(spark, plan, floor_tasks, login)),
            PREBUILT: lambda: drain(frame_of(spark, plan, floor_tasks, None)),
            RECEIVED: lambda: [list(received(login, task)) for task in floor_tasks],
        }
        times = take_turns(contenders, repetitions)
    rows_, bytes_ = sum(task.rows for task in floor_tasks), sum(task.bytes for task in floor_tasks)
    return Measurement("spark", case, {name: Sample(times[name], rows_, bytes_) for name in contenders})


def drain(frame: DataFrame) -> None:
    """Compute all rows of a DataFrame and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def frame_of(spark: SparkSession, plan: dcp.spark.Plan, floor_tasks: list[FloorTask], login: str | None) -> DataFrame:
    """Return a DataFrame of the floor; without a login, that of `prebuilt`."""

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from prebuilt(floor_tasks[number], kept(plan)[number], login)

    numbers = spark.range(0, len(floor_tasks), 1, len(floor_tasks))
    return map_partitions(numbers, tasks, SparkSchema(plan.options))


# Of one bucket at a time, in each worker process.
_KEPT: dict[str, list[list[pa.RecordBatch]]] = {}


def kept(plan: dcp.spark.Plan) -> list[list[pa.RecordBatch]]:
    """Return the batches of each partition, kept in this worker. All of them: Spark may give it any partition."""
    if plan.options.url not in _KEPT:
        _KEPT.clear()
        _KEPT[plan.options.url] = [list(read_partition(partition, plan.options)) for partition in plan.partitions]
    return _KEPT[plan.options.url]


def prebuilt(task: FloorTask, batches: list[pa.RecordBatch], login: str | None) -> Iterator[pa.RecordBatch]:
    """Yield each batch once the bytes for it have arrived; at once without a login."""
    arrived = iter([task.bytes]) if login is None else received(login, task)
    seen = done = 0
    for batch in batches:
        done += batch.num_rows
        while task.rows * seen < task.bytes * done and seen < task.bytes:
            seen = next(arrived)
        yield batch


def received(login: str, task: FloorTask) -> Iterator[int]:
    """Yield the number of bytes received so far. They are not decoded."""
    # Without flow control the node does not wait for acknowledgements, which a loop that decodes nothing cannot send.
    with dcp.connect(login, dcp_buffer_size=0) as client, closing(requested(client, task.partition)) as caller:
        room, seen = memoryview(bytearray(_BUFFER)), 0
        while seen < task.bytes:
            seen += caller._socket.recv_into(room)
            yield seen


def floor_task(login: str, partition: dcp.spark.Partition) -> FloorTask:
    """Count the bytes and rows of a partition, by reading it once."""
    with dcp.connect(login, dcp_buffer_size=0) as client, closing(requested(client, partition)) as caller:
        open_, bytes_, rows_ = len(partition.ranges), 0, 0
        while open_:
            with caller._session.buffer() as room:
                count = caller._socket.recv_into(room)
            events, _ = caller._session.received(count, 0, _UNLIMITED, _UNLIMITED)
            bytes_ += count
            rows_ += len(caller._session.take().batch)
            open_ -= sum(isinstance(event, StreamEnded) for event in events)
    return FloorTask(partition, bytes_, rows_)


def requested(client: dcp.Client, partition: dcp.spark.Partition) -> CommandConnection:
    """Return a connection on which the streams of a partition are requested."""
    node = client.map.owner(partition.ranges[0].vbucket)
    assert node is not None
    assert node.address.port is not None
    agent, address = client._agent, HostPort(node.address.host, node.address.port)
    caller = CommandConnection(agent.dialer(node)(), agent.connection_settings(xattrs=True), address, 60)
    for part in partition.ranges:
        caller._session.open(Progress(part.start), end=part.end)
    caller._socket.sendall(caller._session.outgoing())
    caller._socket.settimeout(60)
    return caller
