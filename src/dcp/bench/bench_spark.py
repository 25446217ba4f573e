"""Spark: from the producer's sockets to the noop sink, against tasks that receive the same bytes and throw them away.

The floor receives what the read receives, over connections that begin as its do, and yields a prebuilt batch as often
as it takes to have as many rows. `prebuilt` does that without a socket; `received` is the producer without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import dcp.spark
from dcp.bench.frames import KIB, MIB, Case
from dcp.bench.producer import producing
from dcp.bench.timing import Measurement, Sample, take_turns
from dcp.client.call import Caller
from dcp.progress import Progress
from dcp.session.events import Ended
from dcp.spark.ingest import in_arrow
from dcp.spark.schema import Schema
from dcp.spark.task import rows

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
    """What a task of the floor does: how many bytes it receives, and how many rows it makes of them."""

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
        plan = dcp.spark.plan(url, minPartitions=2)
        login = plan.options.login.into(plan.options.url)
        shares = [share_of(login, partition) for partition in plan.partitions]
        sample = sample_of(plan)
        source = spark.read.format("dcp").options(url=url, minPartitions=2).load()
        contenders: dict[str, Callable[[], object]] = {
            READ: lambda: drained(dcp.spark.read(spark, plan)),
            SOURCE: lambda: drained(source),
            FLOOR: lambda: drained(frame_of(spark, plan, shares, sample, login)),
            PREBUILT: lambda: drained(frame_of(spark, plan, shares, sample, None)),
            RECEIVED: lambda: [list(received(login, share)) for share in shares],
        }
        times = take_turns(contenders, repetitions)
    rows_, bytes_ = sum(share.rows for share in shares), sum(share.bytes for share in shares)
    return Measurement("spark", case, {name: Sample(times[name], rows_, bytes_) for name in contenders})


def drained(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def frame_of(
    spark: SparkSession, plan: dcp.spark.Plan, shares: list[Share], sample: pa.RecordBatch, login: str | None
) -> DataFrame:
    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from prebuilt(shares[number], sample, login)

    numbers = spark.range(0, len(shares), 1, len(shares))
    return in_arrow(numbers, tasks, Schema(plan.options))


def prebuilt(share: Share, sample: pa.RecordBatch, login: str | None) -> Iterator[pa.RecordBatch]:
    """As many rows as the share has, as the bytes for them come, if there is someone they come from."""
    arrived = iter([]) if login is None else received(login, share)
    done = 0
    for seen in arrived:
        while done + sample.num_rows <= share.rows * seen // share.bytes:
            yield sample
            done += sample.num_rows
    while done < share.rows:
        yield sample.slice(0, share.rows - done)
        done += sample.num_rows


def received(login: str, share: Share) -> Iterator[int]:
    """How many bytes of a share are there so far. Nobody looks at them."""
    with dcp.connect(login, dcp_buffer_size=0) as client:
        caller = asked(client, share.partition)
        room, seen = bytearray(_ROOM), 0
        while seen < share.bytes:
            seen += caller._socket.recv_into(room)
            yield seen
        caller.close()


def share_of(login: str, partition: dcp.spark.Partition) -> Share:
    """Counts once what the floor will receive without looking."""
    with dcp.connect(login, dcp_buffer_size=0) as client:
        caller = asked(client, partition)
        open_, bytes_, rows_ = len(partition.ranges), 0, 0
        while open_:
            with caller._session.buffer() as room:
                count = caller._socket.recv_into(room)
            events, _ = caller._session.received(count, 0, _MANY, _MANY)
            bytes_ += count
            rows_ += len(caller._session.take().batch)
            open_ -= sum(isinstance(event, Ended) for event in events)
        caller.close()
    return Share(partition, bytes_, rows_)


def asked(client: dcp.Client, partition: dcp.spark.Partition) -> Caller:
    """A connection that the changes of a partition are about to come on."""
    node = client.map.owner(partition.ranges[0].vbucket)
    assert node is not None
    assert node.address.port is not None
    access = client._access
    caller = Caller(access.dialer(node)(), access.wishes(xattrs=True), node.address.host, node.address.port, 60)
    for part in partition.ranges:
        caller._session.open(Progress(part.start), end=part.end)
    caller._socket.sendall(caller._session.outgoing())
    caller._socket.settimeout(60)
    return caller


def sample_of(plan: dcp.spark.Plan) -> pa.RecordBatch:
    """A batch as the read makes them, without memory of others in it."""
    first = next(rows(plan.partitions[0], plan.options))
    return pa.Table.from_batches([first]).combine_chunks().to_batches()[0]
