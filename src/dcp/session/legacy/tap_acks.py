"""Acknowledgements of TAP: which messages request one, and when each is due."""

from __future__ import annotations

import heapq
import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from dcp.columns.decoder import Decoder
from dcp.errors import DcpError
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from dcp.wire.tap import TapFlag

# Bytes of a cell of `tap_flags`, and which of them has the flag for an acknowledgement.
_WIDTH = 2
_LOW = 0 if sys.byteorder == "little" else _WIDTH - 1
# Any value of that byte with the flag set. One search in C finds the few rows of a batch that request one.
_REQUESTED = re.compile(b"[" + re.escape(bytes(flags for flags in range(256) if flags & TapFlag.ACK)) + b"]", re.DOTALL)
_ROW, _CONTROL = 0, 1


class AckRequests:
    """Second decoder of the same bytes, for the two columns that the consumer's batches may lack."""

    def __init__(self) -> None:
        self._decoder: Decoder | None = Decoder("tap", ["event", "tap_flags", "opaque"])
        self._rows = 0

    def read(self, data: bytes) -> Iterator[tuple[int, str, int]]:
        """Yield (row number, message name, opaque) of each row that requests an acknowledgement.

        Malformed bytes end the search silently: the session's own decoder raises the error.
        """
        if self._decoder is None:
            return
        self._decoder.feed(data)
        try:
            batch = self._decoder.take()
        except DcpError:
            self._decoder = None
            return
        buffers: Any = batch._rows.buffers
        events, flags, opaques = (bytes(buffers(column)[1]) for column in range(3))
        for found in _REQUESTED.finditer(flags[_LOW : len(batch) * _WIDTH : _WIDTH]):
            row = found.start()
            opaque = int.from_bytes(opaques[4 * row : 4 * row + 4], sys.byteorder)
            yield self._rows + row, batch.events[events[row]], opaque
        self._rows += len(batch)


class TapAcks:
    """Acknowledgements that wait until the consumer has processed all rows before them, in the order of the wire."""

    def __init__(self) -> None:
        # Rows delivered so far, and rows processed so far.
        self.rows = 0
        self._processed = 0
        # For each delivered batch that is not processed yet, the number of rows up to its end.
        self._unprocessed: deque[int] = deque()
        # (number of rows before it, row or control, opaque, name, status): a heap, the earliest first.
        self._waiting: list[tuple[int, int, int, str, Status]] = []

    def add_row(self, number: int, name: str, opaque: int) -> None:
        """Add the acknowledgement of a row, by its number on the connection."""
        heapq.heappush(self._waiting, (number + 1, _ROW, opaque, name, Status.SUCCESS))

    def add_control(self, rows: int, frame: Frame, status: Status) -> None:
        """Add the acknowledgement of a control message that arrived after `rows` rows of the current batch."""
        heapq.heappush(self._waiting, (self.rows + rows, _CONTROL, frame.opaque, frame.name, status))

    def delivered(self, rows: int) -> None:
        """Record the delivery of a batch."""
        if rows:
            self.rows += rows
            self._unprocessed.append(self.rows)

    def processed(self) -> None:
        """Record that the consumer is done with the oldest delivered batch that has rows."""
        if self._unprocessed:
            self._processed = self._unprocessed.popleft()

    def due(self, row_status: Status = Status.SUCCESS) -> Iterator[Frame]:
        """Yield the answers that are due, and forget them. `row_status` is the status of those for rows."""
        while self._waiting and self._waiting[0][0] <= self._processed:
            _, kind, opaque, name, own = heapq.heappop(self._waiting)
            yield Frame(name, Magic.RESPONSE, opaque, status=int(row_status if kind == _ROW else own))
