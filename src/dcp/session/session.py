"""Session: what a node sends becomes batches and events, what its owner wants becomes bytes to send."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dcp._codec import LazyPosition
from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder, PassedSnapshots
from dcp.errors import (
    DcpError,
    RemoteProtocolError,
    ServerError,
    SnapshotError,
    TimeoutError,
    TransportError,
    UsageError,
)
from dcp.position import Progress, StreamPosition
from dcp.session.events import (
    CommandAnswered,
    DeletionsPurged,
    Event,
    MapChanged,
    MessageIgnored,
    SessionReady,
    StreamAccepted,
    StreamEnded,
    StreamRefused,
    StreamRolledBack,
)
from dcp.session.handshake import Agreement, ConnectionSettings, Handshake
from dcp.session.refusals import HELLO, MECHANISMS, Reaction, reaction, refused
from dcp.session.states import IN_ORDER, REQUESTED
from dcp.session.stream import ConsumerStream, concerns_stream, decode_failover_log, flushed
from dcp.wire.dcp import ENDLESS, StreamEnd, StreamFlag
from dcp.wire.dcp_body import STREAM_FILTER, StreamFilter
from dcp.wire.frame import Frame, encode
from dcp.wire.framing import stream_id
from dcp.wire.layout import Dialect, Kind, Magic
from dcp.wire.memcached import Feature, Status

# Remedy where a node does not answer: a port of another service accepts connections as well.
CHECK_ADDRESS = "check the host, its port (11210, or 11207 for couchbases://) and firewalls"

# A node counts as gone after this many of its noop intervals without a byte.
_SILENT_INTERVALS = 2
# Processed bytes are acknowledged when they reach this part of the window.
_ACK_PART = 4
_MOST_OPAQUES = 0xFFFF_FFF0
# Answers to noops that may wait to be sent. A node sends a noop only after the answer to the one before.
_MOST_NOOPS = 1024
_IGNORES_PURGED = int(StreamFlag.IGNORE_PURGED_TOMBSTONES)
_END_ON_CLOSE = "send_stream_end_on_client_close_stream"
MARKER_VERSION = "max_marker_version"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows, and what holds once they are processed.

    positions: by vbucket and stream id, the position of each stream that moved.
    flow_bytes: bytes to pass to `Session.processed` then.
    size: bytes that the batch keeps in memory until then: those of its frames, and those of decompressed values.
    """

    batch: Batch
    positions: dict[tuple[int, int | None], LazyPosition]
    flow_bytes: int
    size: int


class Session:
    """One connection to one node, without I/O.

    Bytes from the node go in through `buffer` and `received`; bytes for it come out of `outgoing`, rows out of `take`.

    settings: requested settings of the connection.
    decoder: called with True if keys carry collection ids; returns the decoder for the connection. It is called again
        if the node has no collections.
    now: time in seconds, of any clock that only moves forward.

    agreement: result of the handshake; None until it is over.
    streams: streams that are not over, by opaque.
    last_heard: time at which bytes arrived last.
    require_snapshot_end: raise SnapshotError if the node skips the end of a snapshot, where keys carry collection
        ids. Older servers do not report the end of a snapshot whose last rows were filtered out.
    """

    def __init__(self, settings: ConnectionSettings, decoder: Callable[[bool], Decoder], now: float) -> None:
        self.agreement: Agreement | None = None
        self.streams: dict[int, ConsumerStream] = {}
        self._keys: set[tuple[int, int | None]] = set()
        self.last_heard = self._began = now
        self.require_snapshot_end = True
        self._settings = settings
        self._make_decoder = decoder
        self._decoder = self._new_decoder(settings.collections)
        # Messages about no open stream, and answers to no open request.
        self._strays = 0
        self._out: list[bytes] = []
        # Answers to noops: they are sent before everything else, since the node disconnects clients that are late.
        self._urgent: list[bytes] = []
        # Number of the decoder's new controls that were handled.
        self._handled = 0
        self._opaques = 0
        # Streams that moved since the last delivery.
        self._moved: set[ConsumerStream] = set()
        # Streams that were closed while rows of theirs were in the current batch, by opaque.
        self._leaving: dict[int, ConsumerStream] = {}
        # Processed bytes that were not acknowledged yet.
        self._unacknowledged = 0
        # Names of the commands that wait for an answer, by opaque.
        self._commands: dict[int, str] = {}
        # What broke the protocol. It is raised once everything before it was taken, and again from then on.
        self._failure: DcpError | None = None
        # Time at which the session ends, since its token expires soon after; None for no limit.
        self._ends_at: float | None = None
        self._handshake = Handshake(settings, self._on_collections)
        self._send(self._handshake.request)

    @property
    def stray_messages(self) -> int:
        """Number of messages about no open stream, and of answers to no open request. They are dropped."""
        return self._strays + self._decoder.stray_rows

    def _new_decoder(self, collections: bool) -> Decoder:
        """Return a decoder that refuses rows of streams that are not open: no position would cover them."""
        decoder = self._make_decoder(collections)
        decoder.expect_open_streams()
        return decoder

    # Bytes.

    def buffer(self) -> memoryview:
        """Return the memory where the next bytes from the node belong. Report them with `received`."""
        return self._decoder.buffer()

    @property
    def receiver(self) -> Decoder | None:
        """Decoder that may receive from the socket itself, instead of `buffer` and `received`; None if it may not.

        Call `heard` when bytes arrived, then `advance`.
        """
        return self._decoder

    def heard(self, now: float) -> None:
        """Record that bytes arrived."""
        self.last_heard = now

    def received(self, count: int, now: float, max_rows: int, max_bytes: int) -> tuple[list[Event], bool]:
        """Take `count` bytes that were written to the last `buffer`. Otherwise as `advance`."""
        self._decoder.received(count)
        self.heard(now)
        return self.advance(max_rows, max_bytes)

    def advance(self, max_rows: int, max_bytes: int) -> tuple[list[Event], bool]:
        """Decode received bytes until the current batch has `max_rows` rows or `max_bytes` bytes.

        Returns the events, and True if the batch reached a limit: `take` it and call `advance` again.

        An error is not raised here, but by the `take` after the one that delivers everything before it.
        """
        if self._failure is not None:
            return [], True
        full = self._decoder.advance(max_rows, max_bytes)
        events: list[Event] = []
        controls = self._decoder.new_controls
        while self._handled < len(controls):
            row, frame, last_seqno = controls[self._handled]
            try:
                if isinstance(frame, PassedSnapshots):
                    self._snapshots_passed(frame)
                else:
                    events += self._control(frame, last_seqno)
            except DcpError as error:
                self._fail(error, row)
                return events, True
            self._handled += 1
        if self._ends_at is not None and self.last_heard >= self._ends_at:
            self._fail(_token_expires(), self._decoder.rows)
            return events, True
        # With rows, controls are delivered in their batch: they say what the rows before them mean.
        if not self._decoder.has_arrivals and not full:
            self._forget_controls()
        return events, full

    def outgoing(self) -> bytes:
        """Return the bytes to send, and forget them. Answers to noops come first."""
        out = self._urgent + self._out
        self._urgent, self._out = [], []
        return b"".join(out)

    @property
    def dialect(self) -> Dialect:
        """Dialect of the connection: that of its decoder."""
        return self._decoder._dialect

    @property
    def wants_bytes(self) -> bool:
        """True if the owner should continue to receive: always, since DCP nodes limit the bytes in flight."""
        return True

    @property
    def has_updates(self) -> bool:
        """True if `take` would return rows, or positions of streams that moved without any."""
        return self._decoder.has_arrivals or bool(self._moved)

    def _forget_controls(self) -> None:
        """Acknowledge messages that have no rows around them: the consumer need not wait for them, or keep them."""
        if self._decoder.new_controls or self._decoder.flow_bytes:
            self.processed(self._decoder.finish_batch().flow_bytes)
            self._handled = 0

    def _fail(self, error: DcpError, row: int) -> None:
        self._failure = error
        # Removing rows makes the decoder forget the last seqnos of all streams: the rows that stay would arrive again.
        if row < self._decoder.rows:
            self._decoder.discard_rows(row)

    # Rows.

    def take(self) -> Delivery:
        """Return the current batch, which may be empty, and begin the next.

        Raises RemoteProtocolError or ServerError if the bytes after it broke the protocol, once everything before
        was taken; and again at each later call.
        """
        if self._failure is not None and not self._decoder.has_arrivals and not self._moved:
            raise self._failure
        size = self._decoder.batch_bytes
        try:
            batch, positions = self._decoder.finish_moves(self.streams, IN_ORDER, self._stream_with_rows)
            self._handled = 0
            for stream in self._leaving.values():
                stream.transition("closed")
        except DcpError as error:
            # These rows are lost with the error, so no position may cover them.
            self._moved.clear()
            self._fail(error, 0)
            raise
        self._leaving.clear()
        moved, self._moved = self._moved, set()
        positions |= {stream.key: stream.lazy_position for stream in moved}
        return Delivery(batch, positions, batch.flow_bytes, size)

    def _snapshots_passed(self, passed: PassedSnapshots) -> None:
        stream = self._stream_with_rows(passed.opaque, passed.vbucket, passed.stream_id)
        stream.snapshots_passed(passed.ends, passed.start, passed.end)
        self._moved.add(stream)

    def _stream_with_rows(self, opaque: int, vbucket: int, sid: int) -> ConsumerStream:
        stream = self.streams.get(opaque)
        if stream is not None and stream.vbucket == vbucket and (stream.stream_id or 0) == sid:
            return stream
        stream = self._leaving.get(opaque) or self._stream_of(opaque, vbucket, sid or None)
        if stream is None:
            # Rows are in the batch already: unlike other strays, they cannot be dropped.
            raise RemoteProtocolError(f"vbucket {vbucket}: expected rows of open streams, found opaque {opaque}")
        return stream

    def processed(self, count: int) -> None:
        """Record that the consumer is done with `count` flow bytes. A part of the window is acknowledged at once."""
        self._unacknowledged += count
        if self.agreement is not None and self._unacknowledged * _ACK_PART >= self.agreement.window:
            self.acknowledge()

    def acknowledge(self) -> None:
        """Acknowledge all processed bytes now."""
        if self._unacknowledged and self.agreement is not None and self.agreement.window:
            self._send(Frame("buffer_ack", Magic.REQUEST, fields={"bytes": self._unacknowledged}))
        self._unacknowledged = 0

    # Commands.

    def open(
        self,
        progress: Progress,
        *,
        end: int = ENDLESS,
        flags: StreamFlag = StreamFlag.ACTIVE_VB_ONLY,
        stream_filter: StreamFilter | None = None,
    ) -> ConsumerStream:
        """Request a stream that resumes at a position. StreamAccepted, StreamRolledBack or StreamRefused follows.

        end: seqno at which the node ends the stream.
        stream_filter: scope, collections and stream id; None for the whole bucket.

        Raises UsageError if the session is not ready, or the vbucket has an open stream already, and TransportError if
        the position was reached with collections, and the node grants none.
        """
        sid = None if stream_filter is None else stream_filter.sid
        # As a number: an operation on flags takes several times as long, and every stream comes here.
        ignores_purged = bool(int(flags) & _IGNORES_PURGED)
        stream = ConsumerStream(self._next_opaque(), Progress(progress.position), end, sid, ignores_purged)
        self._add(stream)
        assert self.agreement is not None
        if progress.position.manifest_uid and not self.agreement.collections:
            raise TransportError(
                f"vbucket {stream.vbucket}: the checkpoint is of a stream with collections, which the node does not "
                "grant: changes in all but the default collection would be skipped. If it is no release before 7.0, "
                "somebody may alter the connection: use couchbases://; otherwise stream from the beginning"
            )
        self._send(_stream_request(stream, self.agreement, flags, stream_filter))
        return stream

    def _add(self, stream: ConsumerStream) -> None:
        self._check_open(stream)
        self._decoder.open_stream(*_decoder_key(stream), stream.last_seqno)
        self.streams[stream.opaque] = stream
        self._keys.add(stream.key)

    def _check_open(self, stream: ConsumerStream) -> None:
        problem = ""
        if self.agreement is None:
            problem = "expected a session that is ready before a stream is opened"
        elif (stream.stream_id is not None) != ("enable_stream_id" in self.agreement.controls):
            problem = "expected a stream id exactly where enable_stream_id is agreed on"
        elif stream.key in self._keys:
            problem = "expected one stream at a time, found one that is not over"
        if problem:
            raise UsageError(f"vbucket {stream.vbucket}: {problem}")

    def close_stream(self, stream: ConsumerStream) -> None:
        """Ask the node to end a stream. Rows may still arrive until StreamEnded."""
        sid = stream.stream_id
        magic = Magic.REQUEST if sid is None else Magic.FRAMED_REQUEST
        infos = () if sid is None else (stream_id(sid),)
        self._send(Frame("close_stream", magic, stream.opaque, vbucket=stream.vbucket, frame_info=infos))

    def send_command(self, name: str, **parts: Any) -> int:
        """Send a command. Return its opaque: CommandAnswered with the same opaque follows.

        parts: arguments of Frame.
        """
        opaque = self._next_opaque()
        self._commands[opaque] = name
        self._send(Frame(name, Magic.REQUEST, opaque, **parts))
        return opaque

    def deadline(self) -> float | None:
        """Return the time at which to call `check` unless bytes arrive; None for never."""
        deadlines = [each for each in (self.silence_deadline(), self._ends_at) if each is not None]
        return min(deadlines, default=None)

    def check(self, now: float) -> None:
        """Raise TransportError if the node counts as gone, or the token of the connection expires soon."""
        silence = self.silence_deadline()
        if silence is not None and now >= silence:
            if self.agreement is None:
                seconds = self._settings.handshake_timeout
                raise TimeoutError(f"no answer within {seconds:g} s; {CHECK_ADDRESS}, or raise bootstrap_timeout")
            raise TransportError(f"no byte from the node for {silence - self.last_heard:g} s")
        if self._ends_at is not None and now >= self._ends_at:
            raise _token_expires()

    def silence_deadline(self) -> float | None:
        """Return the time at which the node counts as gone unless bytes arrive; None if nothing is due from it.

        That of the handshake is for all of it: bytes that arrive do not extend it.
        """
        if self.agreement is None:
            return self._began + self._settings.handshake_timeout
        if self.agreement.noop_interval is None:
            return None
        return self.last_heard + _SILENT_INTERVALS * self.agreement.noop_interval

    # Control messages.

    def _control(self, frame: Frame, last_seqno: int) -> Iterable[Event]:
        """Handle a message. `last_seqno` is that of its stream's last row before the message."""
        kind = frame.kind
        if kind is Kind.SERVER_REQUEST:
            return self._server_request(frame)
        if frame.name == "dcp_noop" and kind is Kind.REQUEST:
            if len(self._urgent) == _MOST_NOOPS:
                raise RemoteProtocolError(f"expected noops one at a time, found {_MOST_NOOPS} without an answer")
            self._urgent.append(encode(Frame("dcp_noop", Magic.RESPONSE, frame.opaque)))
            return ()
        if kind.answers:
            if frame.status == Status.AUTH_STALE:
                raise TransportError(
                    "the node says that the token has expired: return tokens that are valid for longer, and compare "
                    "the clocks of both machines",
                )
            return self._continue_handshake(frame) if self.agreement is None else self._answer(frame)
        stream = self._stream_of(frame.opaque, frame.vbucket, frame.stream_id)
        if frame.name == "stream_flush" and stream is not None:
            raise flushed(stream.vbucket)
        if not concerns_stream(frame):
            return self._ignore(frame)
        if stream is None:
            self._strays += 1
            return ()
        stream.settle(last_seqno)
        return self._stream_message(stream, frame)

    def _ignore(self, frame: Frame) -> Iterable[Event]:
        """Ignore a message. A change of the vbucket's state is refused: the node waits for the answer."""
        status = None
        if frame.name == "set_vbucket_state":
            status = Status.NOT_SUPPORTED
            self._send(Frame(frame.name, Magic.RESPONSE, frame.opaque, status=int(status)))
        known = self.dialect.by_name.get(frame.name)
        opcode = int(frame.fields["opcode"]) if known is None else known.opcode
        return (MessageIgnored(frame.name, opcode, frame.vbucket, status),)

    def _stream_of(self, opaque: int, vbucket: int, sid: int | None) -> ConsumerStream | None:
        stream = self.streams.get(opaque)
        if stream is not None and stream.key != (vbucket, sid):
            raise RemoteProtocolError(
                f"opaque {opaque}: expected vbucket and stream id {stream.key}, found {(vbucket, sid)}"
            )
        return stream

    def _stream_message(self, stream: ConsumerStream, frame: Frame) -> Iterable[Event]:
        assert self.agreement is not None
        if self.require_snapshot_end and self.agreement.collections and stream.misses_snapshot_end(frame):
            raise SnapshotError(stream.vbucket, stream.progress.position.seqno, stream.progress.end)
        start, purge_seqno = stream.progress.position.seqno, stream.missed_purge(frame)
        stream.control_arrived(frame)
        self._moved.add(stream)
        if purge_seqno:
            return (DeletionsPurged(stream, start, purge_seqno),)
        if frame.name == "stream_end":
            self._remove_stream(stream)
            return (StreamEnded(stream, int(frame.fields["reason"])),)
        return ()

    def _answer(self, frame: Frame) -> Iterable[Event]:
        stream = self.streams.get(frame.opaque)
        if stream is not None and frame.name == "stream_request" and stream.state == REQUESTED:
            return self._stream_answered(stream, frame)
        if stream is not None and frame.name == "close_stream":
            return self._stream_closed(stream, frame)
        if self._commands.get(frame.opaque) == frame.name:
            # STAT has one answer for each statistic; one without a key is the last.
            if frame.name != "stat" or frame.status or not frame.key:
                del self._commands[frame.opaque]
            return (CommandAnswered(frame),)
        self._strays += 1
        return ()

    def _stream_answered(self, stream: ConsumerStream, frame: Frame) -> Iterable[Event]:
        if not frame.status:
            stream.accept(decode_failover_log(stream.vbucket, frame.value))
            self._moved.add(stream)
            return (StreamAccepted(stream),)
        # Any other answer ends the request, so the vbucket can be opened again.
        self._remove_stream(stream)
        if frame.status == Status.ROLLBACK:
            stream.transition("rolled_back")
            return (StreamRolledBack(stream, int(frame.fields["rollback_seqno"])),)
        stream.transition("refused")
        try:
            body = frame.body()
        except RemoteProtocolError:
            body = frame.value
        return (StreamRefused(stream, frame.status, body),)

    def _stream_closed(self, stream: ConsumerStream, frame: Frame) -> Iterable[Event]:
        """End a stream with the answer to `close_stream`, if no `stream_end` will follow.

        That is so where the server sends none for streams that the client closed, and where it does not know the
        stream any more.
        """
        assert self.agreement is not None
        if not frame.status and _END_ON_CLOSE in self.agreement.controls:
            return ()
        # It may have rows in the current batch.
        self._leaving[stream.opaque] = stream
        self._remove_stream(stream)
        # Rows that were on their way when the node answered belong to nobody.
        self._decoder.close_stream(*_decoder_key(stream))
        self._moved.add(stream)
        return (StreamEnded(stream, int(StreamEnd.CLOSED)),)

    def _remove_stream(self, stream: ConsumerStream) -> None:
        self._decoder.forget_stream(*_decoder_key(stream))
        del self.streams[stream.opaque]
        self._keys.remove(stream.key)

    def _server_request(self, frame: Frame) -> Iterable[Event]:
        if frame.name != "clustermap_change_notification":
            return self._ignore(frame)
        return (MapChanged(frame.body()),)

    # The handshake.

    def _continue_handshake(self, frame: Frame) -> Iterable[Event]:
        step = self._handshake.request.name
        # These two may be missing on older servers. A node that is only busy must not be taken for one.
        if step in (HELLO, MECHANISMS) and frame.status and reaction(step, frame.status) is not Reaction.ADAPT:
            raise refused(step, f"{step}: refused", frame.status)
        try:
            self.agreement = self._handshake.answer(frame)
        except ServerError as error:
            error.step, error.retriable = step, reaction(step, error.status).passes
            raise
        if self.agreement is not None:
            if self.agreement.usable is not None:
                self._ends_at = self.last_heard + self.agreement.usable
            return (SessionReady(self.agreement),)
        self._send(self._handshake.request)
        return ()

    def _on_collections(self, agreed: bool) -> None:
        """Replace the decoder if keys do not carry collection ids, contrary to what was requested.

        Nothing may be pending in the old one. A server that was asked one question has nothing else to send but a map
        of the whole cluster, which changes too seldom to come again after a reconnect.
        """
        if agreed is self._settings.collections:
            return
        if self._decoder.pending:
            raise TransportError("expected silence after the answer to hello")
        controls = self._decoder.new_controls
        self._decoder = self._new_decoder(False)
        self._decoder.new_controls = controls

    def _send(self, frame: Frame) -> None:
        self._out.append(encode(frame, self.dialect))

    def _next_opaque(self) -> int:
        """Return an opaque that no stream and no command has."""
        while True:
            self._opaques = self._opaques % _MOST_OPAQUES + 1
            if self._opaques not in self.streams and self._opaques not in self._commands:
                return self._opaques


def _token_expires() -> TransportError:
    # A node takes no new token on a connection that is open for DCP (kv_engine, disableSaslAuth in
    # dcp_open_executor.cc), and answers nothing on one whose token has expired.
    return TransportError("the token of the connection expires soon")


def _decoder_key(stream: ConsumerStream) -> tuple[int, int, int]:
    """Return opaque, vbucket and stream id of a stream, by which the decoder knows it."""
    return stream.opaque, stream.vbucket, stream.stream_id or 0


def _stream_request(
    stream: ConsumerStream, agreement: Agreement, flags: StreamFlag, stream_filter: StreamFilter | None
) -> Frame:
    position = stream.position
    # Servers before 5.0 refuse the flag. The client asks only the owner of a vbucket anyway.
    known = flags if Feature.XERROR in agreement.features else flags & ~StreamFlag.ACTIVE_VB_ONLY
    fields = {"flags": int(known), "end_seqno": stream.end} | position.resume_point()._asdict()
    wanted = _with_purge_seqno(position, stream_filter, agreement)
    value = b"" if wanted is None else STREAM_FILTER.encode(wanted)
    return Frame("stream_request", Magic.REQUEST, stream.opaque, vbucket=stream.vbucket, fields=fields, value=value)


def _with_purge_seqno(
    position: StreamPosition, stream_filter: StreamFilter | None, agreement: Agreement
) -> StreamFilter | None:
    """Return the filter with the purge seqno that the consumer knows of.

    Then the node asks for a rollback to 0 only if it purged deletions after that.
    """
    if position.seqno and position.purge_seqno and MARKER_VERSION in agreement.controls:
        return replace(stream_filter or StreamFilter(), purge_seqno=position.purge_seqno)
    return stream_filter
