"""Targets of the fuzzers: each takes bytes, and raises what no input may cause.

Only a `dcp.DcpError` may leave an entry point. Any other exception that leaves a target is a finding, as is a failed
assertion; the sanitizers report theirs themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from operator import lt
from typing import Any
from zlib import crc32

import dcp
from dcp import _codec
from dcp._codec import Splitter
from dcp.columns.batch import Bytes
from dcp.columns.document_schema import document_type
from dcp.columns.plan import CHANGES, events_of
from dcp.columns.selection import compile_selection
from dcp.wire.document import join_collection, join_xattrs, split_collection, split_xattrs
from dcp.wire.frame import dialect_of, encode, layout_of, read_frame
from dcp.wire.frame import split as split_frames
from dcp.wire.framing import join_infos, split_infos
from dcp.wire.layout import HEADER_STRUCT, Dialect
from tests.documents.frames import mutation
from tests.fuzz.rows import DEFAULT_FRAME, Decoded, DecoderOptions, Expected, options_of
from tests.fuzz.stream import NAMES, RAW, REPAIRED, Chance, Source, stream_of
from tests.fuzz.tables import Row, any_rows


def frames(data: bytes) -> None:
    """Check that decoded frames encode to the same bytes, and that bodies, keys and values are read or refused."""
    source = Source(data)
    head = source.byte()
    dialect = NAMES[head & 3]
    stream = stream_of(head >> 2 & 3, source.rest(), dialect)
    at = 0
    try:
        for offset, raw in split_frames(stream, DEFAULT_FRAME):
            assert offset == at
            _check_frame(read_frame(raw, dialect_of(dialect), offset), raw, dialect)
            at += len(raw)
    except dcp.FrameError as error:
        assert str(error)
        assert error.offset == at
    else:
        assert at == len(stream)


def _check_frame(frame: dcp.Frame, raw: bytes, dialect: str) -> None:
    assert repr(frame)
    assert frame.stream_id is None or frame.stream_id >= 0
    try:
        assert encode(frame, dialect) == raw
    except dcp.LocalProtocolError:
        # With magic 0x08 and no framing extras it could be read in two ways, so it is not written.
        assert (raw[0], raw[2]) == (0x08, 0)
    for read in (lambda: frame.body(dialect), lambda: split_collection(frame.key), lambda: split_xattrs(frame.value)):
        try:
            repr(read())
        except dcp.RemoteProtocolError as error:
            assert str(error)


def splitter(data: bytes) -> None:
    """Check that frames do not depend on the chunks, and are the bytes of the stream."""
    source = Source(data)
    chance, bound = Chance(source.number(2)), source.byte()
    max_frame = 24 + bound * bound if bound else DEFAULT_FRAME
    stream = source.rest()
    whole, refusal = _split([stream], max_frame)
    pieces = chance.cut(stream)
    assert (whole, refusal) == _split(pieces, max_frame)
    assert stream.startswith(b"".join(whole))
    assert refusal or sum(map(len, whole)) == len(stream)


def _split(pieces: list[bytes], max_frame: int) -> tuple[list[bytes], str]:
    cutter = Splitter(max_frame)
    found: list[bytes] = []
    try:
        for piece in pieces:
            cutter.feed(piece)
            found += cutter
            assert cutter.pending < max_frame
        cutter.finish()
    except dcp.FrameError as error:
        assert error.offset == cutter.offset == sum(map(len, found))
        return found, str(error)
    assert cutter.pending == 0
    return found, ""


# ---------------------------------------------------------------------------------------- columns


def codec(data: bytes) -> None:
    """Run the extension's decoder alone, without its Python part: many more executions per second."""
    source = Source(data)
    head, flags, cut, rows, limit = (source.byte() for _ in range(5))
    stream = stream_of(RAW if flags >= 240 else REPAIRED, source.rest(), "")
    decoder = _codec.Decoder(
        _plan(head & 3, head >> 2, flags & 1, flags & 2),
        max_frame=1 << 16,
        max_value=1 << 12,
        views=bool(flags & 1),
        quarantine=bool(flags & 2),
        collections=bool(flags & 4),
        check_keys=bool(flags & 8),
        inflate=not flags & 16,
        split_xattrs=not flags & 32,
    )
    max_rows, max_bytes = 1 + rows if rows else 1 << 30, 1 << (limit & 15) if limit else 1 << 30
    if limit & 64:
        _open_streams(decoder, stream)
    # Joining pieces allocates a large chunk, which is slow under the sanitizers: do it rarely.
    at = (cut & 63) * len(stream) >> 6
    for piece in (stream[:at], stream[at:]) if cut > 248 else (stream,):
        decoder.feed(bytearray(piece) if flags >= 248 else piece)
        full = True
        while full:
            full = decoder._advance(max_rows, max_bytes)
            for *_, ends, start, end in decoder._passed_snapshots() if cut & 64 or decoder._waits_for_report else ():
                assert all(map(lt, ends, [*ends[1:], start]))
                assert start <= end
                full = True
            for row, _, offset, counted, raw in decoder._controls():
                assert 0 <= row <= decoder.rows
                assert 0 <= counted <= decoder.flow_bytes
                assert stream.startswith(raw, offset)
            if not (full or decoder.rows) and flags & 7:
                continue
            batch = decoder._finish()
            assert len(batch) <= max_rows
            if batch.num_rows and limit & 48 == 48:
                batch.__arrow_c_array__()
                shown: tuple[Any, ...] = batch.buffers(cut % len(batch.plan.names))
                assert all(bytes(part) is not None for part in shown if part is not None)
    problem = decoder._problem()
    assert problem is None or stream.startswith(problem[0], problem[1])


def _open_streams(decoder: _codec.Decoder, stream: bytes) -> None:
    """Open the streams of the first frames, as a session does."""
    decoder.expect_open_streams()
    at = 0
    for _ in range(4):
        if at + HEADER_STRUCT.size <= len(stream):
            *_, vbucket, body, opaque, _cas = HEADER_STRUCT.unpack_from(stream, at)
            decoder.open_stream(opaque, vbucket, 0, 0)
            at += HEADER_STRUCT.size + body


@cache
def _plan(dialect: int, columns: int, views: int, quarantine: int) -> _codec.Plan:
    """Return the plan of the default columns, or of others."""
    more = 4 | (columns & 1) << 4 if columns else 0
    options = options_of(Source(bytes([dialect, more, columns]))).decoder
    return options(views=bool(views), on_bad_value="quarantine" if quarantine else "fail").plan


def decoder(data: bytes) -> None:
    """Check that rows, frames and errors depend neither on the chunks nor on the batches."""
    source = Source(data)
    options = options_of(source)
    stream = stream_of(options.mode, source.rest(), options.dialect, collections=options.collections)
    whole = decode_whole(options, stream)
    pieces = decode_pieces(options, stream)
    assert whole.rows == pieces.rows
    assert whole.error == pieces.error
    assert not whole.error.endswith(": None")
    assert whole.controls == pieces.controls
    assert whole.cells == pieces.cells or not whole.rows
    assert whole.flow_bytes == pieces.flow_bytes


def decode_whole(options: DecoderOptions, stream: bytes) -> Decoded:
    decoded = Decoded()
    decoder = options.decoder()
    decoder.feed(stream)
    _drain(decoder, decoded, None, None)
    assert decoded.error or len(stream) == decoder.offset + decoder.pending
    return decoded


def decode_pieces(options: DecoderOptions, stream: bytes) -> Decoded:
    decoded = Decoded()
    decoder = options.decoder()
    chance = Chance(options.seed)
    for piece in chance.cut(stream):
        _feed(decoder, piece, chance.below(4))
        now = chance.below(4)
        if now == 1:
            decoder.advance(options.max_rows, options.max_bytes)
        elif now:
            _drain(decoder, decoded, options.max_rows, options.max_bytes)
    _drain(decoder, decoded, options.max_rows, options.max_bytes)
    if decoded.error:
        again = Decoded()
        _drain(decoder, again, None, None)
        assert (again.rows, again.error) == (0, decoded.error)
    return decoded


def _feed(decoder: dcp.Decoder, piece: bytes, how: int) -> None:
    if how == 0:
        decoder.feed(piece)
    elif how == 1:
        lent = bytearray(piece)
        decoder.feed(lent)
        lent[:] = b"\xdd" * len(lent)
    elif how == 2:
        decoder.feed(memoryview(b"\xdd" + piece)[1:])
    else:
        while piece:
            with decoder.buffer() as room:
                assert len(room)
                count = min(len(room), len(piece))
                room[:count] = piece[:count]
            decoder.received(count)
            piece = piece[count:]


def _drain(decoder: dcp.Decoder, decoded: Decoded, max_rows: int | None, max_bytes: int | None) -> None:
    while not decoded.error:
        try:
            batch = decoder.take(max_rows, max_bytes)
        except dcp.FrameError as error:
            decoded.error, decoded.offset = str(error), error.offset
            return
        if not batch.num_rows and not batch.controls:
            assert not batch.flow_bytes
            return
        decoded.add(batch)


def rows(data: bytes) -> None:
    """Check rows and the place of the first error against a slow reading of the same bytes."""
    source = Source(data)
    options = replace(options_of(source), max_rows=None, max_bytes=None)
    stream = stream_of(options.mode, source.rest(), options.dialect, collections=options.collections)
    decoder = options.decoder()
    decoder.feed(stream)
    decoded = Decoded()
    _drain(decoder, decoded, None, None)
    expected = Expected(options, tuple(decoder.schema)).read(stream)
    if decoder.pending and not decoded.error:
        # A decoder does not know that the stream ends here.
        assert "the input ends inside the frame" in expected.error
        expected.error = ""
    assert bool(decoded.error) == bool(expected.error), (decoded.error, expected.error)
    assert not decoded.error or decoded.offset == expected.offset
    assert decoded.controls == expected.controls
    assert decoded.rows == expected.rows
    for name in expected.cells if expected.rows else ():
        assert decoded.cells[name] == expected.cells[name], name
    assert decoded.flow_bytes == expected.flow_bytes


def arrow(data: bytes) -> None:
    """Check that every export to Arrow is valid, and that memory lives as long as one of them."""
    import pyarrow

    source = Source(data)
    options = options_of(source)
    chance = Chance(options.seed)
    stream = stream_of(options.mode, source.rest(), options.dialect, collections=options.collections)
    decoder: Any = options.decoder()
    kept: list[Any] = []
    while stream:
        size = 1 + chance.below(len(stream))
        _feed(decoder, stream[:size], chance.below(4))
        stream = stream[size:]
        for _ in range(3):
            try:
                batch = decoder.take(options.max_rows, options.max_bytes)
            except dcp.DcpError:
                stream = b""
                break
            kept.append(_exported(pyarrow, batch, chance.below(8)))
    if chance.below(2):
        del decoder
    while kept:
        one = kept.pop(chance.below(len(kept)))
        if isinstance(one, pyarrow.RecordBatch | pyarrow.Table):
            one.validate(full=True)
            columns = one.columns
            del one
            while columns:
                column = columns.pop(chance.below(len(columns)))
                _read(column, chance)


def _exported(pyarrow: Any, batch: dcp.Batch, how: int) -> Any:
    if how == 0:
        return batch.__arrow_c_array__()
    if how == 1:
        return batch.__arrow_c_stream__()
    if how == 2:
        return batch.__arrow_c_array__()[how & 1]
    if how == 3:
        assert pyarrow.schema(batch.schema) == pyarrow.record_batch(batch).schema
        for name, column in batch.to_numpy().items():
            count = len(column.offsets) - 1 if isinstance(column, Bytes) else len(column)
            assert count == len(batch), name
        return batch
    if how == 4:
        return pyarrow.table(batch)
    if how == 5:
        reader = pyarrow.RecordBatchReader.from_stream(batch)
        return reader.read_all() if batch.num_rows & 1 else reader
    return pyarrow.record_batch(batch)


def _read(column: Any, chance: Chance) -> None:
    begin = chance.below(len(column) + 1)
    sliced = column.slice(begin, chance.below(len(column) - begin + 1))
    del column
    sliced.validate(full=True)
    assert len(sliced.cast("int64", safe=False) if _is_time(sliced) else sliced.to_pylist()) == len(sliced)


def _is_time(column: Any) -> bool:
    # Some are out of range for Python.
    return str(column.type).startswith("timestamp")


# ----------------------------------------------------------------------------------------- pieces


def bodies(data: bytes) -> None:
    """Check values, framing extras, collection ids and xattr sections: splitting inverts joining."""
    source = Source(data)
    which, opcode = source.byte(), source.number(2)
    if which < 16:
        infos = source.rest()
        try:
            assert join_infos(split_infos(infos)) == infos
        except ValueError as error:
            assert str(error).startswith("framing extras: ")
    elif which < 32:
        key = source.rest()
        try:
            assert join_collection(*split_collection(key)) == key
        except dcp.RemoteProtocolError as error:
            assert str(error)
    elif which < 48:
        value = source.rest()
        try:
            joined = join_xattrs(*split_xattrs(value))
            assert joined == value or not value
        except dcp.RemoteProtocolError as error:
            assert str(error)
    else:
        _check_body(dialect_of(NAMES[which & 3]), opcode, source)


def _check_body(dialect: Dialect, which: int, source: Source) -> None:
    forms = [form for m in dialect.messages for form in (*m.sent, *m.answer) if form.body is not None]
    form = forms[which % len(forms)]
    fields = {name: source.byte() & 7 for name in form.required}
    assert form.body is not None
    try:
        content = form.body.decode(source.rest(), fields)
    except dcp.RemoteProtocolError as error:
        assert str(error)
        return
    repr(content)
    try:
        again = form.body.encode(content)
    except dcp.LocalProtocolError:
        return
    assert form.body.decode(again, fields) == content or "nan" in repr(content)


# ---------------------------------------------------------------------------------------- encoder


def encoder(data: bytes) -> None:
    """Check that encoded rows decode to the same, that others are refused, and that no buffer is overrun."""
    source = Source(data)
    dialect, options, opaque = NAMES[source.byte() & 3], source.byte(), source.byte()
    rows, table = any_rows(source, dialect)
    writer = dcp.Encoder(dialect, inflate=bool(options & 1), stream_id_defect=bool(options & 2))
    given = opaque if options & 4 else None
    buffer = bytearray(b"\xdd" * 4096)
    try:
        written = writer.encode(table, given)
    except dcp.LocalProtocolError as error:
        try:
            writer.encode_into(buffer, table, given)
        except dcp.LocalProtocolError as again:
            assert str(again) == str(error)
            return
        raise
    room = memoryview(buffer)[: len(written) + (source.byte() & 7)]
    assert writer.encode_into(room, table, given) == len(written)
    assert room[: len(written)] == written
    assert set(buffer[len(room) :]) <= {0xDD}
    if written:
        try:
            writer.encode_into(room[: len(written) - 1], table, given)
        except dcp.LocalProtocolError as error:
            assert "room for" in str(error)
        else:
            raise AssertionError("a buffer that is too small")
    try:
        frames = dcp.decode(written, dialect)
    except dcp.FrameError:
        # The encoder does not check the content of system events.
        assert any(row["event"] in ("system_event", b"system_event") for row in rows)
    else:
        _check_written(frames, rows, given, dialect_of(dialect))


def _check_written(frames: list[dcp.Frame], rows: list[Row], opaque: int | None, dialect: Dialect) -> None:
    for frame, row in zip(frames, rows, strict=True):
        event, key, collection = row["event"], row.get("key") or b"", row.get("collection_id")
        assert frame.name == (event.decode() if isinstance(event, bytes) else event)
        if dialect.by_name[frame.name].document and collection is not None:
            key = join_collection(collection & 0xFFFF_FFFF, key)
        assert frame.key == key
        if frame.name != "system_event":
            assert frame.value == (row.get("xattrs") or b"") + (row.get("value") or b"")
        assert frame.opaque == (_unsigned(row, "opaque", 4) if opaque is None else opaque)
        assert frame.cas == _unsigned(row, "cas", 8)
        assert frame.vbucket == _unsigned(row, "vbucket", 2)
        layout = layout_of(frame, dialect)[1]
        # The content of a system event is its value. Its collection is not that of a key.
        content = {field.name for field in layout.content}
        for name, number in frame.fields.items():
            if name in row and name not in content and isinstance(number, int):
                width = layout.fields[name].width
                assert number & ((1 << 8 * width) - 1) == _unsigned(row, name, width), name
        if row.get("stream_id") is None or dialect.by_name[frame.name].kind.answers:
            assert not frame.frame_info
        else:
            assert frame.frame_info[0].data == _unsigned(row, "stream_id", 2).to_bytes(2, "big")


def _unsigned(row: Row, name: str, width: int) -> int:
    number: int = row.get(name) or 0
    return number & ((1 << 8 * width) - 1)


# -------------------------------------------------------------------------------------- documents

_SCHEMAS = (
    "a bigint, b double, c string, d boolean, e struct<a int, b string>, f array<smallint>, g map<string, float>",
    "a decimal(38,10), b decimal(9,9), c date, d timestamp, e timestamp_ntz, f timestamp_s, g binary, h tinyint",
    "a json, b array<json>, c map<string, json>, d array<array<json>>, e struct<a json, b array<json>>",
    "a string from e.a, b bigint from e.b.c, c json from e, d array<struct<a string, b bigint>>, e string from e.a",
    "array<struct<a bigint, b array<string>>>",
    "map<string, map<string, bigint>>",
    "json",
)
_CONDITIONS = (None, "a = 1 or e.a like 'x%y_'", "not (b.c > 1.5 and d in ('a', 'b')) or c is null")


# One of so many inputs is checked in full, which takes as long as a hundred others. Its own bytes say which.
_IN_FULL = 64


def documents(data: bytes) -> None:
    """Check that any values become rows; for some inputs that they are valid Arrow, and refused only if no JSON."""
    source = Source(data)
    number, flags = source.byte(), source.byte()
    schema, condition = _SCHEMAS[number % len(_SCHEMAS)], _CONDITIONS[flags % 3]
    values = [value for value in source.rest().split(b"\xff\xfe") if flags & 2 or value][:8]
    batches = _document_batches(schema, condition, flags, values)
    counted = sum(batch.num_rows + batch.unselected_rows for batch in batches)
    assert counted == len(values)
    if crc32(data) % _IN_FULL == 0:
        _check_in_full(batches, values if condition is None else [], reads=schema != _SCHEMAS[1])


def _document_batches(schema: str, condition: str | None, flags: int, values: list[bytes]) -> list[_codec.Rows]:
    decoder = _codec.Decoder(
        _document_plan(schema, flags & 1),
        max_frame=1 << 16,
        max_value=1 << 16,
        views=bool(flags & 1),
        quarantine=True,
        selection=_selection(condition),
    )
    decoder.feed(b"".join(_document_frame(value, seqno) for seqno, value in enumerate(values, 1)))
    batches: list[_codec.Rows] = []
    while not batches or batches[-1].num_rows:
        decoder._advance(1 + (flags >> 2 & 3), 1 << 30)
        assert decoder._problem() is None
        batches.append(decoder._finish())
    return batches


@cache
def _document_plan(schema: str, views: int) -> _codec.Plan:
    return dcp.Decoder(columns=("key", "bad_value"), document=document_type(schema), views=bool(views)).plan


@cache
def _selection(condition: str | None) -> _codec.Selection | None:
    return compile_selection(events_of(dialect_of("dcp"), None), CHANGES, None, None, condition)


_FRAME = mutation(b"")


def _document_frame(value: bytes, seqno: int) -> bytes:
    length = int.from_bytes(_FRAME[8:12], "big") + len(value)
    return _FRAME[:8] + length.to_bytes(4, "big") + _FRAME[12:24] + seqno.to_bytes(8, "big") + _FRAME[32:] + value


def _check_in_full(batches: list[_codec.Rows], values: list[bytes], *, reads: bool) -> None:
    """Check that batches are valid Arrow, and their rows.

    reads: False if Python cannot read all cells: some times are out of its range.
    """
    import pyarrow

    rows: list[Any] = []
    for batch in batches:
        table = pyarrow.record_batch(batch)
        table.validate(full=True)
        rows += table.to_pylist() if reads else [None] * len(table)
    for value, row in zip(values, rows, strict=True) if values else ():
        _check_document(value, row)


def _check_document(value: bytes, row: Any) -> None:
    if row is None:
        return
    refused = (row["error"] or "").startswith("document: expected JSON, found ")
    if refused:
        assert row["bad_value"] == value
        assert row["document"] is None
    try:
        text = value.decode()
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return
    # Python takes a mark of the byte order in text, and any depth up to its own limit.
    assert not refused or text.startswith("\ufeff"), row["error"]


def _no_constant(text: str) -> None:
    raise ValueError(text)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "splitter": splitter,
    "codec": codec,
    "decoder": decoder,
    "rows": rows,
    "arrow": arrow,
    "encoder": encoder,
    "bodies": bodies,
    "documents": documents,
}
