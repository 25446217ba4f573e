"""Spark: from the producer's sockets to the noop sink, against tasks that receive the same bytes and throw them away.

The floor receives what the read receives, over connections that begin as its do, and yields batches of the same rows
that its worker has kept since the first turn. `prebuilt` does that without a socket; `received` is the producer without
Spark.
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
# As many bytes of a bucket for each that is asked for, and fewer turns: to start tasks takes a part of short ones.
_SCALE, _FEWER = 10, 2
_TOTAL = 64 * MIB
CASES = tuple(Case(value=value, key=14, total=_SCALE * _TOTAL, in_cache=False) for value in (KIB, 128))
_ROOM, _MANY = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Share:
    """What a task of the floor does: how many bytes it receives, and how many rows these are."""

    partition: dcp.spark.Partition
    bytes: int
    rows: int


def run(cases: tuple[Case, ...] = CASES, *, repetitions: int = 15, total: int = _TOTAL) -> Iterator[Measurement]:
    with session() as spark:
        for case in cases:
            yield spark_case(spark, case.sized(_SCALE * total), max(1, repetitions // _FEWER))


@contextmanager
def session() -> Iterator[SparkSession]:
    """A local Spark of its own, which is quiet."""
    for library in ("pyspark", "pandas"):
        # Without pandas, Spark fails in the middle.
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
    with producing(max(1, case.total // (case.value + case.key + 64)), case.value) as url:
        plan = dcp.spark.plan(url, min_partitions=2)
        login = plan.options.credentials.add_to(plan.options.url)
        shares = [share_of(login, partition) for partition in plan.partitions]
        source = spark.read.format("dcp").options(url=url, minPartitions=2).load()
        contenders: dict[str, Callable[[], object]] = {
            READ: lambda: drained(dcp.spark.read(spark, plan)),
            SOURCE: lambda: drained(source),
            FLOOR: lambda: drained(frame_of(spark, plan, shares, login)),
            PREBUILT: lambda: drained(frame_of(spark, plan, shares, None)),
            RECEIVED: lambda: [list(received(login, share)) for share in shares],
        }
        times = take_turns(contenders, repetitions)
    rows_, bytes_ = sum(share.rows for share in shares), sum(share.bytes for share in shares)
    return Measurement("spark", case, {name: Sample(times[name], rows_, bytes_) for name in contenders})


def drained(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def frame_of(spark: SparkSession, plan: dcp.spark.Plan, shares: list[Share], login: str | None) -> DataFrame:
    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from prebuilt(shares[number], kept(plan)[number], login)

    numbers = spark.range(0, len(shares), 1, len(shares))
    return map_partitions(numbers, tasks, SparkSchema(plan.options))


_KEPT: dict[str, list[list[pa.RecordBatch]]] = {}


def kept(plan: dcp.spark.Plan) -> list[list[pa.RecordBatch]]:
    """What the read makes of each partition, in the memory of this worker. Nobody knows which of them it will get."""
    if plan.options.url not in _KEPT:
        _KEPT.clear()
        _KEPT[plan.options.url] = [list(read_partition(partition, plan.options)) for partition in plan.partitions]
    return _KEPT[plan.options.url]


def prebuilt(share: Share, batches: list[pa.RecordBatch], login: str | None) -> Iterator[pa.RecordBatch]:
    """Each batch as soon as the bytes for it came, if there is someone they come from."""
    arrived = iter([share.bytes]) if login is None else received(login, share)
    seen = done = 0
    for batch in batches:
        done += batch.num_rows
        while share.rows * seen < share.bytes * done and seen < share.bytes:
            seen = next(arrived)
        yield batch


def received(login: str, share: Share) -> Iterator[int]:
    """How many bytes of a share are there so far. Nobody looks at them."""
    with dcp.connect(login, dcp_buffer_size=0) as client, closing(asked(client, share.partition)) as caller:
        room, seen = bytearray(_ROOM), 0
        while seen < share.bytes:
            seen += caller._socket.recv_into(room)
            yield seen


def share_of(login: str, partition: dcp.spark.Partition) -> Share:
    """Counts once what the floor will receive without looking."""
    with dcp.connect(login, dcp_buffer_size=0) as client, closing(asked(client, partition)) as caller:
        open_, bytes_, rows_ = len(partition.ranges), 0, 0
        while open_:
            with caller._session.buffer() as room:
                count = caller._socket.recv_into(room)
            events, _ = caller._session.received(count, 0, _MANY, _MANY)
            bytes_ += count
            rows_ += len(caller._session.take().batch)
            open_ -= sum(isinstance(event, StreamEnded) for event in events)
    return Share(partition, bytes_, rows_)


def asked(client: dcp.Client, partition: dcp.spark.Partition) -> CommandConnection:
    """A connection that the changes of a partition are about to come on."""
    node = client.map.owner(partition.ranges[0].vbucket)
    assert node is not None
    assert node.address.port is not None
    agent = client._agent
    address = HostPort(node.address.host, node.address.port)
    caller = CommandConnection(agent.dialer(node)(), agent.connection_settings(xattrs=True), address, 60)
    for part in partition.ranges:
        caller._session.open(Progress(part.start), end=part.end)
    caller._socket.sendall(caller._session.outgoing())
    caller._socket.settimeout(60)
    return caller
