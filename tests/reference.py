"""Reference decoder of columns: slow, frame by frame, from the tables alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple

import cramjam

import dcp
from dcp._codec import Source, Splitter
from dcp.columns.plan import events_of
from dcp.columns.schema import Column, choose
from dcp.wire.document import Datatype, split_collection, split_xattrs
from dcp.wire.frame import dialect_of, layout_of, read_frame
from dcp.wire.framing import RequestInfo
from dcp.wire.layout import Dialect, Effect
from dcp.wire.memcached import MAX_FRAME

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Texts of errors: of a frame with on_bad_value="fail", of a value with on_bad_value="quarantine".
BAD_COLLECTION = "expected a collection id of at most 32 bits as the shortest LEB128 before it"
BAD_KEY = 'expected UTF-8, as keys="utf8" requires'
BAD_SNAPPY = "value: expected a valid snappy block", "snappy: not a valid block"
BAD_SIZE = (
    "value: expected at most max_value bytes after decompression, found more",
    "snappy: inflates to more than max_value",
)
BAD_XATTRS = "value: expected a valid section of xattrs at its beginning", "xattrs: not a valid section"
BAD_DATATYPE = (
    "datatype: expected the bits of JSON, snappy and xattrs at most, found one of 0xf8",
    "datatype: unknown bits",
)
SEQNO_FELL = "seqno: expected one above {}, the last before it"


@dataclass(frozen=True)
class Options:
    """Arguments of a decoder that change its result."""

    columns: tuple[str, ...] | None = None
    collections: bool = False
    events: frozenset[str] | None = None
    inflate: bool = True
    xattrs: Literal["split", "map", "inline"] = "split"
    keys: Literal["binary", "utf8"] = "binary"
    on_bad_value: Literal["fail", "quarantine"] = "fail"
    types: Literal["wire", "plain"] = "wire"
    max_frame: int = MAX_FRAME
    max_value: int = MAX_FRAME


@dataclass
class Answer:
    """Expected result: rows, control frames, bytes for flow control, and the error after them."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    controls: list[tuple[int, dcp.Frame]] = field(default_factory=list)
    flow_bytes: int = 0
    error: dcp.FrameError | None = None


@dataclass
class Snapshot:
    window: tuple[int, int] | None = None
    ordered: bool = True
    last: int | None = None


class Value(NamedTuple):
    body: bytes
    xattrs: bytes | list[tuple[str, str]] | None = None
    error: str | None = None


class Wrong(Exception):
    """Error in a row, or in its value."""


def answer(data: bytes, dialect: str = "dcp", options: Options | None = None) -> Answer:
    """Return what the decoder has to make of `data`."""
    reader = Reader(dialect_of(dialect), options or Options())
    try:
        for offset, raw in _split(data, reader.options.max_frame):
            reader.read(raw, offset)
    except dcp.FrameError as error:
        reader.answer.error = error
    return reader.answer


def _split(data: bytes, max_frame: int) -> Iterator[tuple[int, bytes]]:
    splitter, offset = Splitter(max_frame), 0
    splitter.feed(data)
    for raw in splitter:
        yield offset, raw
        offset = splitter.offset


class Reader:
    def __init__(self, dialect: Dialect, options: Options) -> None:
        self.dialect, self.options, self.answer = dialect, options, Answer()
        self.columns: tuple[Column, ...] = choose(dialect, options.columns)
        self.names = {column.name for column in self.columns}
        if options.on_bad_value == "quarantine" and "error" not in self.names:
            self.columns += choose(dialect, ["error"])
        self.events = events_of(dialect, options.events)
        self.streams: dict[tuple[int, int, int], Snapshot] = {}

    def read(self, raw: bytes, offset: int) -> None:
        frame = read_frame(raw, self.dialect, offset)
        message = self.dialect.by_name.get(frame.name)
        sent = message is not None and frame.kind is message.kind
        if sent and frame.name in self.events:
            try:
                self.answer.rows.append(self._row(frame))
            except Wrong as wrong:
                prefixed = self.options.collections and self.dialect.by_name[frame.name].document
                subject = _whose(frame, prefixed=prefixed)
                raise dcp.FrameError(subject + str(wrong), offset, raw[1], frame.vbucket) from None
        else:
            self.answer.controls.append((len(self.answer.rows), frame))
        if message is not None and sent:
            self._act(frame, message.effect)
        if raw[0] in (0x80, 0x08) and not (message and sent and message.effect is Effect.UNCOUNTED):
            self.answer.flow_bytes += len(raw)

    def _act(self, frame: dcp.Frame, effect: Effect) -> None:
        stream = frame.opaque, frame.vbucket, _stream_id(frame) or 0
        if effect is Effect.STREAM_END:
            self.streams.pop(stream, None)
        elif effect is Effect.SNAPSHOT:
            start, end = frame.fields.get("snapshot_start"), frame.fields.get("snapshot_end")
            window = None if start is None or end is None else (int(start), int(end))
            self.streams[stream] = Snapshot(window)
        elif effect is Effect.DISORDER:
            self.streams[stream] = Snapshot(ordered=not int(frame.fields["flags"]) & 1)

    def _row(self, frame: dcp.Frame) -> dict[str, Any]:
        snapshot = self.streams.get((frame.opaque, frame.vbucket, _stream_id(frame) or 0), Snapshot())
        seqno = frame.fields.get("seqno")
        if seqno is not None and snapshot.ordered and snapshot.last is not None and int(seqno) <= snapshot.last:
            raise Wrong(SEQNO_FELL.format(snapshot.last))
        collection, key = self._key(frame)
        value = self._value(frame)
        if seqno is not None:
            snapshot.last = int(seqno)
        start, end = snapshot.window or (None, None)
        special: dict[Source, Any] = {
            Source.EVENT: frame.name,
            Source.TIMESTAMP: EPOCH + timedelta(microseconds=(frame.cas & ~0xFFFF) // 1000),
            Source.COLLECTION: collection,
            Source.KEY: key,
            Source.VALUE: value.body,
            Source.XATTRS: value.xattrs,
            Source.SNAPSHOT_START: start,
            Source.SNAPSHOT_END: end,
            Source.STREAM_ID: _stream_id(frame),
            Source.ERROR: value.error,
            Source.BAD_VALUE: value.body if value.error is not None else None,
        }
        numbers = self._numbers(frame)
        missing = {column.name: None if column.nullable else 0 for column in self.columns}
        row = {
            column.name: numbers.get(column.name, missing[column.name])
            if column.source is Source.FIELD
            else special[column.source]
            for column in self.columns
        }
        return row if self.options.types == "wire" else {name: _signed(cell) for name, cell in row.items()}

    def _numbers(self, frame: dcp.Frame) -> dict[str, Any]:
        layout = layout_of(frame, self.dialect)[1]
        fields = {f.name: frame.fields[f.name] for f in layout.extras + layout.engine if f.visible}
        return {name: getattr(frame, name) for name in ("vbucket", "datatype", "cas", "opaque")} | fields

    def _key(self, frame: dcp.Frame) -> tuple[int | None, bytes | str]:
        collection, key = None, frame.key
        # The key of a system event is a name.
        if self.options.collections and self.dialect.by_name[frame.name].document:
            try:
                collection, key = split_collection(key)
            except dcp.RemoteProtocolError:
                raise Wrong(BAD_COLLECTION) from None
        if self.options.keys == "binary" or "key" not in self.names:
            return collection, key
        try:
            return collection, key.decode()
        except UnicodeDecodeError:
            raise Wrong(BAD_KEY) from None

    def _value(self, frame: dcp.Frame) -> Value:
        layout = layout_of(frame, self.dialect)[1]
        value = layout.structs[2].pack(*(frame.fields[f.name] for f in layout.content)) + frame.value
        if not self.names & {"value", "xattrs"}:
            return Value(value)
        try:
            return self._open(value, frame.datatype)
        except Wrong as wrong:
            raised, noted = wrong.args[0]
            if self.options.on_bad_value == "fail":
                raise Wrong(raised) from None
            return Value(value, None, noted)

    def _open(self, value: bytes, datatype: int) -> Value:
        if value and datatype & 0xF8:
            raise Wrong(BAD_DATATYPE)
        if value and datatype & Datatype.SNAPPY:
            if not self.options.inflate:
                return Value(value)
            value = inflate(value, self.options.max_value)
        if not value or not datatype & Datatype.XATTR or self.options.xattrs == "inline":
            return Value(value)
        try:
            pairs, body = split_xattrs(value)
            # They become strings only where their column is asked for.
            as_map = self.options.xattrs == "map" and "xattrs" in self.names
            texts = [(name.decode(), text.decode()) for name, text in pairs] if as_map else []
        except (dcp.RemoteProtocolError, UnicodeDecodeError):
            raise Wrong(BAD_XATTRS) from None
        return Value(body, texts if as_map else value[: len(value) - len(body)])


def inflate(value: bytes, max_value: int) -> bytes:
    """Decompress a block. One that announces more than its length can give is refused."""
    announced = _announced(value)
    if announced is None or announced > 22 * len(value):
        raise Wrong(BAD_SNAPPY)
    if announced > max_value:
        raise Wrong(BAD_SIZE)
    try:
        return bytes(cramjam.snappy.decompress_raw(value))
    except cramjam.DecompressionError:
        raise Wrong(BAD_SNAPPY) from None


def _announced(value: bytes) -> int | None:
    number = 0
    for position, byte in enumerate(value[:5]):
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return number if number < 1 << 32 else None
    return None


def _signed(cell: Any) -> Any:
    """Return the signed 64-bit number with the same bits."""
    return cell - (1 << 64) if isinstance(cell, int) and cell >> 63 else cell


def _stream_id(frame: dcp.Frame) -> int | None:
    """Return the stream id of a request; an info of another length is none."""
    named = [info for info in frame.frame_info if info.id == RequestInfo.STREAM_ID and len(info.data) == 2]
    return int.from_bytes(named[0].data, "big") if named and not frame.kind.answers else None


def _whose(frame: dcp.Frame, *, prefixed: bool) -> str:
    seqno, key = frame.fields.get("seqno"), frame.key
    if prefixed:
        with suppress(dcp.RemoteProtocolError):
            key = split_collection(key)[1]
    name = frame.name if seqno is None else f"{frame.name} of seqno {seqno!r}"
    return f"{name}, key {key!r:.100}: " if key else f"{name}: "
