"""Send buffer of a connection's streams, limited by its size and by the consumer's flow-control window."""

from __future__ import annotations

from typing import Any

from dcp.columns.rows import RowEncoder

CHUNK = 256 << 10
# Free bytes of the chunk below which no stream begins another frame.
_HEADROOM = 4 << 10
# Rows that are larger than the chunk wait in buffers of their own, at most this many at a time.
_MAX_PARTS = 4
_UNLIMITED = 1 << 62


class Outbox:
    """Buffer that streams fill and a socket empties, in turns.

    `window` is the number of bytes that the consumer allows to be unacknowledged, 0 for no limit; `outstanding` is the
    number that are. `written` counts all bytes, `items` all rows.
    """

    def __init__(self) -> None:
        self.window = 0
        self.outstanding = 0
        self.written = 0
        self.items = 0
        # One chunk is used again and again. [_begin, _at) is written and not yet among the parts.
        self._chunk = bytearray(CHUNK)
        self._begin = self._at = 0
        self._parts: list[bytes | memoryview] = []

    @property
    def open(self) -> bool:
        """True if a stream may write another frame."""
        return len(self._parts) < _MAX_PARTS and self._at + _HEADROOM <= CHUNK and not self.stalled

    @property
    def stalled(self) -> bool:
        """True if the window is full."""
        return 0 < self.window <= self.outstanding

    def frame(self, data: bytes | memoryview) -> None:
        """Write one frame, or several."""
        # As on servers, a frame that crosses the limit of the window is sent whole.
        if len(data) <= CHUNK - self._at:
            self._chunk[self._at : self._at + len(data)] = data
            self._at += len(data)
        else:
            self._close_part()
            self._parts.append(data)
        self._count(len(data))

    def rows(self, encoder: RowEncoder, rows: list[Any], begin: int, **same: Any) -> int:
        """Write rows from `begin` on until there is no more room; return the index of the next row."""
        enough = self.window - self.outstanding if self.window else _UNLIMITED
        reached, end = encoder.write(self._chunk, self._at, rows, begin, enough, **same)
        self._count(end - self._at)
        self._at = end
        if reached == begin:
            reached = self._large_row(encoder, rows, begin, same)
        self.items += reached - begin
        return reached

    def take(self) -> list[bytes | memoryview]:
        """Return the buffers to send. They must have been sent before more is written: the chunk is reused."""
        self._close_part()
        parts, self._parts = self._parts, []
        self._begin = self._at = 0
        return parts

    def acknowledge(self, count: int) -> None:
        """Take an acknowledgement of bytes. Servers ignore what exceeds the outstanding ones."""
        self.outstanding = max(0, self.outstanding - count)

    def _large_row(self, encoder: RowEncoder, rows: list[Any], begin: int, same: dict[str, Any]) -> int:
        """Write a row for which the chunk has no room into a buffer of its own."""
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
