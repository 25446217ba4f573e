"""Base of the sessions in dialects before DCP: a handshake without OPEN, and no flow control."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace

from dcp.columns.decoder import Decoder
from dcp.errors import UsageError
from dcp.position import Progress
from dcp.session.events import Event
from dcp.session.handshake import ConnectionSettings
from dcp.session.session import Delivery, Session
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import ENDLESS, StreamFlag
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.frame import Frame


class LegacySession(Session, ABC):
    """A session in the dialect of its decoder.

    `Delivery.flow_bytes` are all bytes that arrived up to its last row; 0 if it has no rows. These dialects cannot
    limit the bytes in flight: once more than the window waits for the consumer, `wants_bytes` is False and the owner
    has to stop receiving.
    """

    def __init__(self, settings: ConnectionSettings, decoder: Callable[[bool], Decoder], now: float) -> None:
        # None of these existed before DCP.
        plain = replace(settings, stream=False, collections=False, xattrs=False, snappy=False)
        # Bytes that were delivered and not processed yet, and all bytes that were delivered.
        self._unprocessed = self._delivered = 0
        super().__init__(plain, decoder, now)

    @property
    def wants_bytes(self) -> bool:
        """True unless the window is full of bytes that the consumer has not processed."""
        return not self._settings.window or self._unprocessed < self._settings.window

    def take(self) -> Delivery:
        """Return the current batch, as Session.take does."""
        delivery = super().take()
        if not len(delivery.batch):
            return replace(delivery, flow_bytes=0)
        size = self._decoder.offset - self._delivered
        self._delivered += size
        self._unprocessed += size
        return replace(delivery, flow_bytes=size)

    def processed(self, count: int) -> None:
        """Record that the consumer is done with `count` flow bytes."""
        self._unprocessed -= count

    def acknowledge(self) -> None:
        """Do nothing: no dialect before DCP acknowledges bytes."""

    def open(
        self,
        progress: Progress,
        *,
        end: int = ENDLESS,
        flags: StreamFlag = StreamFlag.ACTIVE_VB_ONLY,
        stream_filter: StreamFilter | None = None,
    ) -> ConsumerStream:
        """Request a stream that resumes at a position. Raises UsageError for flags or a filter: only DCP has them."""
        if stream_filter is not None or flags != StreamFlag.ACTIVE_VB_ONLY:
            raise UsageError(f"{self.dialect.title}: expected a stream without flags and filter, found one")
        return self._open(progress, end)

    @abstractmethod
    def _open(self, progress: Progress, end: int) -> ConsumerStream:
        """Request a stream that resumes at a position."""

    def close_stream(self, stream: ConsumerStream) -> None:
        """Raise UsageError: no dialect before DCP has a message for it."""
        raise UsageError(f"{self.dialect.title}: no message closes a stream; close the connection")

    def _control(self, frame: Frame, last_seqno: int) -> Iterable[Event]:
        return self._continue_handshake(frame) if self.agreement is None else self._message(frame, last_seqno)

    @abstractmethod
    def _message(self, frame: Frame, last_seqno: int) -> Iterable[Event]:
        """Handle a message after the handshake. `last_seqno` as in Session._control."""

    def _forget_controls(self) -> None:
        if self._decoder.new_controls:
            self._decoder.finish_batch()
            self._handled = 0
