"""One client's connection to a node: bytes in, bytes out. No socket, and the clock is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dcp._codec import Splitter
from dcp.embedded.bucket import Bucket, Node
from dcp.embedded.explanation import complaint, explain
from dcp.embedded.outbox import Outbox
from dcp.errors import FrameError
from dcp.wire.frame import UNKNOWN, Frame, dialect_of, encode, read_frame, read_opaque
from dcp.wire.layout import Kind, Magic
from dcp.wire.memcached import MAX_FRAME, Feature, Status


class Source(Protocol):
    """Something that a connection sends of its own accord: a stream."""

    @property
    def ended(self) -> bool: ...

    def write(self, out: Outbox) -> None: ...


class Refusal(Exception):
    """A command fails: with this status, and words for the person who reads the answer."""

    def __init__(
        self, status: Status, context: str = "", *, value: bytes = b"", datatype: int = 0, close: bool = False
    ) -> None:
        super().__init__(status, context)
        self.status = status
        self.context = context
        self.value = value
        self.datatype = datatype
        self.close = close


class Hangup(Exception):
    """The connection is to be closed without an answer."""


@dataclass
class Session:
    """What a client has made of its connection so far."""

    agent: str = ""
    features: frozenset[Feature] = frozenset()
    user: str | None = None
    bucket: str | None = None
    # Whether it is a DCP connection by now.
    opened: bool = False


class Timer(Protocol):
    """Something that is due at a time."""

    def due(self) -> float | None: ...

    def tick(self, now: float) -> None: ...


Handler = Callable[["Conversation", Frame], "Frame | Sequence[Frame] | None"]


@dataclass(eq=False)
class Conversation:
    """Answers what a client asks, and sends what it has asked for."""

    bucket: Bucket
    node: Node
    handlers: Mapping[str, Handler]
    dialect: str = "dcp"
    session: Session = field(default_factory=Session)
    out: Outbox = field(default_factory=Outbox)
    sources: deque[Source] = field(default_factory=deque)
    timers: list[Timer] = field(default_factory=list)
    closing: bool = False
    now: float = 0.0
    # When the client was last heard of.
    heard: float = 0.0

    def __post_init__(self) -> None:
        self._splitter = Splitter(MAX_FRAME)
        self._answers: list[bytes] = []
        # What takes the answers of the client to our own requests, by their names.
        self.answered: dict[str, Callable[[Frame], None]] = {}
        # What is to be done when the connection is gone.
        self.on_close: list[Callable[[], None]] = []

    # Bytes in.

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> None:
        """What the client sent."""
        self.now = self.heard = now
        if not self._open:
            return
        self._splitter.feed(data)
        try:
            for raw in self._splitter:
                if self._open:
                    self._handle(raw)
        except FrameError:
            # Nothing behind it can be told apart any more.
            self.closing = True

    @property
    def _open(self) -> bool:
        return not self.closing

    def _handle(self, raw: bytes) -> None:
        try:
            frame = read_frame(raw, dialect_of(self.dialect))
        except FrameError:
            context = complaint(raw, dialect_of(self.dialect))
            closes = self.bucket.generation.hangs_up_on_malformed(self.session.opened)
            self._refuse(read_opaque(raw), Refusal(Status.EINVAL, context, close=closes))
            return
        if frame.kind.answers:
            if (taker := self.answered.get(frame.name)) is not None:
                taker(frame)
            return
        handler = self.handlers.get(frame.name) if frame.kind is Kind.REQUEST else None
        try:
            if handler is None:
                raise Refusal(self.bucket.generation.unknown_command)
            answer = handler(self, frame)
        except Refusal as refusal:
            self._refuse(frame, refusal)
        except Hangup:
            self.closing = True
        else:
            for one in () if answer is None else (answer,) if isinstance(answer, Frame) else answer:
                self.say(one)

    def _refuse(self, request: Frame, refusal: Refusal) -> None:
        value, datatype = refusal.value, refusal.datatype
        if not value:
            value, datatype = explain(refusal.status, refusal.context, self.bucket.generation)
        self.say(answer(request, refusal.status, value=value, datatype=datatype))
        self.closing = self.closing or refusal.close

    # Bytes out.

    def say(self, frame: Frame) -> None:
        """A frame outside of streams: it goes out before all of their frames."""
        self._answers.append(encode(frame, self.dialect))

    def send(self, now: float) -> list[bytes | memoryview]:
        """What is to go out now; nothing if there is nothing. It must be gone before this is called again."""
        self.now = now
        answers, self._answers = self._answers, []
        if not self.closing:
            self._write_sources()
        return [*answers, *self.out.take()]

    def _write_sources(self) -> None:
        """Each of them in turn, beginning with the one after the last that had its turn."""
        for _ in range(len(self.sources)):
            if not self.out.open:
                return
            source = self.sources.popleft()
            source.write(self.out)
            if not source.ended:
                self.sources.append(source)

    def has(self, feature: Feature) -> bool:
        return feature in self.session.features

    # Time.

    def due(self) -> float | None:
        """When `tick` is to be called next."""
        return min((due for timer in self.timers if (due := timer.due()) is not None), default=None)

    def tick(self, now: float) -> None:
        self.now = now
        for timer in self.timers:
            timer.tick(now)

    def closed(self) -> None:
        """The connection is gone."""
        self.closing = True
        self.sources.clear()
        for action in self.on_close:
            action()
        self.on_close.clear()


def answer(
    request: Frame,
    status: Status = Status.SUCCESS,
    *,
    fields: Mapping[str, int | bytes] | None = None,
    key: bytes = b"",
    value: bytes = b"",
    datatype: int = 0,
    cas: int = 0,
) -> Frame:
    """The answer to a request."""
    said = dict(fields or {})
    if request.name == UNKNOWN:
        said = {"opcode": request.fields["opcode"], "extras": b""}
    magic = Magic.RESPONSE if request.kind is Kind.REQUEST else Magic.SERVER_RESPONSE
    return Frame(
        request.name,
        magic,
        request.opaque,
        cas,
        status=int(status),
        datatype=datatype,
        fields=said,
        key=key,
        value=value,
    )
