"""The decoder: bytes in any chunks to batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from dcp import _codec
from dcp.columns.batch import Batch
from dcp.columns.plan import compile_plan, events_of
from dcp.columns.schema import COLUMNS, Column, Schema, choose, plain
from dcp.errors import DcpError, FrameError, LocalProtocolError
from dcp.wire.frame import Frame, dialect_of, read_frame, split
from dcp.wire.layout import HEADER_STRUCT, Dialect
from dcp.wire.memcached import MAX_FRAME

if TYPE_CHECKING:
    from typing_extensions import Self

# Whether `Decoder.receive` works on this system.
CAN_RECEIVE = _codec.CAN_RECEIVE
# What a batch may take at most: its offsets are numbers of 32 bits, and the last row may be a large one.
MAX_BATCH_BYTES = (1 << 31) - (1 << 21)
MAX_BATCH_ROWS = (1 << 31) - 1


class Decoder(_codec.Decoder):
    """Turns the bytes that a producer sends into batches of columns.

    Feed it bytes in any chunks (`feed`), let a socket write into its memory (`buffer`, `received`), or let it
    have the socket (`receive`); then `take` what is there. One decoder is for one connection.

    columns: names, in any order; None for the default ones. What is not asked for is not decoded.
    collections: keys carry their collection id, as on a connection with HELLO Collections.
    views: keys, values and xattrs are Arrow views into the received bytes; nothing is copied.
    events: the messages that become rows; None for all but system events.
    also: names that the column `event` has besides, for rows that somebody else puts between these.
    inflate: undo snappy. A connection opened with NoValueWithUnderlyingDatatype needs False: its datatypes
    are those of what is stored, not of what is sent.
    xattrs: "split" their section off the value, make a "map" of it, or leave them "inline".
    keys: "binary", or "utf8": checked.
    types: "wire", numbers unsigned and as wide as they are sent, events a dictionary; or "plain", as Spark has
    them: events text, numbers signed and of 32 bits or, where that is too small, of 64, of which those of the
    wire keep their bits.
    errors: "raise", or "quarantine": a value that cannot be read is delivered as it came, and the
    column `error` says why.
    max_frame, max_value: the largest frame, and the largest value after inflating, in bytes.
    """

    schema: Schema
    controls: list[tuple[int, Frame]]
    befores: list[int]
    _dialect: Dialect
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
        errors: Literal["raise", "quarantine"] = "raise",
        types: Literal["wire", "plain"] = "wire",
    ) -> Self:
        for name, value, accepted in (
            ("xattrs", xattrs, ("split", "map", "inline")),
            ("keys", keys, ("binary", "utf8")),
            ("errors", errors, ("raise", "quarantine")),
            ("types", types, ("wire", "plain")),
        ):
            if value not in accepted:
                raise LocalProtocolError(f"{name}: expected one of {', '.join(accepted)}, found {value!r}")
        table = dialect_of(dialect)
        chosen = _typed(choose(table, columns), views, keys, xattrs, quarantine=errors == "quarantine")
        if types == "plain":
            chosen = tuple(map(plain, chosen))
        plan = compile_plan(table, chosen, (*events_of(table, events), *also))
        self = super().__new__(
            cls,
            plan,
            max_frame=max_frame,
            max_value=max_value,
            collections=collections,
            inflate=inflate,
            split_xattrs=xattrs != "inline",
            check_keys=keys == "utf8",
            quarantine=errors == "quarantine",
            views=views,
        )
        self.schema = Schema(chosen, plan)
        self.controls = []
        self.befores = []
        self._dialect = table
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
        """Receive from a socket and decode, without the GIL, until there is something to do.

        That is a limit reached, a frame for `controls`, what breaks the protocol, the first rows of a batch and no
        bytes behind them, a byte from the socket `bell`, that nothing came for so many seconds, or the end of the
        connection. `advance` says which, and has to be asked before the next call. Both sockets are descriptors; what
        came from the bell is thrown away. Says how many bytes came, and whether the connection is closed.

        Raises OSError where the connection broke; what came before is there. Not on Windows: see CAN_RECEIVE.
        """
        return self._receive(fd, bell, seconds, *_limits(max_rows, max_bytes))

    def advance(self, max_rows: int | None = None, max_bytes: int | None = None) -> bool:
        """Decode what was fed into the batch in work, and say whether it has reached a limit.

        `controls` has the frames that were met, as soon as this returns, and `befores` the last seqno that the
        stream of each had had by then. What breaks the protocol is
        raised by the `take` after the one that delivers what came before it.
        """
        if self._error is not None:
            return True
        full = self._advance(*_limits(max_rows, max_bytes))
        for row, last, offset, counted, raw in self._controls():
            try:
                self.controls.append((row, read_frame(raw, self._dialect, offset)))
                self.befores.append(last)
            except FrameError as error:
                self._error = error
                self._cut(row, counted)
                return True
        problem = self._problem()
        if problem is not None:
            self._error = self._failure(*problem)
        return full or problem is not None

    def forget(self, row: int) -> None:
        """Take the rows from `row` on out of the batch in work: the control before them was wrong after all.

        Their bytes are counted for flow control all the same.
        """
        self._cut(row, self.counted)

    def take(self, max_rows: int | None = None, max_bytes: int | None = None) -> Batch:
        """Decode on, and hand out the rows so far.

        Decoding stops at `max_rows`, and before a frame that would make more than `max_bytes` of what came;
        the rest comes with the next batch.

        Raises FrameError where the bytes break the protocol, after the rows before that were taken.
        """
        self.advance(max_rows, max_bytes)
        return self.hand_out()

    def hand_out(self) -> Batch:
        """What `advance` decoded so far, and nothing further."""
        if self._error is not None and not self.rows and not self.controls:
            raise self._error
        counted, controls = self.counted, self.controls
        self.controls, self.befores = [], []
        return Batch(self._finish(), self.schema, controls, counted, self._lasts())

    def _failure(self, raw: bytes, offset: int, detail: str | None) -> DcpError:
        """The error for what stopped the loop. What the tables say of a frame, they say here too."""
        try:
            for _, whole in split(raw, self.max_frame):
                read_frame(whole, self._dialect)
        except FrameError as error:
            return FrameError(error.problem, offset, error.opcode, error.vbucket)
        vbucket = HEADER_STRUCT.unpack_from(raw)[5]
        frame = read_frame(raw, self._dialect, offset)
        seqno = frame.fields.get("seqno")
        whose = frame.name if seqno is None else f"{frame.name} of seqno {seqno!r}"
        return FrameError(f"{whose}: {detail}", offset, raw[1], vbucket)


def _typed(columns: tuple[Column, ...], views: bool, keys: str, xattrs: str, *, quarantine: bool) -> tuple[Column, ...]:
    """The columns with the types that the options give them."""
    if quarantine and all(column.name != "error" for column in columns):
        columns += tuple(column for column in COLUMNS if column.name == "error")
    formats = {"key": "u" if keys == "utf8" else "z", "xattrs": "+m" if xattrs == "map" else "z"}
    chosen = (replace(column, format=formats.get(column.name, column.format)) for column in columns)
    return tuple(_viewed(column) if views else column for column in chosen)


def _viewed(column: Column) -> Column:
    viewed = column.name in ("key", "value", "xattrs") and column.format in ("z", "u")
    return replace(column, format="v" + column.format) if viewed else column


def _limits(max_rows: int | None, max_bytes: int | None) -> tuple[int, int]:
    if max_rows is None or not 0 < max_rows <= MAX_BATCH_ROWS:
        max_rows = _limit("max_rows", max_rows, MAX_BATCH_ROWS)
    if max_bytes is None or not 0 < max_bytes <= MAX_BATCH_BYTES:
        max_bytes = _limit("max_bytes", max_bytes, MAX_BATCH_BYTES)
    return max_rows, max_bytes


def _limit(name: str, limit: int | None, most: int) -> int:
    if limit is None:
        return most
    if limit < 1:
        raise LocalProtocolError(f"{name}: expected 1 or more, found {limit}")
    return min(limit, most)
