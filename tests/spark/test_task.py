"""Batches of a task: their types, and their sizes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp.columns.schema import columns_of
from dcp.embedded import Cluster
from dcp.spark import Plan, plan, task
from dcp.spark.options import Options
from dcp.spark.schema import Schema
from dcp.wire.dcp import DCP
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from tests.waiting import until

PLAIN = {pa.string(), pa.binary(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")}
SEQNO = (1 << 64) - 1


def mutation(columns: tuple[str, ...], *keys: bytes) -> pa.RecordBatch:
    fields = {"seqno": SEQNO, "rev_seqno": 2, "flags": 0xFFFF_FFFF, "expiry": 0, "lock_time": 0, "nru": 0}
    decoder = dcp.Decoder(columns=columns, types="plain")
    for key in keys or (b"k",):
        decoder.feed(dcp.encode(Frame("mutation", Magic.REQUEST, vbucket=0xFFFF, fields=fields, key=key, value=b"v")))
    return decoder.take().to_arrow()


def test_every_column_has_a_type_that_spark_has() -> None:
    names = tuple(columns_of(DCP))
    schema = Schema(Options("", columns=names))
    assert set(schema.arrow.types) <= PLAIN
    batch = schema.checked(mutation(names))
    assert batch.schema == schema.arrow
    (row,) = batch.to_pylist()
    assert row["event"] == "mutation"
    assert (row["vbucket"], row["flags"], row["key"], row["delete_time"]) == (0xFFFF, 0xFFFF_FFFF, b"k", None)
    # By its bits, since Spark has no number so large.
    assert row["seqno"] == -1


def test_text_is_checked() -> None:
    columns = ("key", "value")
    batch = mutation(columns)
    schema = Schema(Options("", columns=columns, key_format="string"))
    assert schema.checked(batch).to_pylist() == [{"key": "k", "value": b"v"}]
    broken = pa.record_batch([pa.array([b"\xff"]), pa.array([b""])], names=columns)
    with pytest.raises(dcp.LocalProtocolError, match="keyFormat: expected binary"):
        schema.checked(broken)


SIZES = st.lists(
    st.lists(st.sampled_from([0, 1, 1000, 300_000, 3 << 20, 17 << 20]), min_size=1, max_size=5), max_size=5
)


@settings(max_examples=30)
@given(SIZES)
def test_batches_are_neither_small_nor_large(sizes: list[list[int]]) -> None:
    values = {size: bytes(size) for row in sizes for size in row}
    given = [pa.record_batch({"v": pa.array([values[size] for size in row], pa.binary())}) for row in sizes]
    made = list(task.sized((batch, batch.nbytes) for batch in given))
    lengths = [len(value) for batch in made for value in batch.column(0).to_pylist()]
    assert lengths == [size for row in sizes for size in row]
    assert all(batch.nbytes <= 4 << 20 or batch.num_rows == 1 for batch in made)
    if all(batch.nbytes < 1 << 20 for batch in given):
        assert all(batch.nbytes >= 1 << 20 for batch in made[:-1])


class Reader:
    """Keeps each row under its vbucket and seqno, and undoes what it is told to."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], dict[str, Any]] = {}
        self.went_back_to: list[tuple[int, int]] = []

    @property
    def rollbacks(self) -> int:
        return len(self.went_back_to)

    def read(self, plan: Plan) -> None:
        for partition in plan.partitions:
            for batch in task.rows(partition, plan.options):
                for row in batch.to_pylist():
                    self.take(row)

    def take(self, row: dict[str, Any]) -> None:
        if row["event"] == "rollback":
            self.went_back_to.append((row["vbucket"], row["seqno"]))
            kept = self.rows.items()
            self.rows = {at: row_ for at, row_ in kept if at[0] != row["vbucket"] or at[1] <= row["seqno"]}
        else:
            self.rows[row["vbucket"], row["seqno"]] = row

    @property
    def documents(self) -> dict[bytes, tuple[bytes, int]]:
        newest = {row["key"]: row for _, row in sorted(self.rows.items(), key=lambda item: item[0])}
        return {key: (row["value"], row["cas"]) for key, row in newest.items() if row["event"] == "mutation"}


def truth(cluster: Cluster, collection: str = "_default._default") -> dict[bytes, tuple[bytes, int]]:
    return {key: (document.value, document.cas) for key, document in cluster.truth(collection).items()}


@pytest.mark.parametrize("written", ["before the plan", "between plan and read", "after the read"])
def test_changes_that_a_failover_loses_are_undone_by_the_next_read(written: str) -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        reader = Reader()
        for number in range(200):
            cluster.upsert(f"key {number}", b"1")
        first = plan(cluster.url)
        reader.read(first)
        assert reader.documents == truth(cluster)
        for number in range(200, 210):
            cluster.upsert(f"key {number}", b"1")
        write(cluster, written == "before the plan")
        second = plan(cluster.url, start=first.end)
        write(cluster, written == "between plan and read")
        reader.read(second)
        write(cluster, written == "after the read")
        cluster.failover(0, lose=20)
        for number in range(30, 40):
            cluster.upsert(f"key {number}", b"3")
        third = plan(cluster.url, start=second.end)
        reader.read(third)
        assert reader.documents == truth(cluster)
        assert reader.rollbacks > 0


def write(cluster: Cluster, really: bool) -> None:
    """Some documents again, and some no more."""
    for number in range(60 if really else 0):
        cluster.upsert(f"key {number}", b"2")
        cluster.delete(f"key {number + 100}")


def test_a_task_has_one_connection_to_its_node_and_none_to_others() -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(600, value_size=10_000)
        planned = plan(f"{cluster.url}?dcp_buffer_size=100k&stats_interval=10ms", columns="collection,value")
        first = next(part for part in planned.partitions if part.node == cluster.addresses[0])
        batches = task.rows(first, planned.options)
        # There is more, which waits for this batch to be done with.
        next(batches)
        until(lambda: [traffic.connections for traffic in cluster.stats().values()] == [1, 0])
        assert cluster.stats()[0].streams > 0


def test_an_end_that_got_lost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_SILENCE", 0.0)
    with Cluster(nodes=2, vbuckets=2, replicas=1) as cluster:
        for number in range(50):
            cluster.upsert(f"key {number}", b"1")
        planned = plan(cluster.url)
        cluster.failover(0, lose=10)
        with pytest.raises(dcp.ServerError, match=r"planned up to seqno \d+, but the cluster lost changes since"):
            Reader().read(planned)
