"""What the sessions of all dialects before DCP share: a handshake without an open, and no flow control."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace

from dcp.columns.decoder import Decoder
from dcp.errors import LocalProtocolError
from dcp.position import Progress
from dcp.session.events import Event
from dcp.session.handshake import ConnectionSettings
from dcp.session.session import Delivery, Session
from dcp.session.stream import Stream
from dcp.wire.dcp import ENDLESS, StreamFlag
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.frame import Frame


class LegacySession(Session, ABC):
    """A session in the dialect of its decoder.

    `Delivery.counted` are all bytes that came up to its last row, and 0 if it has none. Nodes are not told how much
    may be under way: where that is more than the window, the owner has to stop reading.
    """

    def __init__(self, wishes: ConnectionSettings, decoder: Callable[[bool], Decoder], now: float) -> None:
        # What came later than these dialects.
        plain = replace(wishes, stream=False, collections=False, xattrs=False, snappy=False)
        self._waiting = self._delivered = 0
        super().__init__(plain, decoder, now)

    @property
    def hungry(self) -> bool:
        return not self._wishes.window or self._waiting < self._wishes.window

    def take(self) -> Delivery:
        delivery = super().take()
        if not len(delivery.batch):
            return replace(delivery, counted=0)
        size = self._decoder.offset - self._delivered
        self._delivered += size
        self._waiting += size
        return replace(delivery, counted=size)

    def processed(self, count: int) -> None:
        self._waiting -= count

    def give_back(self) -> None:
        """No dialect acknowledges bytes."""

    def open(
        self,
        progress: Progress,
        *,
        end: int = ENDLESS,
        flags: StreamFlag = StreamFlag.ACTIVE_VB_ONLY,
        chosen: StreamFilter | None = None,
    ) -> Stream:
        if chosen is not None or flags != StreamFlag.ACTIVE_VB_ONLY:
            raise LocalProtocolError(f"{self.dialect.title}: expected a stream without flags and filter, found one")
        return self._open(progress, end)

    @abstractmethod
    def _open(self, progress: Progress, end: int) -> Stream:
        """Ask for a stream from a position on."""

    def close_stream(self, stream: Stream) -> None:
        raise LocalProtocolError(f"{self.dialect.title}: no message closes a stream; close the connection")

    def _control(self, frame: Frame, before: int) -> Iterable[Event]:
        return self._go_on(frame) if self.agreement is None else self._message(frame, before)

    @abstractmethod
    def _message(self, frame: Frame, before: int) -> Iterable[Event]:
        """What comes when the handshake is over."""

    def _forget_controls(self) -> None:
        if self._decoder.controls:
            self._decoder.hand_out()
            self._seen = 0
