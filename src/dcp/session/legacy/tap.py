"""A conversation over TAP: one request for all vbuckets, then what exists, then what changes.

What streams promise there is in docs/session.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dcp.columns.decoder import Decoder
from dcp.errors import LocalProtocolError, ServerError
from dcp.json_reader import MAX_U64
from dcp.position import Progress
from dcp.session.events import Accepted, Ended, Event, MapChanged, Refused
from dcp.session.handshake import ConnectionSettings
from dcp.session.legacy.legacy_session import LegacySession
from dcp.session.legacy.tap_acks import Acks, AskingRows
from dcp.session.session import Delivery
from dcp.session.states import REQUESTED, TAP, follow
from dcp.session.stream import Mark, Stream
from dcp.wire.dcp import ENDLESS, StreamEnd
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status, VbucketState
from dcp.wire.tap import TAP_CONNECT, TapConnect, TapConnectFlag, TapFlag, TapOpaque

# A date that never comes: no backfill, only changes.
ONLY_CHANGES = MAX_U64
_FLAGS = TapConnectFlag.SUPPORT_ACK | TapConnectFlag.FIX_FLAG_BYTEORDER
# Servers that say nothing else send a noop every 20 seconds; after three that are missing they are gone.
_SILENCE = 60.0
_ROOM = 1 << 18
_SAID_FIRST = (TapOpaque.ENABLE_AUTO_NACK, TapOpaque.ENABLE_CHECKPOINT_SYNC, TapOpaque.INITIAL_VBUCKET_STREAM)
_TOLD_OF_VBUCKETS = {
    TapOpaque.INITIAL_VBUCKET_STREAM: "initial_vbucket_stream",
    TapOpaque.CLOSE_BACKFILL: "close_backfill",
    TapOpaque.OPEN_CHECKPOINT: "open_checkpoint",
}


@dataclass(eq=False)
class TapStream(Stream):
    """A vbucket of the connection. It always stands at its beginning: no row has a number to go on from.

    `checkpoint`: the last one that began.
    """

    checkpoint: int | None = None

    @property
    def mark(self) -> Mark:
        return Mark(self.progress, 0)

    def happens(self, event: str) -> None:
        self.state = follow(TAP, self.state, event, f"vbucket {self.vbucket}")


class TapSession(LegacySession):
    """One connection to one node: `open` vbuckets, and the next bytes that go out ask for all of them.

    flags: what is asked for besides; `date`: only what changed since, in Unix seconds, None for no word of it.
    checkpoints: those that vbuckets had.
    """

    def __init__(
        self,
        wishes: ConnectionSettings,
        decoder: Callable[[bool], Decoder],
        now: float,
        *,
        flags: TapConnectFlag = _FLAGS,
        date: int | None = 0,
        checkpoints: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        self._asks = TapConnect(date, None, checkpoints)
        self._flags = flags | TapConnectFlag.LIST_VBUCKETS
        self._flags |= TapConnectFlag.BACKFILL if date is not None else TapConnectFlag(0)
        self._flags |= TapConnectFlag.CHECKPOINT if checkpoints is not None else TapConnectFlag(0)
        self._connected = False
        self._acks, self._asking = Acks(), AskingRows()
        self._room = bytearray(_ROOM)
        super().__init__(wishes, decoder, now)

    # Bytes.

    @property
    def receiver(self) -> None:
        """Rows that ask for an answer are looked for in all that comes."""

    def buffer(self) -> memoryview:
        return memoryview(self._room)

    def received(self, count: int, now: float, max_rows: int, max_bytes: int) -> tuple[list[Event], bool]:
        data = bytes(self._room[:count])
        for number, name, opaque in self._asking.read(data):
            self._acks.row(number, name, opaque)
        self._decoder.feed(data)
        self.heard(now)
        return self.advance(max_rows, max_bytes)

    def outgoing(self) -> bytes:
        if self.agreement is not None and self.streams and not self._connected:
            self._connect()
        self._answer_rows(Status.SUCCESS)
        return super().outgoing()

    def take(self) -> Delivery:
        delivery = super().take()
        self._acks.handed_out(len(delivery.batch))
        return delivery

    def processed(self, count: int) -> None:
        super().processed(count)
        if count:
            self._acks.processed()

    def decline(self, count: int, status: Status = Status.ETMPFAIL) -> None:
        """As `processed`, but the consumer has no room now: rows that ask are to come again later."""
        self._answer_rows(Status.SUCCESS)
        self.processed(count)
        self._answer_rows(status)

    def due(self) -> float | None:
        if self.agreement is None:
            return super().due()
        silent = self._connected and TapConnectFlag.SUPPORT_ACK in self._flags and self.hungry
        return self.last_heard + _SILENCE if silent else None

    def _answer_rows(self, status: Status) -> None:
        for frame in self._acks.due(status):
            self._say(frame)

    # Commands.

    def _open(self, progress: Progress, end: int) -> TapStream:
        """Ask for a vbucket from its beginning on; with any `end`, only for what exists."""
        if self._connected:
            raise LocalProtocolError("TAP: expected all vbuckets before the first bytes go out, found another one")
        if progress.position.seqno:
            raise LocalProtocolError(f"vbucket {progress.position.vbucket}: TAP can begin at the beginning only")
        # Messages name the vbucket alone.
        stream = TapStream(progress.position.vbucket, Progress(progress.position), end)
        self._add(stream)
        return stream

    def _connect(self) -> None:
        self._connected = True
        asks = TapConnect(self._asks.backfill, tuple(s.vbucket for s in self.streams.values()), self._asks.checkpoints)
        value = TAP_CONNECT.encode(asks)
        fields = {"flags": int(self._flags)}
        self._say(Frame("tap_connect", Magic.REQUEST, fields=fields, key=self._wishes.name.encode(), value=value))

    # What comes.

    def _message(self, frame: Frame, before: int) -> Iterable[Event]:
        if frame.kind.answers:
            return self._refused(frame) if frame.name == "tap_connect" else self._answer(frame)
        if frame.name == "noop":
            return (*self._missing(), MapChanged(None))
        if "tap_flags" not in frame.fields:
            self.strays += 1
            return ()
        status = self._judge(frame)
        if status or int(frame.fields["tap_flags"]) & TapFlag.ACK:
            self._acks.control(self._decoder.controls[self._seen][0], frame, status)
        return () if status else tuple(self._told(frame))

    def _judge(self, frame: Frame) -> Status:
        """Vbuckets are taken over by those that asked for them. A message that went round in circles is refused."""
        if not frame.fields["ttl"]:
            return Status.EINVAL
        takes_over = TapConnectFlag.TAKEOVER_VBUCKETS in self._flags
        return Status.NOT_SUPPORTED if frame.name == "tap_vbucket_set" and not takes_over else Status.SUCCESS

    def _told(self, frame: Frame) -> Iterable[Event]:
        if frame.name == "tap_opaque":
            yield from self._opaque_message(frame)
        elif frame.name == "tap_flush":
            raise ServerError("the bucket was flushed: nothing that came of it is there, begin again")
        elif frame.name == "tap_vbucket_set":
            if frame.fields["state"] == VbucketState.ACTIVE:
                yield from self._happens(frame, "taken_over")
        else:
            yield from self._happens(frame, frame.name)

    def _opaque_message(self, frame: Frame) -> Iterable[Event]:
        code = frame.fields["code"]
        if code not in _SAID_FIRST:
            yield from self._missing()
        if code == TapOpaque.CLOSE_TAP_STREAM:
            for stream in list(self.streams.values()):
                yield from self._ends(stream, "close_tap_stream")
        elif code in _TOLD_OF_VBUCKETS:
            yield from self._happens(frame, _TOLD_OF_VBUCKETS[TapOpaque(int(code))])
        elif self._asks.backfill == ONLY_CHANGES:
            for stream in self.streams.values():
                if stream.state == REQUESTED:
                    stream.happens("only_changes")
                    yield Accepted(stream)

    def _happens(self, frame: Frame, event: str) -> Iterable[Event]:
        stream = self.streams.get(frame.vbucket)
        if not isinstance(stream, TapStream):
            self.strays += 1
            return
        self._touched.add(stream)
        if event == "taken_over" or (event == "close_backfill" and stream.end != ENDLESS):
            yield from self._ends(stream, "end_of_backfill" if event == "close_backfill" else event)
            return
        began = stream.state == REQUESTED
        stream.happens(event)
        if event == "tap_checkpoint_start":
            stream.checkpoint = int(frame.fields["checkpoint"])
        if began:
            yield Accepted(stream)

    def _ends(self, stream: Stream, event: str) -> Iterable[Event]:
        stream.happens(event)
        self._is_over(stream)
        self._touched.add(stream)
        yield Ended(stream, int(StreamEnd.OK))

    def _missing(self) -> Iterable[Event]:
        """What is to come is announced before anything else comes: a vbucket that was not is not there."""
        for stream in list(self.streams.values()):
            if stream.state == REQUESTED:
                yield self._refuse(stream, Status.NOT_MY_VBUCKET, b"")

    def _refused(self, frame: Frame) -> Iterable[Event]:
        for stream in list(self.streams.values()):
            yield self._refuse(stream, frame.status, frame.value)

    def _refuse(self, stream: Stream, status: int, body: bytes) -> Event:
        stream.happens("refused")
        self._is_over(stream)
        return Refused(stream, status, body)
