"""Which messages of a TAP connection ask for an acknowledgement, and which of them are due."""

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

_WIDTH = 2
_LOW = 0 if sys.byteorder == "little" else _WIDTH - 1
_ASKS = re.compile(b"[" + re.escape(bytes(flags for flags in range(256) if flags & TapFlag.ACK)) + b"]", re.DOTALL)
_ROW, _CONTROL = 0, 1


class AskingRows:
    """Reads along what comes, for the two columns that nobody else may want."""

    def __init__(self) -> None:
        self._decoder: Decoder | None = Decoder("tap", ["event", "tap_flags", "opaque"])
        self._rows = 0

    def read(self, data: bytes) -> Iterator[tuple[int, str, int]]:
        """The rows that ask, as their number, name and opaque. What is wrong with the bytes is for others to say."""
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
        for found in _ASKS.finditer(flags[_LOW : len(batch) * _WIDTH : _WIDTH]):
            row = found.start()
            opaque = int.from_bytes(opaques[4 * row : 4 * row + 4], sys.byteorder)
            yield self._rows + row, batch.events[events[row]], opaque
        self._rows += len(batch)


class Acks:
    """What is to be answered, in the order of the wire, as soon as the consumer is done with all rows before it."""

    def __init__(self) -> None:
        # How many rows were handed out.
        self.rows = 0
        self._done = 0
        # The number of rows behind each batch that was handed out and is not processed yet.
        self._handed: deque[int] = deque()
        self._waiting: list[tuple[int, int, int, str, Status]] = []

    def row(self, number: int, name: str, opaque: int) -> None:
        heapq.heappush(self._waiting, (number + 1, _ROW, opaque, name, Status.SUCCESS))

    def control(self, rows: int, frame: Frame, status: Status) -> None:
        """A message behind so many rows of the batch in work."""
        heapq.heappush(self._waiting, (self.rows + rows, _CONTROL, frame.opaque, frame.name, status))

    def handed_out(self, rows: int) -> None:
        if rows:
            self.rows += rows
            self._handed.append(self.rows)

    def processed(self) -> None:
        """The consumer is done with one more of the batches that have rows, in their order."""
        if self._handed:
            self._done = self._handed.popleft()

    def due(self, status: Status = Status.SUCCESS) -> Iterator[Frame]:
        """status: what is said of rows."""
        while self._waiting and self._waiting[0][0] <= self._done:
            _, kind, opaque, name, own = heapq.heappop(self._waiting)
            yield Frame(name, Magic.RESPONSE, opaque, status=int(status if kind == _ROW else own))
