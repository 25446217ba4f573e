"""Replays of recorded conversations with a session of ours: the server's bytes unchanged, except for the opaques."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dcp
from dcp.position import FailoverLog, Progress, StreamPosition
from dcp.session.events import Event
from dcp.session.handshake import Agreement
from dcp.session.session import Session
from dcp.session.stream import ConsumerStream
from dcp.wire.dcp import OpenFlag, OsoSnapshot, StreamFlag
from dcp.wire.frame import Frame
from dcp.wire.layout import Kind
from dcp.wire.memcached import FEATURES, Feature, Status
from tests.conformance import TRANSCRIPTS, Transcript, cut
from tests.session.harness import ready_session

# Scenarios in which nothing is streamed to the client, with the reason.
WITHOUT_STREAM = {
    "collections_filter_nojson": "the filter is malformed on purpose, and refused",
    "error_kv_on_dcp_connection": "commands of documents only",
    "error_no_privilege": "the open is refused",
    "error_noop_and_seqnos_before_open": "never opened",
    "error_open_bad_extras": "the open is malformed on purpose",
    "error_open_noname": "the open is malformed on purpose",
    "error_open_twice": "no stream is asked for",
    "error_stream_bad_extras": "the stream request is malformed on purpose",
    "handshake_controls": "controls only; tests/session/test_handshake.py goes through them",
    "open_refused_after_unordered_execution": "the open is refused",
    "sasl_wrong_password": "the login is refused",
    "server_as_consumer": "the server is the consumer",
}
TALKS = [path for path in TRANSCRIPTS if not path.stem.startswith("tap")]
STREAMED = [path for path in TALKS if path.stem not in WITHOUT_STREAM]
SHORT = 6_000


ROWS = frozenset(["mutation", "deletion", "expiration", "prepare", "commit", "abort"])
COLUMNS = ["event", "vbucket", "seqno", "key", "collection_id", "stream_id"]

Row = tuple[str, int, int, bytes, int | None]


def with_opaque(raw: bytes, opaque: int) -> bytes:
    return raw[:12] + opaque.to_bytes(4, "big") + raw[16:]


@dataclass
class Request:
    """One stream that the recorded client requested, and the state of the slow model for it."""

    frame: Frame
    raw: bytes
    position: StreamPosition
    # True if one of our positions can express the recorded one.
    faithful: bool
    stream: ConsumerStream | None = None
    asked: bytes = b""
    model: Progress | None = None
    # Seqnos at which a snapshot was complete.
    ends: set[int] = field(default_factory=set)
    outcome: list[str] = field(default_factory=list)

    @property
    def sid(self) -> int | None:
        value = self.frame.body() if self.frame.value else None
        return None if value is None else value.sid


@dataclass
class Step:
    """Bytes of the server, and the request that has to be made before they arrive."""

    raw: bytes
    request: Request | None = None
    closes: Request | None = None
    request_of: Request | None = None


class Replay:
    """A conversation from OPEN on. `run` passes it to a session in chunks of the given sizes."""

    def __init__(self, talk: Transcript) -> None:
        sent = [(dcp.decode(raw)[0], raw) for raw in cut(talk.main.client)]
        self.asked = [(frame, raw) for frame, raw in sent if frame.kind is Kind.REQUEST]
        self.answered_noops = [raw for frame, raw in sent if frame.name == "dcp_noop"]
        self.requests = [_request(frame, raw) for frame, raw in self.asked if frame.name == "stream_request"]
        self.heard = [(dcp.decode(raw)[0], raw) for raw in cut(talk.main.server)]
        self.agreement = self._agreement()
        self.steps = list(self._steps())
        self.events: list[Event] = []
        self.rows: list[Row] = []
        self.sent = b""
        self.counted = 0

    def _agreement(self) -> Agreement:
        answers = {(frame.name, frame.opaque): frame for frame, _ in self.heard if frame.kind.answers}
        features: frozenset[Feature] = frozenset()
        controls, window, flags = set(), 0, OpenFlag.PRODUCER
        for frame, _ in self.asked:
            answer = answers.get((frame.name, frame.opaque))
            if answer is None or answer.status:
                continue
            if frame.name == "hello":
                features = frozenset(Feature(code) for code in FEATURES.decode(answer.value, {}))
            elif frame.name == "open":
                flags = OpenFlag(int(frame.fields["flags"]))
            elif frame.name == "control":
                controls.add(frame.key.decode())
                window = int(frame.value) if frame.key == b"connection_buffer_size" else window
        return Agreement(features, frozenset(controls), flags, None, window, 120.0)

    def _steps(self) -> Iterator[Step]:
        """Yield the steps after the answer to OPEN. Answers arrive in the order of their requests."""
        waiting, closing = iter(self.requests), [f for f, _ in self.asked if f.name == "close_stream"]
        streams: dict[tuple[int, int, int | None], Request] = {}
        opened = False
        for frame, raw in self.heard:
            if not opened:
                opened = frame.name == "open"
            elif frame.name == "stream_request":
                request = next(waiting)
                streams[request.frame.opaque, request.frame.vbucket, request.sid] = request
                yield Step(raw, request=request, request_of=request)
            elif frame.name == "close_stream":
                closed = closing.pop(0)
                request_of = next(r for key, r in streams.items() if key[1:] == (closed.vbucket, closed.stream_id))
                yield Step(raw, closes=request_of, request_of=request_of)
            elif frame.kind is Kind.REQUEST and frame.name != "dcp_noop":
                yield Step(raw, request_of=streams[frame.opaque, frame.vbucket, frame.stream_id])
            else:
                yield Step(raw)

    # ------------------------------------------------------------------ our session

    def run(self, chunks: Iterator[int]) -> Session:
        inflate = OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE not in self.agreement.flags

        def decoder(collections: bool) -> dcp.Decoder:
            return dcp.Decoder(columns=COLUMNS, collections=collections, inflate=inflate)

        session = ready_session(self.agreement, decoder)
        data = b""
        for step in self.steps:
            if step.request is not None or step.closes is not None:
                data = self._feed(session, data, chunks)
            if step.request is not None:
                data = self._open(session, step.request, data)
            if step.closes is not None and step.closes.stream is not None:
                session.close_stream(step.closes.stream)
            stream = None if step.request_of is None else step.request_of.stream
            data += step.raw if stream is None else with_opaque(step.raw, stream.opaque)
        while data:
            data = self._feed(session, data, chunks)
        self._take(session)
        self.sent += session.outgoing()
        return session

    def _open(self, session: Session, request: Request, data: bytes) -> bytes:
        """Open a stream once no other stream of the vbucket is open. Earlier bytes may still be in flight."""
        while data and any(stream.key == (request.frame.vbucket, request.sid) for stream in session.streams.values()):
            self._receive(session, data)
            data = b""
        self.sent += session.outgoing()
        fields = request.frame.fields
        request.stream = session.open(
            Progress(request.position),
            end=int(fields["end_seqno"]),
            flags=StreamFlag(int(fields["flags"])),
            stream_filter=request.frame.body() if request.frame.value else None,
        )
        request.asked = session.outgoing()
        return data

    def _feed(self, session: Session, data: bytes, chunks: Iterator[int]) -> bytes:
        """Pass the next chunk to the session, and return the rest."""
        size = next(chunks)
        self._receive(session, data[:size])
        return data[size:]

    def _receive(self, session: Session, data: bytes) -> None:
        while data:
            with session.buffer() as room:
                count = min(len(room), len(data))
                room[:count] = data[:count]
            data = data[count:]
            events, full = session.received(count, 0.0, 5, 1 << 30)
            self.events += events
            while full:
                self._take(session)
                events, full = session.advance(5, 1 << 30)
                self.events += events

    def _take(self, session: Session) -> None:
        delivery = session.take()
        for row in delivery.batch.to_arrow().to_pylist():
            self.rows.append((row["event"], row["vbucket"], row["seqno"], row["key"], row["stream_id"]))
        session.processed(delivery.flow_bytes)
        self.counted += delivery.flow_bytes

    # ------------------------------------------------------------------ the slow model

    def model(self) -> None:
        """Compute the position frame by frame, by the rules as they are written."""
        for step in self.steps:
            if step.request_of is not None:
                _fold(step.request_of, dcp.decode(step.raw)[0])

    def expected_rows(self, split: Callable[[bytes], bytes]) -> list[Row]:
        frames = [dcp.decode(step.raw)[0] for step in self.steps]
        return [
            (frame.name, frame.vbucket, int(frame.fields["seqno"]), split(frame.key), frame.stream_id)
            for frame in frames
            if frame.name in ROWS and frame.kind is Kind.REQUEST
        ]


def _fold(request: Request, frame: Frame) -> None:
    fields: Any = frame.fields
    if frame.name == "stream_request":
        request.outcome.append(Status(frame.status).name)
        if not frame.status:
            request.model = Progress(request.position).accepted(FailoverLog.of(frame.body()))
        return
    if frame.name in ("stream_end", "close_stream"):
        request.outcome.append(frame.name)
        return
    assert request.model is not None
    if frame.name == "snapshot_marker":
        window = fields["snapshot_start"], fields["snapshot_end"], fields.get("purge_seqno", 0)
        request.model = request.model.marker(*window)
    elif frame.name == "oso_snapshot":
        starts = fields["flags"] == OsoSnapshot.START
        request.model = request.model.disorder_begins() if starts else request.model.disorder_ends()
    else:
        request.model = request.model.seen(fields["seqno"])
        if frame.name == "system_event":
            request.model = request.model.manifest(fields["manifest_uid"])
    if request.model.position.complete:
        request.ends.add(request.model.position.seqno)


def _request(frame: Frame, raw: bytes) -> Request:
    """Return the request with the recorded client's position, or with one like it if ours cannot express that."""
    fields: Any = frame.fields
    seqno, start, end = fields["start_seqno"], fields["snapshot_start"], fields["snapshot_end"]
    sound = start <= seqno <= end
    position = StreamPosition(
        frame.vbucket, fields["vbuuid"] if seqno else 0, seqno, start if sound else seqno, end if sound else seqno
    )
    return Request(frame, raw, position, sound and (seqno > 0 or not fields["vbuuid"]))


def whole() -> Iterator[int]:
    while True:
        yield 1 << 30


def pieces(sizes: Iterable[int]) -> Iterator[int]:
    yield from sizes
    while True:
        yield 1 << 30


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def chunkings(size: int, seed: int) -> Iterator[Callable[[], Iterator[int]]]:
    yield whole
    if size < SHORT:
        yield lambda: pieces(itertools.repeat(1))
    pick = random.Random(seed)
    for longest in (3, 40, 3000) if size < SHORT else (500, 3000):
        yield lambda longest=longest: pieces(pick.randrange(1, longest) for _ in itertools.count())  # type: ignore[misc]
