"""Decoder: bytes in any chunks to batches of columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from dcp import _codec
from dcp._codec import LazyPosition, MovingStream
from dcp.columns.batch import Batch
from dcp.columns.document_schema import DocumentType, document_type
from dcp.columns.plan import CHANGES, compile_plan, events_of
from dcp.columns.schema import COLUMNS, BatchSchema, Column, choose, plain
from dcp.columns.selection import compile_selection
from dcp.errors import DcpError, DocumentError, FrameError, RemoteProtocolError, UsageError
from dcp.wire.document import split_collection
from dcp.wire.frame import Frame, dialect_of, read_frame, split
from dcp.wire.layout import HEADER_STRUCT, Dialect
from dcp.wire.memcached import MAX_FRAME

if TYPE_CHECKING:
    from typing_extensions import Self


class ArrowSchemaLike(Protocol):
    """Schema or type of any Arrow library."""

    def __arrow_c_schema__(self) -> object: ...


# Accepted schemas of documents.
DocumentLike: TypeAlias = "str | Mapping[str, str] | ArrowSchemaLike | DocumentType"
# A stream of a session.
Stream = TypeVar("Stream", bound=MovingStream)
# True if `Decoder.receive` works on this system.
CAN_RECEIVE = _codec.CAN_RECEIVE
# Limits of a batch: Arrow's offsets have 32 bits, and the last row may be a large one.
MAX_BATCH_BYTES = (1 << 31) - (1 << 21)
MAX_BATCH_ROWS = (1 << 31) - 1


class PassedSnapshots(NamedTuple):
    """Snapshots that a stream has received whole, and the one that it is in now.

    ends: their ends, oldest first.
    start, end: window of the snapshot after them.
    """

    opaque: int
    vbucket: int
    stream_id: int
    ends: list[int]
    start: int
    end: int


class Decoder(_codec.Decoder):
    """Decoder of the bytes that one connection receives, to batches of columns.

    Give it bytes in any chunks (`feed`), let a socket write into its memory (`buffer`, `received`), or let it
    receive from the socket itself (`receive`); then `take` the rows so far. Use it from one thread at a time.

    dialect: "tap", "upr1", "upr2" or "dcp", the default.
    columns: names of the columns, in the order of the batch; None for the default ones. Others are not decoded.
    collections: True if keys carry their collection id, as they do once HELLO agreed on collections. Default False.
    views: True for keys, values and xattrs as Arrow views into the received bytes, without a copy. The received
        bytes live as long as the batch. Default False.
    max_frame: largest frame to accept, in bytes. Default 30 MiB, a little above what servers send.
    max_value: largest value to accept after decompression, in bytes. Default 30 MiB.
    events: names of the messages that become rows; None for all but system events. Other messages become
        `Batch.controls`, if they matter to a stream.
    also: further names for the column `event`, for rows that the caller inserts between the decoded ones.
    inflate: decompress snappy values. Default True. Use False for a connection opened with
        NoValueWithUnderlyingDatatype: its datatypes are those of the stored values, which are not sent.
    xattrs: "split" moves the extended attributes from the value to the column `xattrs`, the default; "map" does so
        as an Arrow map of names to JSON texts; "inline" leaves them in the value.
    keys: "binary", the default, or "utf8" to check them and have a text column.
    values: "binary", the default, or "utf8" to check them and have a text column.
    on_bad_value: "fail", the default, raises FrameError for a value that cannot be read, and DocumentError for one that
        is no UTF-8 where `values` asks for it. "quarantine" delivers such a value as it arrived, or null in a text
        column, and says why in the column `error`, which is added. The column `bad_value`, on request, has its bytes.
    document: schema of the documents, for the column `document`: DDL such as "id bigint, customer struct<city string>",
        an Arrow schema or type, or a mapping of names to paths and types. See docs/documents.md.
    on_bad_document: "quarantine", the default, delivers null for what does not fit the schema, and says why in the
        column `error`, which is added. So it does for a value that cannot be decompressed or split, whatever
        `on_bad_value` says. "fail" raises DocumentError instead.
    only_events: names of the events to deliver; None for all. `Batch.unselected_rows` counts the others.
    only_keys: keys to deliver, such as ["user::7", "order::*"]; None for all. A star stands for any bytes.
    where: condition on the document, such as "type = 'order' and total > 100". Mutations for which it is not true are
        not delivered; deletions, and values that are no JSON, are.
    types: "wire", the default, for unsigned numbers as wide as they are sent, and events as a dictionary. "plain"
        for the types that Spark has: events as text, numbers signed with 32 bits or, where those are too few, 64.
        Unsigned 64-bit numbers keep their bits.

    Raises UsageError for an unknown name or a value out of range.

    Attributes: `schema` describes the batches. `new_controls` are the control frames since the last batch, as
    (row, frame, seqno): the number of rows of the current batch before the frame, and the seqno of the last row of
    the frame's stream before it. After `expect_open_streams`, most snapshot markers are not among them:
    PassedSnapshots stand before the next control frame of their stream, and `passed_snapshots` returns the others.
    `rows` is the number of rows in the current batch, `flow_bytes` its bytes for flow control, `pending` the number
    of bytes that are not decoded yet, `offset` that of all bytes that are.
    """

    schema: BatchSchema
    new_controls: list[tuple[int, Frame | PassedSnapshots, int]]
    _dialect: Dialect
    _collections: bool
    _error: DcpError | None

    def __new__(
        cls,
        dialect: str | Dialect = "dcp",
        columns: Iterable[str] | None = None,
        *,
        collections: bool = False,
        views: bool = False,
        max_frame: int = MAX_FRAME,
        max_value: int = MAX_FRAME,
        events: Collection[str] | None = None,
        also: Collection[str] = (),
        inflate: bool = True,
        xattrs: Literal["split", "map", "inline"] = "split",
        keys: Literal["binary", "utf8"] = "binary",
        values: Literal["binary", "utf8"] = "binary",
        on_bad_value: Literal["fail", "quarantine"] = "fail",
        types: Literal["wire", "plain"] = "wire",
        document: DocumentLike | None = None,
        on_bad_document: Literal["quarantine", "fail"] = "quarantine",
        only_events: str | Iterable[str] | None = None,
        only_keys: str | bytes | Iterable[str | bytes] | None = None,
        where: str | None = None,
    ) -> Self:
        for name, value, accepted in (
            ("xattrs", xattrs, ("split", "map", "inline")),
            ("keys", keys, ("binary", "utf8")),
            ("values", values, ("binary", "utf8")),
            ("on_bad_document", on_bad_document, ("quarantine", "fail")),
            ("on_bad_value", on_bad_value, ("fail", "quarantine")),
            ("types", types, ("wire", "plain")),
        ):
            if value not in accepted:
                raise UsageError(f"{name}: expected one of {', '.join(accepted)}, found {value!r}")
        table = dialect_of(dialect)
        reads_documents = document is not None or where is not None
        if reads_documents and not inflate:
            raise UsageError("inflate: expected True with `document` or `where`: compressed values cannot be parsed")
        schema = None if document is None else document_type(document)
        set_aside = on_bad_value == "quarantine" or (reads_documents and on_bad_document == "quarantine")
        chosen = _typed(choose(table, columns, schema), views, keys, values, xattrs, quarantine=set_aside)
        if types == "plain":
            chosen = tuple(map(plain, chosen))
        names = (*events_of(table, events), *also)
        plan = compile_plan(table, chosen, names)
        self = super().__new__(
            cls,
            plan,
            max_frame=max_frame,
            max_value=max_value,
            collections=collections,
            inflate=inflate,
            split_xattrs=xattrs != "inline",
            check_keys=keys == "utf8",
            check_values=values == "utf8" and any(column.name == "value" for column in chosen),
            keep_bad_documents=on_bad_document == "quarantine",
            selection=compile_selection(names, CHANGES, only_events, only_keys, where),
            quarantine=set_aside,
            views=views,
        )
        self.schema = BatchSchema(chosen, plan)
        self.new_controls = []
        self._dialect = table
        self._collections = collections
        self._error = None
        return self

    def receive(
        self,
        fd: int,
        bell: int,
        seconds: float | None = None,
        max_rows: int | None = None,
        max_bytes: int | None = None,
    ) -> tuple[int, bool]:
        """Receive from a socket and decode, without the GIL, until the caller has something to do.

        That is: a limit of the batch was reached, a control frame arrived, the protocol was broken, the first rows of
        a batch were decoded and no further bytes wait, `bell` was rung, time is up, or the connection was closed.
        Call `advance` afterwards: it says which, and has to be called before the next `receive`.

        fd: descriptor of a connected, non-blocking socket.
        bell: descriptor of a second socket; a byte sent to its other end wakes the caller up. The byte is discarded.
        seconds: time limit for a wait without bytes; None for none.
        max_rows, max_bytes: as in `advance`.

        Returns the number of bytes received, and True if the peer closed the connection.

        Raises OSError if the connection broke, UsageError on Windows, see CAN_RECEIVE. Bytes received before are kept.
        """
        return self._receive(fd, bell, seconds, *_limits(max_rows, max_bytes))

    def advance(self, max_rows: int | None = None, max_bytes: int | None = None) -> bool:
        """Decode fed bytes into the current batch. Return True if it reached a limit.

        max_rows: limit of rows in the batch; None for the limit of Arrow.
        max_bytes: limit of bytes in the batch, those of frames and of decompressed values; None for the limit of
            Arrow. Decoding stops before the frame that would exceed it, unless the batch is empty.

        Control frames are in `new_controls` as soon as this returns. An error is not raised here, but by the `take`
        after the one that delivers the rows before it; until then this returns True.
        """
        if self._error is not None:
            return True
        limits = _limits(max_rows, max_bytes)
        while True:
            full = self._advance(*limits)
            for row, last_seqno, offset, flow_bytes, raw in self._controls():
                try:
                    self.new_controls.append((row, read_frame(raw, self._dialect, offset), last_seqno))
                except FrameError as error:
                    self._error = error
                    # Rows after the frame were decoded already: the loop does not look into control frames.
                    self._remove_rows(row, flow_bytes)
                    return True
            if not self._waits_for_report:
                break
            self.new_controls += [(self.rows, passed, 0) for passed in self.passed_snapshots()]
        problem = self._problem()
        if problem is not None:
            self._error = self._failure(*problem)
        return full or problem is not None

    def passed_snapshots(self) -> list[PassedSnapshots]:
        """Return the snapshots that streams have received whole since the last call."""
        return list(map(PassedSnapshots._make, self._passed_snapshots()))

    def discard_rows(self, row: int) -> None:
        """Remove the rows from number `row` on from the current batch: the control before them was wrong after all.

        Their bytes are still counted for flow control.
        """
        self._remove_rows(row, self.flow_bytes)

    def take(self, max_rows: int | None = None, max_bytes: int | None = None) -> Batch:
        """Decode what was fed, up to the limits of `advance`, and return it as a batch, which may be empty.

        Bytes after a limit are decoded into the next batch.

        Raises FrameError if the bytes break the protocol, once the rows before the error were taken.
        """
        self.advance(max_rows, max_bytes)
        return self.finish_batch()

    def finish_batch(self) -> Batch:
        """Return what `advance` decoded so far, without decoding further. Raises FrameError as `take` does."""
        batch = self._finished()
        batch.last_seqnos = self._last_seqnos()
        return batch

    def finish_moves(
        self, streams: dict[int, Stream], in_order: str, find: Callable[[int, int, int], Stream]
    ) -> tuple[Batch, dict[tuple[int, int | None], LazyPosition]]:
        """As `finish_batch`, and advance the streams of the rows: see `_moved`. Return their positions as well."""
        batch = self._finished()
        positions, batch.last_seqnos = self._moved(streams, in_order, find)
        return batch, positions

    def _finished(self) -> Batch:
        if self._error is not None and not self.has_arrivals and not self.new_controls:
            raise self._error
        flow_bytes = self.flow_bytes
        controls = [(row, frame) for row, frame, _ in self.new_controls if isinstance(frame, Frame)]
        self.new_controls = []
        return Batch(self._finish(), self.schema, controls, flow_bytes, [])

    def _failure(self, raw: bytes, offset: int, detail: str | None, document: bool) -> DcpError:
        """Return the error for the frame that stopped the loop.

        The loop knows only that something is wrong. Reading the frame again through the tables gives the same message
        that `decode` would; `detail` is there for what only the loop checks.
        """
        try:
            for _, whole in split(raw, self.max_frame):
                read_frame(whole, self._dialect)
        except FrameError as error:
            return FrameError(error.problem, offset, error.opcode, error.vbucket)
        vbucket = HEADER_STRUCT.unpack_from(raw)[5]
        frame = read_frame(raw, self._dialect, offset)
        seqno = frame.fields.get("seqno")
        if document:
            collection, key = split_collection(frame.key) if self._collections else (None, frame.key)
            return DocumentError(detail or "", key, collection, vbucket, int(seqno or 0))
        subject = frame.name if seqno is None else f"{frame.name} of seqno {seqno!r}"
        # The user has to find the document.
        key = self._key_of(frame)
        named = f", key {key!r:.100}" if key else ""
        return FrameError(f"{subject}{named}: {detail}", offset, raw[1], vbucket)

    def _key_of(self, frame: Frame) -> bytes:
        """Return the key of a frame, without the id of its collection if that can be read."""
        try:
            prefixed = self._collections and self._dialect.by_name[frame.name].document
            return split_collection(frame.key)[1] if prefixed else frame.key
        except RemoteProtocolError:
            return frame.key


def _typed(
    columns: tuple[Column, ...], views: bool, keys: str, values: str, xattrs: str, *, quarantine: bool
) -> tuple[Column, ...]:
    """Return the columns with the types that the options give them."""
    if quarantine and all(column.name != "error" for column in columns):
        columns += tuple(column for column in COLUMNS if column.name == "error")
    formats = {"key": "u" if keys == "utf8" else "z", "xattrs": "+m" if xattrs == "map" else "z"}
    chosen = [_with_format(column, formats.get(column.name, column.format)) for column in columns]
    if values == "utf8":
        # What is no text leaves null, where it does not stop the decoder.
        chosen = [
            replace(column, format="u", nullable=quarantine) if column.name == "value" else column for column in chosen
        ]
    return tuple(_as_view(column) if views else column for column in chosen)


def _with_format(column: Column, format: str) -> Column:
    return column if column.format == format else replace(column, format=format)


def _as_view(column: Column) -> Column:
    viewed = column.name in ("key", "value", "xattrs") and column.format in ("z", "u")
    return replace(column, format="v" + column.format) if viewed else column


def _limits(max_rows: int | None, max_bytes: int | None) -> tuple[int, int]:
    # Called for each chunk that arrives: the common case makes no further call.
    if max_rows is None or not 0 < max_rows <= MAX_BATCH_ROWS:
        max_rows = _limit("max_rows", max_rows, MAX_BATCH_ROWS)
    if max_bytes is None or not 0 < max_bytes <= MAX_BATCH_BYTES:
        max_bytes = _limit("max_bytes", max_bytes, MAX_BATCH_BYTES)
    return max_rows, max_bytes


def _limit(name: str, limit: int | None, most: int) -> int:
    """Return the most that a batch may have, for a limit that is none or above it."""
    if limit is not None and limit < 1:
        raise UsageError(f"{name}: expected 1 or more, found {limit}")
    return most
