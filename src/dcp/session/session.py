"""The session: what a node says becomes batches and events, what its owner wants becomes bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.errors import DcpError, LocalProtocolError, RemoteProtocolError, SnapshotError
from dcp.position import Progress
from dcp.session.events import Accepted, Answered, Ended, Event, MapChanged, Purged, Ready, Refused, RolledBack
from dcp.session.handshake import Agreement, ConnectionSettings, Handshake
from dcp.session.manifest import Manifest
from dcp.session.request import stream_request
from dcp.session.states import REQUESTED
from dcp.session.stream import Mark, Stream, histories
from dcp.wire.dcp import ENDLESS, StreamEnd, StreamFlag
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.frame import Frame, encode
from dcp.wire.framing import stream_id
from dcp.wire.layout import Dialect, Kind, Magic
from dcp.wire.memcached import Status

# A peer that says nothing for so many of its own noop intervals is gone, or for so many seconds before they are known.
_SILENT_INTERVALS = 2
_PATIENCE = 60.0
# Bytes are given back when they are this part of the window.
_ACK_PART = 4
_MOST_OPAQUES = 0xFFFF_FFF0
_END_ON_CLOSE = "send_stream_end_on_client_close_stream"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows, and where each stream stands once they are processed. `counted`: the bytes to give back then."""

    batch: Batch
    marks: dict[tuple[int, int | None], Mark]
    counted: int


class Session:
    """One connection to one node.

    Bytes come in through `buffer` and `received`, and go out through `outgoing`. `take` hands out rows.
    decoder: makes the decoder of what will come, once it is known whether keys carry collection ids.
    """

    def __init__(self, wishes: ConnectionSettings, decoder: Callable[[bool], Decoder], now: float) -> None:
        self.agreement: Agreement | None = None
        self.manifest = Manifest()
        self.streams: dict[int, Stream] = {}
        self._keys: set[tuple[int, int | None]] = set()
        self.last_heard = now
        # Messages of streams that are over, or that nobody asked for, and answers to nothing.
        self.strays = 0
        # Whether a snapshot has to reach its end, by a row or by SEQNO_ADVANCED, where keys carry collections.
        self.wants_tails = True
        self._wishes = wishes
        self._make_decoder = decoder
        self._decoder = decoder(wishes.collections)
        self._out: list[bytes] = []
        self._urgent: list[bytes] = []
        self._seen = 0
        self._opaques = 0
        self._touched: set[Stream] = set()
        self._leaving: dict[int, Stream] = {}
        self._owed = 0
        self._asked: dict[int, str] = {}
        self._failure: DcpError | None = None
        self._handshake = Handshake(wishes, self._has_collections)
        self._say(self._handshake.question)

    @classmethod
    def agreed(cls, agreement: Agreement, decoder: Callable[[bool], Decoder], now: float) -> Session:
        """One whose handshake somebody else went through, on the same connection."""
        session = cls(ConnectionSettings("", "", collections=agreement.collections), decoder, now)
        session._out.clear()
        session.agreement = agreement
        return session

    # Bytes.

    def buffer(self) -> memoryview:
        """Where the next bytes from the node belong."""
        return self._decoder.buffer()

    @property
    def receiver(self) -> Decoder | None:
        """What takes bytes besides `buffer` and `received`, if it may. `heard` says when some came, `advance` what."""
        return self._decoder

    def heard(self, now: float) -> None:
        """Something came."""
        self.last_heard = now

    def received(self, count: int, now: float, max_rows: int, max_bytes: int) -> tuple[list[Event], bool]:
        """So many bytes came. What happened, and whether the batch in work has reached a limit."""
        self._decoder.received(count)
        self.heard(now)
        return self.advance(max_rows, max_bytes)

    def advance(self, max_rows: int, max_bytes: int) -> tuple[list[Event], bool]:
        """Decode what came already, up to a limit.

        What breaks the protocol is raised by the `take` after the one that delivers what came before it.
        """
        if self._failure is not None:
            return [], True
        full = self._decoder.advance(max_rows, max_bytes)
        events: list[Event] = []
        controls = self._decoder.controls
        while self._seen < len(controls):
            row, frame = controls[self._seen]
            try:
                events += self._control(frame, self._decoder.befores[self._seen])
            except DcpError as error:
                self._fail(error, row)
                return events, True
            self._seen += 1
        if not self._decoder.rows and not full:
            self._forget_controls()
        return events, full

    def outgoing(self) -> bytes:
        """What is to be sent. Answers that a node waits for come before everything else."""
        out = self._urgent + self._out
        self._urgent, self._out = [], []
        return b"".join(out)

    @property
    def dialect(self) -> Dialect:
        """What it speaks: that of its decoder."""
        return self._decoder._dialect

    @property
    def hungry(self) -> bool:
        """Whether its owner should read on. The node knows how much may be under way."""
        return True

    @property
    def news(self) -> bool:
        """Whether there is something to take: rows, or streams that have moved without any."""
        return self._decoder.rows > 0 or bool(self._touched)

    def _forget_controls(self) -> None:
        """Messages without rows need nobody to process them: they are done with, and take no room."""
        if self._decoder.controls:
            self.processed(self._decoder.hand_out().counted)
            self._seen = 0

    def _fail(self, error: DcpError, row: int) -> None:
        self._failure = error
        self._decoder.forget(row)

    # Rows.

    def take(self) -> Delivery:
        """The batch in work. Raises what was wrong with the bytes behind it, once all before them was taken."""
        if self._failure is not None and not self._decoder.rows and not self._touched:
            raise self._failure
        batch = self._decoder.hand_out()
        self._seen = 0
        try:
            for last in batch.lasts:
                self._rows_came(*last)
            for stream in self._leaving.values():
                stream.happens("closed")
        except DcpError as error:
            # No mark may say more than the rows that are lost with this.
            self._touched.clear()
            self._fail(error, 0)
            raise
        self._leaving.clear()
        touched, self._touched = self._touched, set()
        return Delivery(batch, {stream.key: stream.mark for stream in touched}, batch.counted)

    def _rows_came(self, opaque: int, vbucket: int, sid: int, last: int) -> None:
        stream = self._leaving.get(opaque) or self._stream_of(opaque, vbucket, sid or None)
        if stream is None:
            raise RemoteProtocolError(f"vbucket {vbucket}: expected rows of open streams, found opaque {opaque}")
        stream.rows(last)
        self._touched.add(stream)

    def processed(self, count: int) -> None:
        """The consumer is done with so many counted bytes."""
        self._owed += count
        if self.agreement is not None and self._owed * _ACK_PART >= self.agreement.window:
            self.give_back()

    def give_back(self) -> None:
        """Acknowledge everything that was processed."""
        if self._owed and self.agreement is not None and self.agreement.window:
            self._say(Frame("buffer_ack", Magic.REQUEST, fields={"bytes": self._owed}))
        self._owed = 0

    # Commands.

    def open(
        self,
        progress: Progress,
        *,
        end: int = ENDLESS,
        flags: StreamFlag = StreamFlag.ACTIVE_VB_ONLY,
        chosen: StreamFilter | None = None,
    ) -> Stream:
        """Ask for a stream from a position on."""
        sid = None if chosen is None else chosen.sid
        stream = Stream(self._opaque(), Progress(progress.position), end, sid)
        self._add(stream)
        assert self.agreement is not None
        self._say(stream_request(stream, self.agreement, flags, chosen))
        return stream

    def _add(self, stream: Stream) -> None:
        self._check_open(stream)
        self.streams[stream.opaque] = stream
        self._keys.add(stream.key)

    def _check_open(self, stream: Stream) -> None:
        whose = f"vbucket {stream.vbucket}"
        if self.agreement is None:
            raise LocalProtocolError(f"{whose}: expected a session that is ready before a stream is asked for")
        if (stream.stream_id is not None) != ("enable_stream_id" in self.agreement.controls):
            raise LocalProtocolError(f"{whose}: expected a stream id exactly where enable_stream_id is agreed on")
        if stream.key in self._keys:
            raise LocalProtocolError(f"{whose}: expected one stream at a time, found one that is not over")

    def close_stream(self, stream: Stream) -> None:
        """Ask for its end; `Ended` says when that has come."""
        sid = stream.stream_id
        magic = Magic.REQUEST if sid is None else Magic.FRAMED_REQUEST
        infos = () if sid is None else (stream_id(sid),)
        self._say(Frame("close_stream", magic, stream.opaque, vbucket=stream.vbucket, frame_info=infos))

    def ask(self, name: str, **parts: Any) -> int:
        """A command; `Answered` brings what comes back. Says under which opaque."""
        opaque = self._opaque()
        self._asked[opaque] = name
        self._say(Frame(name, Magic.REQUEST, opaque, **parts))
        return opaque

    def due(self) -> float | None:
        """When the node counts as gone, unless something comes before."""
        if self.agreement is None:
            return self.last_heard + _PATIENCE
        if self.agreement.noop_interval is None:
            return None
        return self.last_heard + _SILENT_INTERVALS * self.agreement.noop_interval

    # What comes.

    def _control(self, frame: Frame, before: int) -> Iterable[Event]:
        if frame.kind is Kind.SERVER_REQUEST:
            return self._server_request(frame)
        if frame.name == "dcp_noop" and frame.kind is Kind.REQUEST:
            self._urgent.append(encode(Frame("dcp_noop", Magic.RESPONSE, frame.opaque)))
            return ()
        if frame.kind.answers:
            return self._go_on(frame) if self.agreement is None else self._answer(frame)
        stream = self._stream_of(frame.opaque, frame.vbucket, frame.stream_id)
        if stream is None:
            self.strays += 1
            return ()
        stream.rows(before)
        return self._stream_message(stream, frame)

    def _stream_of(self, opaque: int, vbucket: int, sid: int | None) -> Stream | None:
        stream = self.streams.get(opaque)
        if stream is not None and stream.key != (vbucket, sid):
            raise RemoteProtocolError(
                f"opaque {opaque}: expected vbucket and stream id {stream.key}, found {(vbucket, sid)}"
            )
        return stream

    def _stream_message(self, stream: Stream, frame: Frame) -> Iterable[Event]:
        assert self.agreement is not None
        if self.wants_tails and self.agreement.collections and stream.lacks(frame):
            raise SnapshotError(stream.vbucket, stream.position.seqno, stream.progress.end)
        start, purged = stream.position.seqno, stream.purged(frame)
        stream.control(frame)
        self._touched.add(stream)
        if purged:
            return (Purged(stream, start, purged),)
        if frame.name == "stream_end":
            self._is_over(stream)
            return (Ended(stream, int(frame.fields["reason"])),)
        if frame.name == "system_event":
            self.manifest.take(frame)
        return ()

    def _answer(self, frame: Frame) -> Iterable[Event]:
        stream = self.streams.get(frame.opaque)
        if stream is not None and frame.name == "stream_request" and stream.state == REQUESTED:
            return self._requested(stream, frame)
        if stream is not None and frame.name == "close_stream":
            return self._closed(stream, frame)
        if self._asked.get(frame.opaque) == frame.name:
            # Statistics come one by one, and an empty one last.
            if frame.name != "stat" or frame.status or not frame.key:
                del self._asked[frame.opaque]
            return (Answered(frame),)
        self.strays += 1
        return ()

    def _requested(self, stream: Stream, frame: Frame) -> Iterable[Event]:
        if not frame.status:
            stream.accept(histories(stream.vbucket, frame.value))
            self._touched.add(stream)
            return (Accepted(stream),)
        self._is_over(stream)
        if frame.status == Status.ROLLBACK:
            stream.happens("rolled_back")
            return (RolledBack(stream, int(frame.fields["rollback_seqno"])),)
        stream.happens("refused")
        try:
            body = frame.body()
        except RemoteProtocolError:
            body = frame.value
        return (Refused(stream, frame.status, body),)

    def _closed(self, stream: Stream, frame: Frame) -> Iterable[Event]:
        """Where the server says no more of a stream that it closed, or does not know it, it is over."""
        assert self.agreement is not None
        if not frame.status and _END_ON_CLOSE in self.agreement.controls:
            return ()
        # It may have rows in the batch in work.
        self._leaving[stream.opaque] = stream
        self._is_over(stream)
        self._touched.add(stream)
        return (Ended(stream, int(StreamEnd.CLOSED)),)

    def _is_over(self, stream: Stream) -> None:
        del self.streams[stream.opaque]
        self._keys.remove(stream.key)

    def _server_request(self, frame: Frame) -> Iterable[Event]:
        if frame.name != "clustermap_change_notification":
            return ()
        return (MapChanged(frame.body()),)

    # The handshake.

    def _go_on(self, frame: Frame) -> Iterable[Event]:
        """The next step of the handshake."""
        self.agreement = self._handshake.answer(frame)
        if self.agreement is not None:
            return (Ready(self.agreement),)
        self._say(self._handshake.question)
        return ()

    def _has_collections(self, agreed: bool) -> None:
        """Another decoder, for keys without ids. A server that was asked one thing has nothing else to say."""
        if agreed is self._wishes.collections:
            return
        if self._decoder.pending:
            raise RemoteProtocolError("expected silence after the answer to hello")
        controls, befores = self._decoder.controls, self._decoder.befores
        self._decoder = self._make_decoder(False)
        self._decoder.controls, self._decoder.befores = controls, befores

    def _say(self, frame: Frame) -> None:
        self._out.append(encode(frame, self.dialect))

    def _opaque(self) -> int:
        """One that nothing else has."""
        while True:
            self._opaques = self._opaques % _MOST_OPAQUES + 1
            if self._opaques not in self.streams and self._opaques not in self._asked:
                return self._opaques
