"""The session: what a node says becomes batches and events, what its owner wants becomes bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.errors import RemoteProtocolError
from dcp.position import FailoverLog
from dcp.progress import Progress
from dcp.session.events import Accepted, Answered, Ended, Event, MapChanged, Ready, Refused, RolledBack
from dcp.session.handshake import Agreement, Wishes, handshake
from dcp.session.stream import ENDLESS, Mark, Stream
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import StreamFlag
from dcp.wire.dcp_body import STREAM_FILTER, StreamFilter
from dcp.wire.frame import Frame, encode
from dcp.wire.framing import stream_id
from dcp.wire.layout import Kind, Magic
from dcp.wire.memcached import Status

# A peer that says nothing for so many of its own noop intervals is gone.
_SILENT_INTERVALS = 2
# Bytes are given back when they are this part of the window.
_ACK_PART = 4


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

    def __init__(self, wishes: Wishes, decoder: Callable[[bool], Decoder], now: float) -> None:
        self.agreement: Agreement | None = None
        self.streams: dict[int, Stream] = {}
        self.last_heard = now
        self._wishes = wishes
        self._make_decoder = decoder
        self._decoder = decoder(wishes.collections)
        self._dialogue = handshake(wishes)
        self._out: list[bytes] = []
        self._seen = 0
        self._opaques = 0
        self._touched: set[Stream] = set()
        self._owed = 0
        self._asked: dict[int, str] = {}
        self._ask(next(self._dialogue))

    # Bytes.

    def buffer(self) -> memoryview:
        """Where the next bytes from the node belong."""
        return self._decoder.buffer()

    def received(self, count: int, now: float, max_rows: int, max_bytes: int) -> tuple[list[Event], bool]:
        """So many bytes came. What happened, and whether the batch in work has reached a limit."""
        self._decoder.received(count)
        self.last_heard = now
        return self.advance(max_rows, max_bytes)

    def advance(self, max_rows: int, max_bytes: int) -> tuple[list[Event], bool]:
        """Decode what came already, up to a limit."""
        full = self._decoder.advance(max_rows, max_bytes)
        events: list[Event] = []
        controls = self._decoder.controls
        while self._seen < len(controls):
            _, frame = controls[self._seen]
            events += self._control(frame, self._decoder.befores[self._seen])
            self._seen += 1
        return events, full

    def outgoing(self) -> bytes:
        """What is to be sent."""
        out, self._out = self._out, []
        return b"".join(out)

    @property
    def news(self) -> bool:
        """Whether there is something to take: rows, or streams that have moved without any."""
        return self._decoder.rows > 0 or bool(self._touched)

    # Rows.

    def take(self) -> Delivery:
        """The batch in work. Raises what was wrong with the bytes behind it, once all before them was taken."""
        batch = self._decoder.hand_out()
        self._seen = 0
        for opaque, _, _, last in batch.lasts:
            if (stream := self.streams.get(opaque)) is not None:
                stream.rows(last)
                self._touched.add(stream)
        touched, self._touched = self._touched, set()
        marks = {(stream.vbucket, stream.stream_id): stream.mark for stream in touched}
        return Delivery(batch, marks, batch.counted)

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
        stream = Stream(self._opaque(), Progress(progress.position), end, sid, last=progress.position.seqno)
        self.streams[stream.opaque] = stream
        asked = progress.position.resume_point()
        value = b"" if chosen is None else STREAM_FILTER.encode(chosen)
        fields = {"flags": int(flags), "end_seqno": end} | asked._asdict()
        self._say(
            Frame("stream_request", Magic.REQUEST, stream.opaque, vbucket=stream.vbucket, fields=fields, value=value)
        )
        return stream

    def close_stream(self, stream: Stream) -> None:
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
        if self.agreement is None or self.agreement.noop_interval is None:
            return None
        return self.last_heard + _SILENT_INTERVALS * self.agreement.noop_interval

    # What comes.

    def _control(self, frame: Frame, before: int) -> Iterable[Event]:
        if frame.kind is Kind.SERVER_REQUEST:
            return self._server_request(frame)
        if frame.name == "dcp_noop" and frame.kind is Kind.REQUEST:
            self._say(Frame("dcp_noop", Magic.RESPONSE, frame.opaque))
            return ()
        if self.agreement is None:
            return self._go_on(frame)
        if frame.kind.answers:
            return self._answer(frame)
        stream = self.streams.get(frame.opaque)
        if stream is None or stream.ended:
            return ()
        stream.rows(before)
        return self._stream_message(stream, frame)

    def _stream_message(self, stream: Stream, frame: Frame) -> Iterable[Event]:
        self._touched.add(stream)
        if frame.name == "stream_end":
            stream.ended = True
            del self.streams[stream.opaque]
            return (Ended(stream, int(frame.fields["reason"])),)
        stream.control(frame)
        return ()

    def _answer(self, frame: Frame) -> Iterable[Event]:
        if frame.name == "stream_request":
            stream = self.streams.get(frame.opaque)
            return () if stream is None else self._requested(stream, frame)
        if self._asked.pop(frame.opaque, None) is not None:
            return (Answered(frame),)
        return ()

    def _requested(self, stream: Stream, frame: Frame) -> Iterable[Event]:
        if not frame.status:
            log = FailoverLog.of(FAILOVER_LOG.decode(frame.value, {}))
            stream.progress = stream.progress.accepted(log)
            stream.accepted = True
            self._touched.add(stream)
            return (Accepted(stream),)
        del self.streams[stream.opaque]
        if frame.status == Status.ROLLBACK:
            return (RolledBack(stream, int(frame.fields["rollback_seqno"])),)
        try:
            body = frame.body()
        except RemoteProtocolError:
            body = frame.value
        return (Refused(stream, frame.status, body),)

    def _server_request(self, frame: Frame) -> Iterable[Event]:
        if frame.name != "clustermap_change_notification":
            return ()
        return (MapChanged(frame.body()),)

    def _go_on(self, frame: Frame) -> Iterable[Event]:
        """The next step of the handshake."""
        if not frame.kind.answers:
            return ()
        try:
            self._ask(self._dialogue.send(frame))
        except StopIteration as done:
            self.agreement = agreement = done.value
            if agreement.collections is not self._wishes.collections:
                self._change_decoder(agreement.collections)
            return (Ready(agreement),)
        return ()

    def _change_decoder(self, collections: bool) -> None:
        """Nothing of a stream can have come yet."""
        if self._decoder.pending:
            raise RemoteProtocolError("expected silence before the first stream is asked for")
        controls, befores = self._decoder.controls, self._decoder.befores
        self._decoder = self._make_decoder(collections)
        self._decoder.controls, self._decoder.befores = controls, befores

    def _ask(self, frame: Frame) -> None:
        self._say(frame)

    def _say(self, frame: Frame) -> None:
        self._out.append(encode(frame))

    def _opaque(self) -> int:
        self._opaques = self._opaques % 0xFFFF_FFF0 + 1
        return self._opaques
