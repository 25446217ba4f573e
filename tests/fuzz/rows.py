"""Rows of a decoder as Python values, and the expected rows by a slow reading of the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import dcp
from dcp.columns.schema import Column, columns_of
from dcp.wire.document import Datatype, split_collection, split_xattrs
from dcp.wire.frame import dialect_of, layout_of, read_frame, split
from dcp.wire.framing import RequestInfo, join_infos
from dcp.wire.layout import HEADER, HEADER_STRUCT, Effect, Message, Role
from tests.fuzz.stream import Chance, Source

# Announced lengths must not be allocated: the fuzzers limit memory.
DEFAULT_FRAME = 1 << 28


@dataclass(frozen=True)
class DecoderOptions:
    """Arguments of a decoder, and how to feed it."""

    dialect: str
    mode: int
    collections: bool
    views: bool
    inflate: bool
    xattrs: str
    keys: str
    on_bad_value: str
    types: str
    columns: tuple[str, ...] | None
    events: tuple[str, ...] | None
    max_rows: int | None
    max_bytes: int | None
    max_frame: int
    max_value: int
    seed: int

    def decoder(self, **other: Any) -> dcp.Decoder:
        asked: dict[str, Any] = {
            "dialect": self.dialect,
            "columns": self.columns,
            "collections": self.collections,
            "views": self.views,
            "max_frame": self.max_frame,
            "max_value": self.max_value,
            "events": self.events,
            "inflate": self.inflate,
            "xattrs": self.xattrs,
            "keys": self.keys,
            "on_bad_value": self.on_bad_value,
            "types": self.types,
        }
        return dcp.Decoder(**(asked | other))


OPTIONS_LENGTH = 10
DIALECTS = ("dcp", "tap", "upr1", "upr2")


def options_of(source: Source) -> DecoderOptions:
    """Return the options that the first bytes of an input encode. Zeros are the defaults of dialect `dcp`."""
    flags, more, shown, rows, limit, frame, value = (source.byte() for _ in range(7))
    dialect = DIALECTS[flags & 3]
    return DecoderOptions(
        dialect=dialect,
        mode=flags >> 2 & 3,
        collections=bool(flags & 16),
        views=bool(flags & 32),
        inflate=not flags & 64,
        xattrs="inline" if flags & 128 else "map" if more & 16 else "split",
        keys="utf8" if more & 1 else "binary",
        on_bad_value="quarantine" if more & 2 else "fail",
        types="plain" if more & 32 else "wire",
        columns=_some(sorted(columns_of(dialect_of(dialect))), shown) if more & 4 else None,
        events=_some([m.name for m in dialect_of(dialect).messages if m.role is Role.ROW], shown) if more & 8 else None,
        max_rows=1 + (rows & 63) if rows else None,
        max_bytes=1 << (limit & 15) if limit else None,
        max_frame=24 + frame * frame if frame else DEFAULT_FRAME,
        max_value=24 + value * value if value else DEFAULT_FRAME,
        seed=source.number(3),
    )


def _some(names: list[str], seed: int) -> tuple[str, ...]:
    """Return one or more of the names, in a shuffled order."""
    chance = Chance(seed)
    left = list(names)
    return tuple(left.pop(chance.below(len(left))) for _ in range(1 + chance.below(len(names))))


# --------------------------------------------------------------------------------- what was decoded


@dataclass
class Decoded:
    """Complete result of a decoder: cells by column, control frames, flow bytes, and the error at the end."""

    cells: dict[str, list[Any]] = field(default_factory=dict)
    controls: list[tuple[int, dcp.Frame]] = field(default_factory=list)
    flow_bytes: int = 0
    rows: int = 0
    error: str = ""
    offset: int = 0

    def add(self, batch: dcp.Batch) -> None:
        for row, frame in batch.controls:
            assert 0 <= row <= batch.num_rows
            self.controls.append((self.rows + row, frame))
        for name, cells in cells_of(batch).items():
            assert len(cells) == batch.num_rows, name
            self.cells.setdefault(name, []).extend(cells)
        self.rows += batch.num_rows
        self.flow_bytes += batch.flow_bytes


def cells_of(batch: dcp.Batch) -> dict[str, list[Any]]:
    """Return the cells of each column, None for nulls; from the buffers if a column has no other form."""
    nested = [column.format.startswith(("v", "+")) for column in batch.schema]
    arrow: Any = batch.to_arrow() if any(nested) else None
    for i in range(len(nested)):
        assert all(len(bytes(shown)) == len(shown) for shown in _buffers(batch, i) if shown is not None)
    return {
        column.name: arrow.column(i).to_pylist() if nested[i] else _cells(batch, i, column)
        for i, column in enumerate(batch.schema)
    }


def _buffers(batch: dcp.Batch, index: int) -> tuple[Any, Any, Any]:
    return batch._rows.buffers(index)


_CODES: dict[str, Any] = {"c": "b", "C": "B", "S": "H", "i": "i", "I": "I", "l": "q", "L": "Q", "tsu:UTC": "q"}


def _cells(batch: dcp.Batch, index: int, column: Column) -> list[Any]:
    valid, fixed, data = _buffers(batch, index)
    cells: list[Any]
    if data is None:
        cells = memoryview(fixed).cast(_CODES[column.format]).tolist()
    else:
        text, ends = bytes(data), memoryview(fixed).cast("i").tolist()
        assert (ends[0], ends[-1]) == (0, len(text))
        cells = [text[begin:end] for begin, end in pairwise(ends)]
        if column.format == "u":
            cells = [cell.decode() for cell in cells]
    if valid is None:
        return cells
    bits = int.from_bytes(bytes(valid), "little")
    # Cells that nothing was written to must be zero, not leftovers of other memory.
    assert not any(cell for row, cell in enumerate(cells) if not bits >> row & 1), column.name
    return [cell if bits >> row & 1 else None for row, cell in enumerate(cells)]


# --------------------------------------------------------------------------------- what is expected


@dataclass
class _Stream:
    start: int | None
    end: int | None
    disorder: bool
    last: int | None = None


@dataclass
class Expected:
    """Slow decoder of columns, frame by frame from the tables."""

    options: DecoderOptions
    columns: tuple[Column, ...]
    decoded: Decoded = field(default_factory=Decoded)
    streams: dict[tuple[int, int, int], _Stream] = field(default_factory=dict)

    def read(self, data: bytes) -> Decoded:
        self.decoded.cells = {column.name: [] for column in self.columns}
        offset = 0
        try:
            for offset, raw in split(data, self.options.max_frame):
                self._frame(read_frame(raw, dialect_of(self.options.dialect), offset), raw)
                offset += len(raw)
        except dcp.DcpError as error:
            self.decoded.error = str(error)
            self.decoded.offset = error.offset if isinstance(error, dcp.FrameError) else offset
        return self.decoded

    def _frame(self, frame: dcp.Frame, raw: bytes) -> None:
        dialect = dialect_of(self.options.dialect)
        message = dialect.by_name.get(frame.name)
        if message is None or frame.kind is not message.kind:
            self._control(frame, raw, counts=True)
        elif message.role is Role.ROW and message.name in self._events:
            self._row(frame, raw, message)
        else:
            self._act(frame, message)
            self._control(frame, raw, counts=message.effect is not Effect.UNCOUNTED)

    @property
    def _events(self) -> tuple[str, ...]:
        if self.options.events is not None:
            return self.options.events
        messages = dialect_of(self.options.dialect).messages
        return tuple(m.name for m in messages if m.role is Role.ROW and m.name != "system_event")

    def _control(self, frame: dcp.Frame, raw: bytes, *, counts: bool) -> None:
        self.decoded.controls.append((self.decoded.rows, frame))
        if counts and raw[0] in (0x80, 0x08):
            self.decoded.flow_bytes += len(raw)

    def _act(self, frame: dcp.Frame, message: Message) -> None:
        whose = (frame.opaque, frame.vbucket, _stream_id(frame) or 0)
        if message.effect is Effect.STREAM_END:
            self.streams.pop(whose, None)
        elif message.effect is Effect.SNAPSHOT:
            start, end = frame.fields.get("snapshot_start"), frame.fields.get("snapshot_end")
            assert not isinstance(start, bytes)
            assert not isinstance(end, bytes)
            self.streams[whose] = _Stream(start, end, False)
        elif message.effect is Effect.DISORDER:
            self.streams[whose] = _Stream(None, None, bool(int(frame.fields["flags"]) & 1))

    def _row(self, frame: dcp.Frame, raw: bytes, message: Message) -> None:
        options = self.options
        _, layout = layout_of(frame, dialect_of(options.dialect))
        seqno = frame.fields.get("seqno")
        stream = self.streams.get((frame.opaque, frame.vbucket, _stream_id(frame) or 0))
        if stream and seqno is not None and not stream.disorder and stream.last is not None:
            _must(int(seqno) > stream.last, "seqno")
        key, collection = frame.key, None
        if options.collections and message.document:
            collection, key = split_collection(key)
        names = {column.name for column in self.columns}
        if options.keys == "utf8" and "key" in names:
            try:
                key.decode()
            except UnicodeDecodeError:
                _must(False, "key")
        value, xattrs, problem = _value_of(frame, raw, layout), None, ""
        if value and message.type is None and names & {"value", "xattrs"}:
            mapped = options.xattrs == "map" and "xattrs" in names
            value, xattrs, problem = _opened(value, frame.datatype, options, mapped)
        if stream:
            stream.last = int(seqno or 0)
        special = {
            "event": self._event(message),
            "timestamp": _signed((frame.cas & ~0xFFFF) // 1000),
            "collection_id": collection,
            "key": key.decode() if options.keys == "utf8" and "key" in names else key,
            "value": value,
            "xattrs": xattrs,
            "snapshot_start": stream.start if stream else None,
            "snapshot_end": stream.end if stream else None,
            "stream_id": _stream_id(frame),
            "error": problem or None,
        }
        header = dict(zip((f.name for f in HEADER), HEADER_STRUCT.unpack_from(raw), strict=True))
        if message.type is not None:
            del header["datatype"]
        fields = header | {place.name: frame.fields[place.name] for place in layout.places()}
        for column in self.columns:
            missing = None if column.nullable else 0
            name = column.name
            cell: Any = special[name] if name in special else fields.get(name, missing)
            self.decoded.cells[name].append(_signed(cell) if column.format == "l" and cell is not None else cell)
        self.decoded.rows += 1
        if raw[0] in (0x80, 0x08):
            self.decoded.flow_bytes += len(raw)

    def _event(self, message: Message) -> int | str:
        if self.options.types == "plain":
            return message.name
        order = [other.name for other in dialect_of(self.options.dialect).messages]
        return sorted(self._events, key=order.index).index(message.name)


def _must(holds: bool, problem: str) -> None:
    if not holds:
        raise dcp.DcpError(problem)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _stream_id(frame: dcp.Frame) -> int | None:
    ids = (i.data for i in frame.frame_info if i.id == RequestInfo.STREAM_ID and len(i.data) == 2)
    return None if frame.kind.answers else next((int.from_bytes(data, "big") for data in ids), None)


def _value_of(frame: dcp.Frame, raw: bytes, layout: Any) -> bytes:
    """Return the value as it is on the wire, also if it consists of fields."""
    if not layout.content:
        return frame.value
    engine = frame.fields.get("engine", b"")
    assert isinstance(engine, bytes)
    behind = layout.extras_length + layout.engine_length + len(engine) + len(frame.key)
    return raw[HEADER_STRUCT.size + len(join_infos(frame.frame_info)) + behind :]


def _opened(value: bytes, datatype: int, options: DecoderOptions, mapped: bool) -> tuple[bytes, Any, str]:
    """Return body, xattrs and, in quarantine, the error of a value."""
    try:
        body = value
        if value and datatype & ~int(Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR):
            raise dcp.DcpError("datatype: unknown bits")
        if datatype & Datatype.SNAPPY:
            if not options.inflate:
                return value, None, ""
            body = inflate(value, options.max_value)
        if body and datatype & Datatype.XATTR and options.xattrs != "inline":
            try:
                pairs, rest = split_xattrs(body)
                if mapped:
                    return rest, [(name.decode(), text.decode()) for name, text in pairs], ""
            except (dcp.DcpError, UnicodeDecodeError):
                raise dcp.DcpError("xattrs: not a valid section") from None
            return rest, body[: len(body) - len(rest)], ""
    except dcp.DcpError as error:
        if options.on_bad_value == "fail":
            raise
        return value, None, str(error)
    return body, None, ""


_UNSOUND = "snappy: not a valid block"


def inflate(block: bytes, most: int) -> bytes:
    """Decompress snappy's raw block format, as its description reads."""
    length = at = 0
    while True:
        _must(at < min(len(block), 5), _UNSOUND)
        length |= (block[at] & 0x7F) << 7 * at
        at += 1
        if block[at - 1] < 0x80:
            break
    _must(length >> 32 == 0 and length <= 22 * len(block), _UNSOUND)
    _must(length <= most, "snappy: inflates to more than max_value")
    out = bytearray()
    for tag, operand, literal in _elements(block, at):
        if tag == 0:
            out += literal
        else:
            offset, size = operand, len(literal)
            _must(0 < offset <= len(out), _UNSOUND)
            for _ in range(size):
                out.append(out[-offset])
        _must(len(out) <= length, _UNSOUND)
    _must(len(out) == length, _UNSOUND)
    return bytes(out)


def _elements(block: bytes, at: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield (kind, offset, the literal or zeros of the copy's length) of each element."""
    while at < len(block):
        tag = block[at]
        at += 1
        kind, size = tag & 3, (tag >> 2) + 1
        extra = (max(size - 60, 0), 1, 2, 4)[kind]
        _must(len(block) - at >= extra, _UNSOUND)
        number = int.from_bytes(block[at : at + extra], "little")
        at += extra
        if kind == 0:
            size = number + 1 if extra else size
            _must(len(block) - at >= size, _UNSOUND)
            yield kind, 0, block[at : at + size]
            at += size
        elif kind == 1:
            yield kind, tag >> 5 << 8 | number, bytes(4 + (tag >> 2 & 7))
        else:
            yield kind, number, bytes(size)
