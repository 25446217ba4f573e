"""Batches in Arrow libraries: equal values, shared memory, and memory that lives as long as it is used."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import dcp
from dcp.columns.batch import Bytes
from dcp.columns.schema import columns_of
from dcp.wire.document import join_xattrs, split_xattrs
from dcp.wire.frame import dialect_of, encode
from dcp.wire.framing import stream_id
from tests.reference import answer
from tests.strategies import Case, cases

np = pytest.importorskip("numpy", reason="columns are read as numpy arrays")
pa = pytest.importorskip("pyarrow", reason="columns are read with pyarrow")
cramjam = pytest.importorskip("cramjam", reason="values are compressed with cramjam")

ROOT = Path(__file__).parents[1]
NUMBERS = dict.fromkeys(["seqno", "rev_seqno", "flags", "expiry", "lock_time", "nru"], 0)
BODY = b'{"n": 17, "a body": "that no view has room for"}'


def frame(number: int) -> dcp.Frame:
    """Return a row; every so often one that fills every column."""
    value, datatype = {0: (b"", 0), 1: (BODY, 1), 2: (bytes(cramjam.snappy.compress_raw(BODY * 3)), 3)}.get(
        number % 5, (join_xattrs([(b"_sync", b"1" * number)], BODY[: number % 40]), 5)
    )
    fields = NUMBERS | {"seqno": number, "flags": 2**32 - 1, "rev_seqno": 2**64 - 1 - number}
    if number % 7 == 6:
        fields = {"seqno": number, "rev_seqno": 1, "delete_time": 1_700_000_000 + number}
    return dcp.Frame(
        "deletion" if number % 7 == 6 else "mutation",
        0x08 if number % 3 == 2 else 0x80,
        vbucket=number % 1024,
        cas=(1_700_000_000_000_000_000 + number * 10**6) & ~0xFFFF | 3,
        datatype=datatype,
        fields=fields,
        key=bytes([number % 3]) + b"a key of some length: %d" % number * (number % 4) + b".",
        value=value,
        frame_info=(stream_id(number),) if number % 3 == 2 else (),
    )


def marker(vbucket: int) -> dcp.Frame:
    fields = {"snapshot_start": 1, "snapshot_end": 2**63, "flags": 1}
    return dcp.Frame("snapshot_marker", 0x80, vbucket=vbucket, fields=fields)


ROWS = 300
DATA = b"".join(encode(marker(n)) for n in range(0, ROWS, 4)) + b"".join(encode(frame(n)) for n in range(ROWS))
EVERYTHING = [name for name in columns_of(dialect_of("dcp")) if name != "event_id"]


def batch_of(data: bytes = DATA, views: bool = False, **arguments: Any) -> dcp.Batch:
    decoder = dcp.Decoder(views=views, collections=True, **{"columns": EVERYTHING} | arguments)
    decoder.feed(data[: len(data) // 3])
    decoder.advance()
    decoder.feed(bytearray(data[len(data) // 3 :]))
    return decoder.take()


@pytest.fixture(params=[False, True], ids=["copied", "views"])
def batch(request: pytest.FixtureRequest) -> dcp.Batch:
    return batch_of(views=request.param)


def rows_of(batch: dcp.Batch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_arrow().to_pylist()
    return rows


# ------------------------------------------------------------------------------------- every library


def by_polars(batch: dcp.Batch) -> list[dict[str, Any]]:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    return list(polars.DataFrame(batch).to_dicts())


def by_duckdb(batch: dcp.Batch) -> list[dict[str, Any]]:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    found = duckdb.sql("from batch")
    # Conversion of a time with a zone to Python needs pytz.
    times = duckdb.sql("select epoch_us(timestamp) from batch").fetchall()
    named = [column for column in found.columns if column != "timestamp"]
    rows = [dict(zip(named, row, strict=True)) for row in found.select(*named).fetchall()]
    return [{"timestamp": _utc(us), **row} for row, (us,) in zip(rows, times, strict=True)]


def _utc(microseconds: int) -> Any:
    return pa.scalar(microseconds, pa.timestamp("us", "UTC")).as_py()


def by_table(batch: dcp.Batch) -> list[dict[str, Any]]:
    return list(pa.table(batch).to_pylist())


def by_reader(batch: dcp.Batch) -> list[dict[str, Any]]:
    return list(pa.RecordBatchReader.from_stream(batch).read_all().to_pylist())


def by_array(batch: dcp.Batch) -> list[dict[str, Any]]:
    return list(pa.array(batch).to_pylist())


@pytest.mark.parametrize("read", [by_polars, by_duckdb, by_table, by_reader, by_array])
def test_every_library_reads_the_same_rows(batch: dcp.Batch, read: Callable[[dcp.Batch], list[dict[str, Any]]]) -> None:
    assert read(batch) == rows_of(batch)


@pytest.mark.parametrize("views", [False, True])
def test_every_library_reads_the_same_maps(views: bool) -> None:
    sections = [split_xattrs(row["xattrs"] or b"")[0] for row in rows_of(batch_of(views=views))]
    expected = [[(name.decode(), text.decode()) for name, text in pairs] for pairs in sections]
    batch = batch_of(views=views, xattrs="map", columns=["xattrs"])
    for read in (rows_of, by_table, by_reader, by_array):
        assert [row["xattrs"] or [] for row in read(batch)] == expected
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    assert [_pairs(row["xattrs"]) for row in by_polars(batch)] == expected
    assert [_pairs(cell) for (cell,) in duckdb.sql("from batch").fetchall()] == expected


def _pairs(cell: Any) -> list[tuple[str, str]]:
    """Return the entries of a map, which is a dict in one library and a list of structs in another."""
    return list(cell.items()) if isinstance(cell, dict) else [tuple(pair.values()) for pair in cell or []]


def test_a_batch_with_maps_says_how_large_it_is() -> None:
    batch = batch_of(xattrs="map", columns=["xattrs"])
    assert batch.nbytes >= batch.to_arrow().nbytes


@pytest.mark.parametrize("capsule", [False, True], ids=["by pyarrow", "by itself"])
def test_pandas_reads_the_same_rows(batch: dcp.Batch, capsule: bool) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    if capsule and not hasattr(pandas.DataFrame, "from_arrow"):
        pytest.skip("pandas reads no capsules before 3.0")
    arrow = batch.to_arrow()
    frame = pandas.DataFrame.from_arrow(batch) if capsule else arrow.to_pandas(types_mapper=pandas.ArrowDtype)
    found = pa.RecordBatch.from_pandas(frame, preserve_index=False).to_pydict()
    expected = arrow.to_pydict()
    assert list(found) == list(expected)
    for name, column in expected.items():
        # Integers with nulls become floats there; these are all below 2**53.
        assert [None if value != value else value for value in found[name]] == column, name


def test_rows_of_no_batch_are_read_too() -> None:
    empty = batch_of(b"")
    assert by_table(empty) == by_reader(empty) == by_polars(empty) == by_array(empty) == []
    assert by_duckdb(empty) == []
    assert batch_of(b"", views=True).to_arrow().num_rows == 0


@given(cases())
@settings(deadline=None)
def test_numpy_looks_at_the_same_values_as_arrow(case: Case) -> None:
    decoder = dcp.Decoder(case.dialect, **vars(case.options), views=case.views)
    decoder.feed(case.data)
    decoder.advance()
    batch = decoder.take() if decoder.rows or decoder.new_controls else dcp.Decoder(case.dialect).take()
    expected = answer(case.data, case.dialect, case.options).rows
    assert batch.num_rows in (len(expected), 0)
    assert_numpy(batch)


def assert_numpy(batch: dcp.Batch) -> None:
    arrow, views = batch.to_arrow(), batch.to_numpy()
    arrow.validate(full=True)
    assert list(batch.schema.names) == arrow.schema.names
    flat = [column for column in batch.schema if column.format != "+m"]
    assert list(views) == [column.name for column in flat]
    for column in flat:
        found, cells = views[column.name], arrow.column(column.name)
        if isinstance(found, Bytes):
            data, ends = found.data.tobytes(), found.offsets.tolist()
            texts = [data[a:b] for a, b in pairwise(ends)]
            assert texts == [_bytes(cell) for cell in cells.to_pylist()]
            nulls = [False] * len(cells) if found.mask is None else found.mask.tolist()
            assert nulls == cells.is_null().to_pylist()
        elif not column.format.startswith("v"):
            assert _plain(found, batch, column.name) == _number(cells).to_pylist()
        assert np.ma.isMaskedArray(found) == (cells.null_count > 0 and not isinstance(found, Bytes))


def _bytes(cell: bytes | str | None) -> bytes:
    return cell.encode() if isinstance(cell, str) else cell or b""


def _number(cells: Any) -> Any:
    return cells.cast(pa.int64()) if pa.types.is_timestamp(cells.type) else cells


def _plain(found: Any, batch: dcp.Batch, name: str) -> list[Any]:
    if found.dtype.kind == "M":
        return list(found.astype("int64").tolist())
    return [batch.events[n] for n in found] if name == "event" else list(found.tolist())


# ----------------------------------------------------------------------------------------- capsules


def test_a_schema_is_read_before_there_are_rows() -> None:
    decoder = dcp.Decoder(columns=EVERYTHING, keys="utf8", on_bad_value="quarantine")
    schema = pa.schema(decoder.schema)
    assert schema == pa.schema(decoder.take()) == decoder.take().to_arrow().schema
    assert schema.field("key").type == pa.utf8()
    assert schema.field("event").type == pa.dictionary(pa.int8(), pa.utf8())
    assert schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert [field.name for field in schema if field.nullable] == [c.name for c in decoder.schema if c.nullable]


def test_each_capsule_is_of_its_kind(batch: dcp.Batch) -> None:
    schema, array = batch.__arrow_c_array__()
    assert "arrow_schema" in repr(schema)
    assert "arrow_array" in repr(array)
    assert "arrow_schema" in repr(batch.__arrow_c_schema__())
    assert "arrow_array_stream" in repr(batch.__arrow_c_stream__())


def test_a_batch_can_be_read_more_than_once(batch: dcp.Batch) -> None:
    first = rows_of(batch)
    assert rows_of(batch) == by_reader(batch) == by_table(batch) == first


def test_a_stream_has_one_batch_and_then_no_more(batch: dcp.Batch) -> None:
    reader = pa.RecordBatchReader.from_stream(batch)
    assert reader.read_next_batch().num_rows == ROWS
    for _ in range(2):
        with pytest.raises(StopIteration):
            reader.read_next_batch()


def test_a_batch_says_how_large_it_is(batch: dcp.Batch) -> None:
    assert len(batch) == batch.num_rows == ROWS
    assert len(batch.controls) == ROWS // 4
    assert repr(batch) == f"<Batch: {ROWS} rows, {len(EVERYTHING)} columns, {ROWS // 4} controls>"
    assert batch.flow_bytes == len(DATA)
    copied = [column for column in batch.to_arrow().columns if not pa.types.is_binary_view(column.type)]
    assert batch.nbytes >= sum(column.nbytes for column in copied if not pa.types.is_dictionary(column.type))


def test_the_numbers_of_events_are_positions_in_their_names(batch: dcp.Batch) -> None:
    assert batch.events == ("mutation", "deletion", "expiration", "prepare", "commit", "abort")
    names = [batch.events[number] for number in batch.to_numpy()["event"]]
    assert names == batch.to_arrow()["event"].to_pylist()


# ------------------------------------------------------------------------------------------- memory


def test_numpy_and_arrow_share_every_buffer(batch: dcp.Batch) -> None:
    arrow, again, views = batch.to_arrow(), batch.to_arrow(), batch.to_numpy()
    for name, found in views.items():
        valid, *buffers = arrow.column(name).buffers()[: 3 if isinstance(found, Bytes) else 2]
        arrays = (found.offsets, found.data) if isinstance(found, Bytes) else (np.ma.getdata(found),)
        assert [array.ctypes.data for array in arrays] == [buffer.address for buffer in buffers]
        assert not any(array.flags.writeable or array.flags.owndata for array in arrays)
        twice = again.column(name).buffers()[0]
        assert (valid and valid.address) == (twice and twice.address)


def test_views_point_into_the_bytes_that_were_fed() -> None:
    decoder = dcp.Decoder(views=True, columns=["key", "value"])
    decoder.feed(DATA)
    arrow = decoder.take().to_arrow()
    address = np.frombuffer(DATA, np.uint8).ctypes.data
    for name in ("key", "value"):
        sources = [buffer.address for buffer in arrow.column(name).buffers()[2:] if buffer]
        assert address in sources


def test_received_bytes_are_not_written_over_while_a_batch_has_views_of_them() -> None:
    decoder = dcp.Decoder(views=True)
    kept = []
    for n in range(200):
        data = encode(dcp.Frame("mutation", 0x80, fields=NUMBERS, key=b"k" * 13, value=bytes([n % 256]) * 20_000))
        room = decoder.buffer()
        room[: len(data)] = data
        del room
        decoder.received(len(data))
        batch = decoder.take()
        if n % 3:
            kept.append((n, batch.to_arrow()))
    for n, arrow in kept:
        assert arrow["value"].to_pylist() == [bytes([n % 256]) * 20_000]


def test_fed_bytes_live_as_long_as_a_view_of_them_and_no_longer() -> None:
    data = bytes(bytearray(encode(frame(1))))
    alone = sys.getrefcount(data)
    decoder = dcp.Decoder(views=True)
    decoder.feed(data)
    column = decoder.take().to_arrow()["value"]
    del decoder
    gc.collect()
    assert sys.getrefcount(data) == alone + 1
    assert column.to_pylist() == [BODY]
    del column
    gc.collect()
    assert sys.getrefcount(data) == alone


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_columns_outlive_everything_that_made_them_in_any_order(order: tuple[int, ...], views: bool) -> None:
    decoder = dcp.Decoder(views=views, collections=True)
    data = bytes(bytearray(DATA))
    decoder.feed(data)
    batch = decoder.take()
    expected = rows_of(batch)
    holders: list[Any] = [decoder, batch, data, batch.to_arrow()]
    arrow, array = batch.to_arrow(), batch.to_numpy()["seqno"]
    del decoder, batch, data
    for which in order:
        holders[which] = None
    assert arrow.to_pylist() == expected
    del arrow
    assert np.asarray(array).tolist() == list(range(ROWS))


@pytest.mark.parametrize("views", [False, True])
def test_the_last_owner_may_be_any_thread(views: bool) -> None:
    batches = [batch_of(views=views).to_arrow() for _ in range(8)]
    columns = [[batch.column(n) for batch in batches] for n in range(4)]
    batches.clear()

    def release(mine: list[Any]) -> None:
        while mine:
            mine.pop().validate(full=True)

    threads = [threading.Thread(target=release, args=(mine,)) for mine in columns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert columns == [[], [], [], []]


def test_a_process_may_end_while_capsules_and_columns_are_held() -> None:
    script = (
        "import dcp, pyarrow\n"
        "from tests.test_batch import batch_of\n"
        "held = [(b, b.to_arrow(), b.__arrow_c_array__(), b.__arrow_c_stream__()) for b in map(lambda v:"
        " batch_of(views=v), [False, True])]\n"
    )
    assert run(["-c", script]) == ""


@pytest.mark.parametrize("name", ["dropped", "unconsumed", "consumed", "refused", "one_decoder", "one_socket"])
def test_memory_stays_the_same_over_thousands_of_batches(name: str) -> None:
    pytest.importorskip("resource", reason="only POSIX can measure the memory of a process")
    run(["-m", "tests.memory", name])


@pytest.mark.parametrize("module", ["numpy", "pyarrow", "pandas", "typing_extensions"])
def test_the_package_is_imported_and_decodes_without(module: str) -> None:
    script = f"""
import sys
sys.modules["{module}"] = None
import dcp
decoder = dcp.Decoder()
decoder.feed({encode(frame(1))!r})
assert len(decoder.take()) == 1
assert not {{"numpy", "pyarrow", "pandas"}} & {{name for name in sys.modules if sys.modules[name]}}
"""
    assert run(["-c", script]) == ""


def run(arguments: list[str]) -> str:
    ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
