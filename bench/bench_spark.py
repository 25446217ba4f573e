"""Spark: from the producer's sockets to the noop sink, against tasks that receive the same bytes and throw them away.

`python -m bench.bench_spark` runs it: it needs pyspark and a Java, and is not among the others for that reason.
The floor receives what the read receives, over connections that begin as its do, and yields a prebuilt batch as often
as it takes to have as many rows. `prebuilt` does that without a socket; `received` is the producer without Spark.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import dcp.spark
from bench.frames import Case
from bench.producer import producing
from bench.report import aligned
from bench.timing import Measurement, Sample, take_turns
from dcp.client.call import Caller
from dcp.progress import Progress
from dcp.session.events import Ended
from dcp.spark.schema import Schema
from dcp.spark.task import rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ, SOURCE, FLOOR, PREBUILT, RECEIVED = "read", 'format("dcp")', "floor", "prebuilt", "received"
COUNTS = {1024: 300_000, 128: 1_000_000}
_ROOM, _MANY = 1 << 20, 1 << 30
_BATCH = 1 << 20


@dataclass(frozen=True)
class Share:
    """What a task of the floor does: how many bytes it receives, and how many rows it makes of them."""

    partition: dcp.spark.Partition
    bytes: int
    rows: int


def run(spark: SparkSession, value: int, count: int, repetitions: int) -> Measurement:
    with producing(count, value) as url:
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
    return Measurement("spark", Case(value=value), {name: Sample(times[name], rows_, bytes_) for name in contenders})


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
    return numbers.mapInArrow(tasks, Schema(plan.options).ddl)


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
    where = node.address.host, node.address.port
    caller = Caller(client._connect(*where), client._wishes("bench", xattrs=True), *where, 60)
    for part in partition.ranges:
        caller._session.open(Progress(part.start), end=part.end)
    caller._socket.sendall(caller._session.outgoing())
    caller._socket.settimeout(60)
    return caller


def sample_of(plan: dcp.spark.Plan) -> pa.RecordBatch:
    """A batch of the rows, of a size that Spark likes, without memory of others in it."""
    first = next(rows(plan.partitions[0], plan.options))
    some = first.slice(0, max(1, first.num_rows * _BATCH // max(first.nbytes, _BATCH)))
    return pa.Table.from_batches([some]).combine_chunks().to_batches()[0]


def measured(repetitions: int = 5, share: float = 1.0) -> list[Measurement]:
    """Every case, in a session of its own."""
    from pyspark.sql import SparkSession

    options: dict[str, Any] = dcp.spark.session_options() | {"spark.ui.enabled": "false"}
    spark = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
    spark.dataSource.register(dcp.spark.DcpDataSource)
    try:
        return [run(spark, value, int(count * share), repetitions) for value, count in COUNTS.items()]
    finally:
        spark.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bench_spark", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5, help="turns of each contender")
    parser.add_argument("--share", type=float, default=1.0, help="of the rows, for a look")
    chosen = parser.parse_args(arguments)
    print(table(measured(chosen.repetitions, chosen.share)))


def table(found: list[Measurement]) -> str:
    lines = [["value", *(f"{name}: M rows/s" for name in found[0].samples), f"{READ} / {FLOOR}", f"{SOURCE} / {FLOOR}"]]
    for measured in found:
        speeds = [f"{1e3 / sample.best:.2f} (+{sample.noise:.0%})" for sample in measured.samples.values()]
        ratios = [f"{measured.speed(name, FLOOR) or 0:.2f}" for name in (READ, SOURCE)]
        lines.append([str(measured.case.value), *speeds, *ratios])
    return aligned(lines)


if __name__ == "__main__":
    main()
