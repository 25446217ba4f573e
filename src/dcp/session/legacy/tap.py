"""Session over TAP: one request for all vbuckets, then what exists, then what changes.

docs/session.md lists what streams guarantee there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dcp._codec import LazyPosition
from dcp.columns.decoder import Decoder
from dcp.errors import ServerError, UsageError
from dcp.json_reader import MAX_U64
from dcp.position import Progress
from dcp.session.events import Event, MapChanged, StreamAccepted, StreamEnded, StreamRefused
from dcp.session.handshake import ConnectionSettings
from dcp.session.legacy.legacy_session import LegacySession
from dcp.session.legacy.tap_acks import AckRequests, TapAcks
from dcp.session.session import Delivery
from dcp.session.states import REQUESTED, TAP, follow
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import ENDLESS, StreamEnd
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status, VbucketState
from dcp.wire.tap import TAP_CONNECT, TapConnect, TapConnectFlag, TapFlag, TapOpaque

# A backfill date that is never reached: no backfill, only changes.
ONLY_CHANGES = MAX_U64
_FLAGS = TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_FLAG_BYTEORDER
# Seconds: an idle server sends a noop every 20 s, and counts as gone after three missing ones.
_SILENCE = 60.0
_BUFFER_SIZE = 1 << 18
# Messages that a node sends before it has announced the last of the requested vbuckets.
_BEFORE_ANNOUNCEMENTS = (
    TapOpaque.ENABLE_AUTO_NACK,
    TapOpaque.ENABLE_CHECKPOINT_SYNC,
    TapOpaque.INITIAL_VBUCKET_STREAM,
)
# Opaque messages that are about one vbucket, and their events in the table of states.
_VBUCKET_EVENTS = {
    TapOpaque.INITIAL_VBUCKET_STREAM: "initial_vbucket_stream",
    TapOpaque.CLOSE_BACKFILL: "close_backfill",
    TapOpaque.OPEN_CHECKPOINT: "open_checkpoint",
}


class TapConsumerStream(ConsumerStream):
    """A vbucket of the connection. Its position stays at the beginning: rows have no seqno to resume from.

    checkpoint: id of the last checkpoint that began; None before the first.
    """

    def __init__(self, vbucket: int, progress: Progress, end: int) -> None:
        super().__init__(vbucket, progress, end)
        self.checkpoint: int | None = None

    @property
    def lazy_position(self) -> LazyPosition:
        """Position now, which is always the beginning."""
        return LazyPosition(self.progress, 0)

    def transition(self, event: str) -> None:
        """Enter the state that follows an event. Raises RemoteProtocolError if the event is not allowed."""
        self.state = follow(TAP, self.state, event, f"vbucket {self.vbucket}")


class TapSession(LegacySession):
    """One connection to one node. `open` all vbuckets first: the next outgoing bytes request them together.

    flags: flags of TAP_CONNECT besides those that the other arguments imply.
    date: backfill only what changed since, in Unix seconds; None for no backfill section in the request.
    checkpoints: (vbucket, checkpoint id) pairs to resume from; None for none.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        decoder: Callable[[bool], Decoder],
        now: float,
        *,
        flags: TapConnectFlag = _FLAGS,
        date: int | None = 0,
        checkpoints: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        self._request = TapConnect(date, None, checkpoints)
        self._flags = flags | TapConnectFlag.LIST_VBUCKETS
        self._flags |= TapConnectFlag.BACKFILL if date is not None else TapConnectFlag(0)
        self._flags |= TapConnectFlag.CHECKPOINT if checkpoints is not None else TapConnectFlag(0)
        self._connected = False
        self._acks, self._ack_requests = TapAcks(), AckRequests()
        self._received = bytearray(_BUFFER_SIZE)
        super().__init__(settings, decoder, now)

    # Bytes.

    @property
    def receiver(self) -> None:
        """None: all bytes have to pass `received`, which looks for rows that request an acknowledgement."""

    def buffer(self) -> memoryview:
        """Return the memory where the next bytes from the node belong."""
        return memoryview(self._received)

    def received(self, count: int, now: float, max_rows: int, max_bytes: int) -> tuple[list[Event], bool]:
        """Take `count` bytes that were written to the last `buffer`, as Session.received does."""
        data = bytes(self._received[:count])
        for number, name, opaque in self._ack_requests.read(data):
            self._acks.add_row(number, name, opaque)
        self._decoder.feed(data)
        self.heard(now)
        return self.advance(max_rows, max_bytes)

    def outgoing(self) -> bytes:
        """Return the bytes to send: the request for all vbuckets once there are some, then acknowledgements."""
        if self.agreement is not None and self.streams and not self._connected:
            self._connect()
        self._send_acks(Status.SUCCESS)
        return super().outgoing()

    def take(self) -> Delivery:
        """Return the current batch, as Session.take does."""
        delivery = super().take()
        # Those that were not selected have arrived as well.
        self._acks.delivered(len(delivery.batch) + delivery.batch.unselected_rows)
        return delivery

    def processed(self, count: int) -> None:
        """Record that the consumer is done with `count` flow bytes; acknowledgements before their end become due."""
        super().processed(count)
        if count:
            self._acks.processed()

    def decline(self, count: int, status: Status = Status.ETMPFAIL) -> None:
        """Refuse the oldest delivered batch: the node sends its rows that request an acknowledgement again later."""
        # Batches before this one were processed: their rows are acknowledged, not declined.
        self._send_acks(Status.SUCCESS)
        self.processed(count)
        self._send_acks(status)

    def silence_deadline(self) -> float | None:
        """Return the time at which the node counts as gone unless bytes arrive; None if nothing is due from it."""
        if self.agreement is None:
            return super().silence_deadline()
        expected = self._connected and TapConnectFlag.SUPPORT_ACK in self._flags and self.wants_bytes
        return self.last_heard + _SILENCE if expected else None

    def _send_acks(self, row_status: Status) -> None:
        for frame in self._acks.due(row_status):
            self._send(frame)

    def _new_decoder(self, collections: bool) -> Decoder:
        """Return a decoder that takes rows of all vbuckets: they have no seqno, and an opaque of their own."""
        return self._make_decoder(collections)

    # Commands.

    def _open(self, progress: Progress, end: int) -> TapConsumerStream:
        """Add a vbucket to the request. Any `end` ends its stream after what exists.

        Raises UsageError if the request was sent already, or the position is not the beginning.
        """
        if self._connected:
            raise UsageError("TAP: expected all vbuckets before the first bytes go out, found another one")
        if progress.position.seqno:
            raise UsageError(f"vbucket {progress.position.vbucket}: TAP can begin at the beginning only")
        # Messages carry no opaque of the request, so the vbucket stands in for it.
        stream = TapConsumerStream(progress.position.vbucket, Progress(progress.position), end)
        self._add(stream)
        return stream

    def _connect(self) -> None:
        self._connected = True
        vbuckets = tuple(stream.vbucket for stream in self.streams.values())
        value = TAP_CONNECT.encode(TapConnect(self._request.backfill, vbuckets, self._request.checkpoints))
        fields = {"flags": int(self._flags)}
        self._send(Frame("tap_connect", Magic.REQUEST, fields=fields, key=self._settings.name.encode(), value=value))

    # Control messages.

    def _message(self, frame: Frame, last_seqno: int) -> Iterable[Event]:
        if frame.kind.answers:
            return self._connect_refused(frame) if frame.name == "tap_connect" else self._answer(frame)
        if frame.name == "noop":
            # A node does not report that vbuckets moved, so every noop is an occasion to look at the map.
            return (*self._refuse_unannounced(), MapChanged(None))
        if "tap_flags" not in frame.fields:
            return self._ignore(frame)
        status = self._status_of(frame)
        if status or int(frame.fields["tap_flags"]) & TapFlag.ACK:
            row = self._decoder.new_controls[self._handled][0]
            self._acks.add_control(row, frame, status)
        return () if status else tuple(self._handle(frame))

    def _status_of(self, frame: Frame) -> Status:
        """Return the status to answer with: takeovers that were not requested, and messages in a loop, are refused."""
        if not frame.fields["ttl"]:
            return Status.EINVAL
        takes_over = TapConnectFlag.TAKEOVER_VBUCKETS in self._flags
        return Status.NOT_SUPPORTED if frame.name == "tap_vbucket_set" and not takes_over else Status.SUCCESS

    def _handle(self, frame: Frame) -> Iterable[Event]:
        if frame.name == "tap_opaque":
            yield from self._opaque_message(frame)
        elif frame.name == "tap_flush":
            raise ServerError("the bucket was flushed: all documents that were streamed are gone, start over")
        elif frame.name == "tap_vbucket_set":
            if frame.fields["state"] == VbucketState.ACTIVE:
                yield from self._vbucket_event(frame, "taken_over")
        else:
            yield from self._vbucket_event(frame, frame.name)

    def _opaque_message(self, frame: Frame) -> Iterable[Event]:
        code = frame.fields["code"]
        if code not in _BEFORE_ANNOUNCEMENTS:
            yield from self._refuse_unannounced()
        if code == TapOpaque.CLOSE_TAP_STREAM:
            for stream in list(self.streams.values()):
                yield from self._end_stream(stream, "close_tap_stream")
        elif code in _VBUCKET_EVENTS:
            yield from self._vbucket_event(frame, _VBUCKET_EVENTS[TapOpaque(int(code))])
        elif self._request.backfill == ONLY_CHANGES:
            # Without a backfill no vbucket is announced: the first message is taken for the answer.
            for stream in self.streams.values():
                if stream.state == REQUESTED:
                    stream.transition("only_changes")
                    yield StreamAccepted(stream)

    def _vbucket_event(self, frame: Frame, event: str) -> Iterable[Event]:
        stream = self.streams.get(frame.vbucket)
        if not isinstance(stream, TapConsumerStream):
            self._strays += 1
            return
        self._moved.add(stream)
        if event == "taken_over" or (event == "close_backfill" and stream.end != ENDLESS):
            yield from self._end_stream(stream, "end_of_backfill" if event == "close_backfill" else event)
            return
        began = stream.state == REQUESTED
        stream.transition(event)
        if event == "tap_checkpoint_start":
            stream.checkpoint = int(frame.fields["checkpoint"])
        if began:
            yield StreamAccepted(stream)

    def _end_stream(self, stream: ConsumerStream, event: str) -> Iterable[Event]:
        stream.transition(event)
        self._remove_stream(stream)
        self._moved.add(stream)
        yield StreamEnded(stream, int(StreamEnd.OK))

    def _refuse_unannounced(self) -> Iterable[Event]:
        """Refuse the vbuckets that the node did not announce: it does so before all else, so it does not have them."""
        for stream in list(self.streams.values()):
            if stream.state == REQUESTED:
                yield self._refuse(stream, Status.NOT_MY_VBUCKET, b"")

    def _connect_refused(self, frame: Frame) -> Iterable[Event]:
        for stream in list(self.streams.values()):
            yield self._refuse(stream, frame.status, frame.value)

    def _refuse(self, stream: ConsumerStream, status: int, body: bytes) -> Event:
        stream.transition("refused")
        self._remove_stream(stream)
        return StreamRefused(stream, status, body)
