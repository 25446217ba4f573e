"""The rows of a stream: columns, rollback and purge rows, and the time range that cuts them. Immutable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.columns.plan import events_of
from dcp.columns.row_filter import RowFilter
from dcp.columns.schema import BatchSchema
from dcp.errors import UsageError
from dcp.wire.dcp import DCP
from dcp.wire.field import u64
from dcp.wire.frame import Frame, dialect_of, encode
from dcp.wire.layout import Dialect, Layout, Magic, Message, Role, Side

# Events that no node sends: the client inserts their rows.
ROLLBACK, PURGED = _REPORTED = "rollback", "purged"

# Makes a batch of one row from vbucket, end of the range, seqno and event.
ReportRow = Callable[[int, int, int, str], Batch]


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Columns and types of a stream's rows.

    columns: names; None for the default columns. decoding: further options of Decoder.
    since, until: lowest CAS of the stream, and the lowest after it; None for no limit.
    ends: last seqno of the stream, by vbucket; vbuckets that are not in it have none.
    in_order: False if nodes may send snapshots out of order.
    """

    dialect: str
    columns: tuple[str, ...] | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)
    since: int | None = None
    until: int | None = None
    ends: Mapping[int, int] = field(default_factory=dict)
    in_order: bool = True

    def limited(self, since: int | None, until: int | None, ends: Mapping[int, int]) -> RowFormat:
        """Return the same format for a stream that is limited to a time range, or to some ends."""
        limited = replace(self, since=since, until=until, ends=ends)
        if limited._is_filtered and self.decoding.get("views"):
            raise UsageError(
                "views: expected False for a stream with a time, or with a checkpoint as its end: its rows are filtered"
            )
        if limited._is_filtered and find_spec("pyarrow") is None:
            # Before the stream starts, and not at the first batch that has a row to remove.
            raise UsageError(
                "a stream with a time, or with a checkpoint as its end, needs pyarrow: pip install pyarrow"
            )
        return limited

    @property
    def _is_filtered(self) -> bool:
        return (self.since, self.until) != (None, None) or bool(self.ends)

    @property
    def has_xattrs(self) -> bool:
        """True if nodes have to send extended attributes."""
        return self.columns is None or "xattrs" in self.columns

    @property
    def has_values(self) -> bool:
        """True if nodes have to send values: for their column, or to read documents from."""
        columns = {"value", "xattrs"} if self.columns is None else {*self.columns}
        reads = self.decoding.get("document") is not None or self.decoding.get("where") is not None
        return reads or bool(columns & {"value", "xattrs", "bad_value", "error"}) or self.dialect != DCP.name

    @property
    def schema(self) -> BatchSchema:
        """Columns that are delivered."""
        return Decoder(self.dialect, self.columns, also=_REPORTED, **self.decoding).schema

    @property
    def filter(self) -> RowFilter | None:
        """Filter for the limits; None if there are none. It removes columns that are only there for it."""
        if not self._is_filtered:
            return None
        return RowFilter(self.schema, self.since, self.until, self.ends, in_order=self.in_order)

    @property
    def _received(self) -> Iterable[str] | None:
        """Names of the columns to decode."""
        if self.columns is None:
            # The default columns have all that a filter needs.
            return None
        return RowFilter.required(self.columns, by_seqno=bool(self.ends)) if self._is_filtered else self.columns

    def decoder(self, collections: bool) -> Decoder:
        """Return a new decoder of received bytes. `collections`: keys carry collection ids."""
        return Decoder(self.dialect, self._received, collections=collections, also=_REPORTED, **self.decoding)

    def report_row(self) -> ReportRow:
        """Return the function that makes rollback and purge rows of this format."""
        # The same events in the same order as in received batches: they share one dictionary.
        events = (*events_of(dialect_of(self.dialect), None), *_REPORTED)
        return report_row(Decoder(with_report_rows(self.dialect), self._received, events=events, **self.decoding))


@cache
def with_report_rows(dialect: str) -> Dialect:
    """Return a dialect with two more messages, which only the client sends, to its own decoder.

    No producer uses their opcodes. Rows made this way have the types and columns of all others by construction.
    """
    messages = (
        Message(name, opcode, (Layout(extras=(u64("seqno"),)),), Side.PRODUCER, "this module", role=Role.ROW)
        for name, opcode in ((ROLLBACK, 0x68), (PURGED, 0x69))
    )
    return dialect_of(dialect).extend(f"{dialect} with rollback", "with rollbacks as messages", *messages)


def report_row(decoder: Decoder) -> ReportRow:
    """Return the function that makes a batch of one rollback or purge row.

    decoder: one of a dialect of `with_report_rows`.

    A rollback row undoes everything of its vbucket above `seqno`, up to `snapshot_end`. A purge row says that deletions
    above `seqno`, up to `snapshot_end`, may be missing. Dialects whose snapshots have no numbers leave these null.
    """
    dialect = decoder._dialect

    def make(vbucket: int, end: int, seqno: int, event: str) -> Batch:
        window = {"snapshot_start": seqno, "snapshot_end": end, "flags": 0}
        for name, values in (("snapshot_marker", window), (event, {"seqno": seqno})):
            if name in dialect.by_name:
                decoder.feed(encode(Frame(name, Magic.REQUEST, vbucket=vbucket, fields=values), dialect))
        return decoder.take()

    return make
