"""Batches of a task: their types, and their sizes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.columns.schema import columns_of
from dcp.spark import task
from dcp.spark.options import Options
from dcp.spark.schema import Schema
from dcp.wire.dcp import DCP
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic

PLAIN = {pa.string(), pa.binary(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")}
SEQNO = (1 << 64) - 1


def mutation(columns: tuple[str, ...]) -> pa.RecordBatch:
    fields = {"seqno": SEQNO, "rev_seqno": 2, "flags": 0xFFFF_FFFF, "expiry": 0, "lock_time": 0, "nru": 0}
    decoder = dcp.Decoder(columns=columns)
    decoder.feed(dcp.encode(Frame("mutation", Magic.REQUEST, vbucket=0xFFFF, fields=fields, key=b"k", value=b"v")))
    return decoder.take().to_arrow()


def test_every_column_has_a_type_that_spark_has() -> None:
    names = tuple(columns_of(DCP))
    schema = Schema(Options("", columns=names))
    assert set(schema.arrow.types) <= PLAIN
    (row,) = schema.plain(mutation(names)).to_pylist()
    assert row["event"] == "mutation"
    assert (row["vbucket"], row["flags"], row["key"], row["delete_time"]) == (0xFFFF, 0xFFFF_FFFF, b"k", None)
    # By its bits, since Spark has no number so large.
    assert row["seqno"] == -1


def test_text_is_checked() -> None:
    columns = ("key", "value")
    batch = mutation(columns)
    schema = Schema(Options("", columns=columns, key_format="string"))
    assert schema.plain(batch).to_pylist() == [{"key": "k", "value": b"v"}]
    broken = pa.record_batch([pa.array([b"\xff"]), pa.array([b""])], names=columns)
    with pytest.raises(dcp.LocalProtocolError, match="keyFormat: expected binary"):
        schema.plain(broken)


SIZES = st.lists(
    st.lists(st.sampled_from([0, 1, 1000, 300_000, 3 << 20, 17 << 20]), min_size=1, max_size=5), max_size=5
)


@given(SIZES)
def test_batches_are_neither_small_nor_large(sizes: list[list[int]]) -> None:
    values = {size: bytes(size) for row in sizes for size in row}
    given = [pa.record_batch({"v": pa.array([values[size] for size in row], pa.binary())}) for row in sizes]
    made = list(task.sized(given))
    lengths = [len(value) for batch in made for value in batch.column(0).to_pylist()]
    assert lengths == [size for row in sizes for size in row]
    assert all(batch.nbytes <= 4 << 20 or batch.num_rows == 1 for batch in made)
    if all(batch.nbytes < 1 << 20 for batch in given):
        assert all(batch.nbytes >= 1 << 20 for batch in made[:-1])
