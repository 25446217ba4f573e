"""Columns to frames: decoded rows are encoded byte for byte, also from other Arrow libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.columns.rows import RowEncoder
from dcp.columns.schema import columns_of
from dcp.wire.frame import layout_of, read_frame, split
from dcp.wire.layout import Dialect, Role
from tests import conformance
from tests.strategies import conversations

pa = pytest.importorskip("pyarrow", reason="Arrow's own library is an extra")


def events(dialect: Dialect) -> list[str]:
    return [message.name for message in dialect.messages if message.role is Role.ROW]


def all_columns(dialect: Dialect) -> list[str]:
    """Return the columns that are part of a frame."""
    return [name for name in columns_of(dialect) if name not in ("timestamp", "error")]


def rows_of(data: bytes, dialect: Dialect) -> list[bytes]:
    """Return the frames that become rows."""
    found = []
    for offset, raw in split(data):
        frame = read_frame(raw, dialect, offset)
        sent = frame.name in events(dialect) and frame.kind is dialect.by_name[frame.name].kind
        found += [raw] if sent else []
    return found


def decode(data: bytes, dialect: Dialect, **options: Any) -> dcp.Batch:
    decoder = dcp.Decoder(
        dialect.name, columns=all_columns(dialect), events=events(dialect), **{"inflate": False, **options}
    )
    decoder.feed(data)
    return decoder.take()


@pytest.mark.parametrize("path", conformance.TRANSCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_rows_of_a_recorded_server_come_out_byte_for_byte(path: Path) -> None:
    transcript = conformance.transcript(path)
    dialect = dcp.DIALECTS[transcript.dialect]
    for connection in transcript.connections:
        data = connection.server
        rows = rows_of(data, dialect)
        defect = any(raw[0] == 0x08 and not raw[2] for raw in rows)
        encoder = dcp.Encoder(dialect.name, inflate=False, stream_id_defect=defect)
        batch = decode(data, dialect)
        assert encoder.encode(batch) == b"".join(rows)
        record = pa.record_batch(batch)
        assert encoder.encode(record) == b"".join(rows)
        middle = len(rows) // 2
        assert encoder.encode(record.slice(middle)) == b"".join(rows[middle:])


@given(conversations(), st.sampled_from([{}, {"xattrs": "inline"}, {"views": True}, {"types": "plain"}]))
def test_any_rows_come_out_byte_for_byte(
    conversation: tuple[Dialect, list[dcp.Frame]], options: dict[str, Any]
) -> None:
    dialect, frames = conversation
    plain = [frame for frame in frames if _is_plain(frame, dialect)]
    data = b"".join(dcp.encode(frame, dialect.name) for frame in plain)
    try:
        batch = decode(data, dialect, **options)
    except dcp.FrameError:
        return
    rows = b"".join(rows_of(data, dialect)[: len(batch)])
    assert dcp.Encoder(dialect.name, inflate=False).encode(batch) == rows


def _is_plain(frame: dcp.Frame, dialect: Dialect) -> bool:
    """Return whether columns hold all of a frame: no frame info but a stream id, no trailer, no reserved bytes."""
    # TAP: without its engine section, a frame lacks numbers that the columns have as 0.
    if frame.name in events(dialect) and "engine" in layout_of(frame, dialect)[1].measured:
        return False
    if frame.fields.keys() & {"meta", "engine", "reserved"} or (frame.magic in (0x08, 0x18) and not frame.frame_info):
        return False
    return all(info.id == 2 and len(info.data) == 2 and info.counted for info in frame.frame_info[:1]) and (
        len(frame.frame_info) < 2
    )


def rows(**columns: list[Any]) -> Any:
    return pa.record_batch(columns)


MUTATION: dict[str, list[Any]] = {"event": ["mutation"], "key": [b"k"]}


def test_rows_of_another_tool_need_only_what_they_say() -> None:
    data = dcp.Encoder().encode(rows(**MUTATION, value=[b"v"], seqno=[7], vbucket=[3]), opaque=5)
    [frame] = dcp.decode(data)
    assert (frame.name, frame.key, frame.value, frame.vbucket, frame.opaque) == ("mutation", b"k", b"v", 3, 5)
    assert frame.fields["seqno"] == 7


@pytest.mark.parametrize("type", ["string", "large_string", "binary_view", "string_view", "binary", "large_binary"])
def test_text_and_binary_of_any_arrow_type_are_taken(type: str) -> None:
    values = [b"short", b"longer than a view holds inside", b""]
    keys = pa.array([b"a", b"b", b"c"]).cast(pa.binary())
    made = pa.array([value.decode() if "string" in type else value for value in values], getattr(pa, type)())
    data = dcp.Encoder().encode(pa.record_batch({"event": ["mutation"] * 3, "key": keys, "value": made}))
    assert [frame.value for frame in dcp.decode(data)] == values


@pytest.mark.parametrize("type", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers_of_any_width_are_taken(type: str) -> None:
    numbers = pa.array([101, 7], getattr(pa, type)())
    columns = {"event": ["mutation"] * 2, "key": [b"a", b"b"], "seqno": numbers, "vbucket": numbers, "nru": numbers}
    frames = dcp.decode(dcp.Encoder().encode(pa.record_batch(columns)))
    assert [(f.fields["seqno"], f.vbucket, f.fields["nru"]) for f in frames] == [(101, 101, 101), (7, 7, 7)]


@pytest.mark.parametrize(
    ("column", "type", "number", "most"),
    [
        ("seqno", "int32", -1, 2**63 - 1),
        ("flags", "int8", -1, 2**32 - 1),
        ("flags", "int32", -(2**31), 2**32 - 1),
        ("flags", "uint64", 2**32, 2**32 - 1),
        ("nru", "int16", 256, 255),
        ("vbucket", "int16", -7, 2**16 - 1),
        ("cas", "int16", -7, 2**63 - 1),
        ("datatype", "int64", -1, 255),
        ("opaque", "int64", 2**32, 2**32 - 1),
        ("collection_id", "uint64", 2**64 - 1, 2**32 - 1),
        ("stream_id", "int32", 2**16, 2**16 - 1),
    ],
)
def test_a_number_that_does_not_fit_is_refused_with_its_column(column: str, type: str, number: int, most: int) -> None:
    numbers = pa.array([None, 1, number], getattr(pa, type)())
    made = pa.record_batch({"event": ["mutation"] * 3, "key": [b"k"] * 3, column: numbers})
    with pytest.raises(dcp.LocalProtocolError, match=f"row 2: {column}: expected 0 to {most}, found {number}$"):
        dcp.Encoder().encode(made)
    assert len(dcp.decode(dcp.Encoder().encode(made.slice(0, 2)))) == 2


def test_a_signed_number_of_64_bits_is_taken_by_its_bit_pattern() -> None:
    made = rows(**MUTATION, cas=pa.array([-1], pa.int64()), seqno=pa.array([-2], pa.int64()))
    [frame] = dcp.decode(dcp.Encoder().encode(made))
    assert (frame.cas, frame.fields["seqno"]) == (2**64 - 1, 2**64 - 2)


def test_an_opaque_that_is_given_makes_that_of_the_column_nobodys_business() -> None:
    made = rows(**MUTATION, opaque=pa.array([-1], pa.int32()))
    assert dcp.decode(dcp.Encoder().encode(made, opaque=4))[0].opaque == 4


def test_a_row_that_is_null_is_refused() -> None:
    columns = [pa.array(["mutation"] * 4), pa.array([b"a", b"b", b"c", b"d"])]
    made = pa.StructArray.from_arrays(columns, ["event", "key"], mask=pa.array([True, False, False, True]))
    with pytest.raises(dcp.LocalProtocolError, match="row 2: expected a row, found null"):
        dcp.Encoder().encode(made.slice(1))
    assert [frame.key for frame in dcp.decode(dcp.Encoder().encode(made.slice(1, 2)))] == [b"b", b"c"]


def test_a_deletion_with_a_time_has_the_newer_form_and_one_without_the_older() -> None:
    data = dcp.Encoder().encode(rows(event=["deletion"] * 2, key=[b"a", b"b"], delete_time=[9, None]))
    assert ["delete_time" in frame.fields for frame in dcp.decode(data)] == [True, False]


def test_the_snappy_bit_goes_where_the_value_is_plain_and_stays_where_it_is_not() -> None:
    made = rows(**MUTATION, value=[b"\x01\x00v"], datatype=[3])
    assert dcp.decode(dcp.Encoder().encode(made))[0].datatype == 1
    assert dcp.decode(dcp.Encoder(inflate=False).encode(made))[0].datatype == 3


def test_a_collection_and_a_stream_id_go_where_they_belong() -> None:
    made = rows(**MUTATION, collection_id=pa.array([0x555], pa.uint32()), stream_id=pa.array([71], pa.uint16()))
    [frame] = dcp.decode(dcp.Encoder().encode(made))
    assert (frame.key, frame.stream_id, frame.magic) == (b"\xd5\x0ak", 71, 0x08)


def test_a_stream_id_goes_into_no_answer_where_its_number_means_something_else() -> None:
    data = dcp.Encoder("upr1").encode(rows(**MUTATION, stream_id=pa.array([1 << 20], pa.int32())))
    (frame,) = dcp.decode(data, "upr1")
    assert (frame.magic, frame.frame_info, frame.key) == (0x81, (), b"k")


def test_a_datatype_goes_into_no_answer_where_its_byte_is_the_type() -> None:
    data = dcp.Encoder("upr1").encode(rows(**MUTATION, datatype=pa.array([300], pa.int32())))
    (frame,) = dcp.decode(data, "upr1")
    assert (frame.name, frame.datatype) == ("mutation", 0)


def test_the_column_opaque_speaks_where_no_opaque_is_given() -> None:
    made = rows(**MUTATION, opaque=[9])
    assert dcp.decode(dcp.Encoder().encode(made))[0].opaque == 9
    assert dcp.decode(dcp.Encoder().encode(made, opaque=4))[0].opaque == 4


def test_frames_are_written_into_a_buffer_that_has_room() -> None:
    made = rows(**MUTATION)
    wanted = dcp.Encoder().encode(made)
    for room in (len(wanted), 500):
        buffer = bytearray(room)
        assert dcp.Encoder().encode_into(buffer, made) == len(wanted)
        assert buffer.startswith(wanted)
    with pytest.raises(dcp.LocalProtocolError, match=f"buffer: expected room for {len(wanted)} bytes"):
        dcp.Encoder().encode_into(bytearray(len(wanted) - 1), made)


def test_no_rows_are_no_frames() -> None:
    assert dcp.Encoder().encode(rows(**MUTATION).slice(1)) == b""
    assert dcp.Encoder().encode_into(bytearray(), rows(**MUTATION).slice(1)) == 0


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (rows(event=["mutation", "mutation"], key=[b"k", b""]), "row 1: key: expected at least 1 byte"),
        (rows(event=["mutatoin"], key=[b"k"]), "row 0: event: expected one of mutation, deletion, expiration, "),
        (rows(event=pa.array([None], pa.string()), key=[b"k"]), "row 0: event: expected one of"),
        (rows(key=[b"k"]), "rows: expected a column event, found key"),
        (rows(event=["commit"], key=[b"k"], value=[b"v"]), "row 0: value: expected none with this event"),
        (rows(event=["mutation"], key=[b"k" * 65536]), "row 0: key: expected at most 65535 bytes"),
        (rows(event=["mutation"], key=[7]), "key: expected binary or text, found the Arrow type 'l'"),
        (rows(**MUTATION, seqno=[1.5]), "seqno: expected integers, found the Arrow type 'g'"),
        (rows(event=[1], key=[b"k"]), "event: expected text, plain or dictionary encoded, found the Arrow type 'l'"),
        (rows(event=["expiration"], key=[b"k"]), "row 0: event: no form of it has these columns"),
        (pa.array([1, 2]), "rows: expected rows in columns, found the Arrow type 'l'"),
        ([1], "rows: expected a batch or an Arrow record batch, found list"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_rows_that_cannot_go_are_refused_with_the_row_and_the_reason(made: Any, problem: str) -> None:
    with pytest.raises(dcp.LocalProtocolError) as refused:
        dcp.Encoder().encode(made)
    assert problem in str(refused.value)


def test_a_column_that_is_not_needed_may_have_any_type() -> None:
    assert dcp.Encoder().encode(rows(**MUTATION, score=[1.5], seen=[True])) == dcp.Encoder().encode(rows(**MUTATION))


def test_an_opaque_that_does_not_fit_is_refused() -> None:
    with pytest.raises(dcp.LocalProtocolError, match="opaque: expected an integer of 32 bits, found 4294967296"):
        dcp.Encoder().encode(rows(**MUTATION), opaque=1 << 32)


def test_a_column_may_have_no_name() -> None:
    made = rows(**MUTATION, **{"": ["whatever"]})
    assert dcp.Encoder().encode(made) == dcp.Encoder().encode(rows(**MUTATION))


def test_rows_that_are_objects_are_refused_in_the_same_words() -> None:
    writer = RowEncoder("dcp", ("event", "key", "flags"))
    rows = [("mutation", b"a", 1), ("mutation", b"b", 1 << 32)]
    with pytest.raises(dcp.LocalProtocolError, match="row 1: flags: expected 0 to 4294967295, found 4294967296"):
        writer.write(bytearray(500), 0, rows, 0, 500, opaque=1, vbucket=2)
    with pytest.raises(dcp.LocalProtocolError, match="row 0: event: expected one of mutation, "):
        writer.write(bytearray(500), 0, [("mutatoin", b"a", 1)], 0, 500, opaque=1, vbucket=2)
    with pytest.raises(dcp.LocalProtocolError, match="row 0: vbucket: expected 0 to 65535, found 65536"):
        writer.write(bytearray(500), 0, rows, 0, 500, opaque=1, vbucket=1 << 16)
