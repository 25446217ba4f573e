"""What a connection has to send next: stream frames, as far as there is room and window for them."""

from __future__ import annotations

from typing import Any

from dcp.columns.rows import RowEncoder

CHUNK = 256 << 10
# A frame that has so much room at least is not held back for want of it.
_HEADROOM = 4 << 10
# Large rows that wait at the same time, each in a buffer of its own.
_MOST_PARTS = 4
_ENDLESS = 1 << 62


class Outbox:
    """A buffer that streams fill and a socket empties, in turns.

    window: how many bytes a consumer lets come before it acknowledges some; 0 for any number.
    outstanding: how many of them it has not acknowledged.
    """

    def __init__(self) -> None:
        self.window = 0
        self.outstanding = 0
        self.written = 0
        # Rows among what was written.
        self.items = 0
        self._chunk = bytearray(CHUNK)
        self._begin = self._at = 0
        self._parts: list[bytes | memoryview] = []

    @property
    def open(self) -> bool:
        """Whether a stream may write another frame."""
        return len(self._parts) < _MOST_PARTS and self._at + _HEADROOM <= CHUNK and not self.stalled

    @property
    def stalled(self) -> bool:
        """Whether the window is full."""
        return 0 < self.window <= self.outstanding

    def frame(self, data: bytes, counted: bool = True) -> None:
        """One frame, whole: the one that crosses the edge of the window is still sent."""
        if len(data) <= CHUNK - self._at:
            self._chunk[self._at : self._at + len(data)] = data
            self._at += len(data)
        else:
            self._close_part()
            self._parts.append(data)
        self._count(len(data) if counted else 0)

    def rows(self, encoder: RowEncoder, rows: list[Any], begin: int, **same: Any) -> int:
        """The rows from `begin` on, as far as there is room; says which one is next."""
        enough = self.window - self.outstanding if self.window else _ENDLESS
        reached, end = encoder.write(self._chunk, self._at, rows, begin, enough, **same)
        self._count(end - self._at)
        self._at = end
        if reached == begin:
            reached = self._large_row(encoder, rows, begin, same)
        self.items += reached - begin
        return reached

    def take(self) -> list[bytes | memoryview]:
        """What is to be sent now. It must have been sent before more is written."""
        self._close_part()
        parts, self._parts = self._parts, []
        self._begin = self._at = 0
        return parts

    def acknowledge(self, count: int) -> None:
        """The consumer has processed so many bytes more."""
        self.outstanding = max(0, self.outstanding - count)

    def _large_row(self, encoder: RowEncoder, rows: list[Any], begin: int, same: dict[str, Any]) -> int:
        """A row for which the chunk has no room left: in a buffer of its own."""
        self._close_part()
        room = bytearray(len(rows[begin].key) + len(rows[begin].value) + _HEADROOM)
        reached, end = encoder.write(room, 0, rows, begin, 1, **same)
        self._parts.append(memoryview(room)[:end])
        self._count(end)
        return reached

    def _count(self, size: int) -> None:
        self.written += size
        self.outstanding += size if self.window else 0

    def _close_part(self) -> None:
        if self._at > self._begin:
            self._parts.append(memoryview(self._chunk)[self._begin : self._at])
        self._begin = self._at
