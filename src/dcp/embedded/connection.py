"""One client's connection to a node: bytes in, bytes out. No socket, and the clock is an argument."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dcp._codec import Splitter
from dcp.embedded.bucket import BucketStore, ServerNode
from dcp.embedded.cluster_map import bucket_map, revision
from dcp.embedded.explanation import complaint, explain, told
from dcp.embedded.outbox import Outbox
from dcp.embedded.users import ANYBODY, User, Users
from dcp.errors import FrameError
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import UNKNOWN, Frame, dialect_of, encode, read_frame, read_opaque
from dcp.wire.layout import Kind, Magic
from dcp.wire.memcached import MAX_FRAME, Feature, Status

if TYPE_CHECKING:
    from dcp.embedded.commands.scram import ScramExchange

# Nothing more is asked while so many bytes of answers wait.
_MOST_WAITING = 4 << 20

# What a client may send before it has said who it is.
_LARGEST_BEFORE_AUTHENTICATION = 16 << 10


class FrameSource(Protocol):
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
class ConnectionState:
    """What a client has made of its connection so far."""

    features: frozenset[Feature] = frozenset()
    user: User | None = None
    bucket: str | None = None
    # Whether it is a DCP connection by now.
    opened: bool = False
    # Between two steps of an authentication.
    exchange: ScramExchange | None = None
    # The newest maps that it was sent, and that it was told of.
    map_sent: tuple[int, int] = (0, 0)
    map_noticed: tuple[int, int] = (0, 0)


class Timer(Protocol):
    """Something that is due at a time."""

    def due(self) -> float | None: ...

    def tick(self, now: float) -> None: ...


Handler = Callable[["ServerConnection", Frame], "Frame | Sequence[Frame] | None"]
Look = Callable[["ServerConnection"], None]


@dataclass(eq=False)
class ServerConnection:
    """Answers what a client asks, and sends what it has asked for.

    users: who may ask; None lets everybody in. chance: random bytes.
    """

    bucket: BucketStore
    node: ServerNode
    handlers: Mapping[str, Handler]
    dialect: str = "dcp"
    users: Users | None = None
    chance: Callable[[int], bytes] = secrets.token_bytes
    state: ConnectionState = field(default_factory=ConnectionState)
    out: Outbox = field(default_factory=Outbox)
    sources: deque[FrameSource] = field(default_factory=deque)
    timers: list[Timer] = field(default_factory=list)
    closing: bool = False
    now: float = 0.0
    # Whether a source may write now.
    writes: Callable[[ServerConnection, FrameSource], bool] = lambda connection, source: True
    # When the client was last heard of.
    heard: float = 0.0

    def __post_init__(self) -> None:
        self._splitter = Splitter(MAX_FRAME)
        self._answers: list[bytes] = []
        self._waiting = 0
        # Whether what was received waits until answers have gone out.
        self.crowded = False
        # What looks, before anything is sent, whether there is something new to say.
        self.news: dict[str, Look] = {}
        # What takes the answers of the client to our own requests, by their names.
        self.answered: dict[str, Callable[[Frame], None]] = {}
        # What is to be done when the connection is gone.
        self.on_close: list[Callable[[], None]] = []
        self.forget_user()

    # Bytes in.

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> None:
        """What the client sent."""
        self.now = self.heard = now
        if not self._open:
            return
        self._splitter.feed(data)
        if not self.crowded:
            self._work()

    def _work(self) -> None:
        """Answer what was received, until there are so many answers that they have to go out first."""
        self.crowded = False
        try:
            for raw in self._splitter:
                if self._open:
                    self._handle(raw)
                if self._waiting > _MOST_WAITING:
                    self.crowded = True
                    return
        except FrameError:
            # Nothing behind it can be told apart any more.
            self.closing = True
        if self.state.user is None and self._splitter.pending > _LARGEST_BEFORE_AUTHENTICATION:
            self.closing = True

    @property
    def _open(self) -> bool:
        return not self.closing

    def forget_user(self) -> None:
        """As at the beginning: who talks is not known, unless everybody may."""
        open_to_all = self.users is None or not self.bucket.release.has_users
        self.state.user = ANYBODY if open_to_all else None
        self.state.bucket = self.bucket.name if open_to_all else None

    def admit(self, name: str) -> None:
        """Somebody else has made sure who talks."""
        self.state.user = (self.users or {}).get(name)
        self.closing = self.closing or self.state.user is None

    def _handle(self, raw: bytes) -> None:
        if self.state.user is None and len(raw) > _LARGEST_BEFORE_AUTHENTICATION:
            self.closing = True
            return
        try:
            frame = read_frame(raw, dialect_of(self.dialect))
        except FrameError:
            context = complaint(raw, dialect_of(self.dialect))
            closes = self.bucket.release.hangs_up_on_malformed(self.state.opened)
            self._refuse(read_opaque(raw), Refusal(Status.EINVAL, context, close=closes))
            return
        if frame.kind.answers:
            if (taker := self.answered.get(frame.name)) is not None:
                taker(frame)
            return
        handler = self.handlers.get(frame.name) if frame.kind is Kind.REQUEST else None
        try:
            if handler is None:
                raise Refusal(self.bucket.release.unknown_command)
            answer = handler(self, frame)
        except Refusal as refusal:
            self._refuse(frame, refusal)
        except Hangup:
            self.closing = True
        else:
            for one in () if answer is None else (answer,) if isinstance(answer, Frame) else answer:
                self.say(one)

    def _refuse(self, request: Frame, refusal: Refusal) -> None:
        status = told(refusal.status, self.state.features, self.bucket.release)
        if status is None:
            self.closing = True
            return
        value, datatype = refusal.value, refusal.datatype
        if status is Status.NOT_MY_VBUCKET:
            value, datatype = self._map_if_new()
        elif not value:
            value, datatype = explain(status, refusal.context, self.bucket.release)
        self.say(answer(request, status, value=value, datatype=datatype))
        self.closing = self.closing or refusal.close

    def _map_if_new(self) -> tuple[bytes, int]:
        """The map and its datatype, for a client that looks in the wrong place."""
        newest = revision(self.bucket)
        if self.has(Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP) and self.state.map_sent >= newest:
            return b"", 0
        self.state.map_sent = newest
        datatype = int(Datatype.JSON) if self.bucket.release.refusals_with_maps_are_json else 0
        return JSON.encode(bucket_map(self.bucket, self.node)), datatype

    # Bytes out.

    def say(self, frame: Frame) -> None:
        """A frame outside of streams: it goes out before all of their frames."""
        self._answers.append(encode(frame, self.dialect))
        self._waiting += len(self._answers[-1])

    def send(self, now: float) -> list[bytes | memoryview]:
        """What is to go out now; nothing if there is nothing. It must be gone before this is called again."""
        self.now = now
        if self.crowded and not self._answers:
            self._work()
        for look in list(self.news.values()):
            look(self)
        answers, self._answers, self._waiting = self._answers, [], 0
        if not self.closing:
            self._write_sources()
        return [*answers, *self.out.take()]

    def _write_sources(self) -> None:
        """Each of them in turn, beginning with the one after the last that had its turn."""
        for _ in range(len(self.sources)):
            if not self.out.open:
                return
            source = self.sources.popleft()
            if self.writes(self, source):
                source.write(self.out)
            if not source.ended:
                self.sources.append(source)

    def has(self, feature: Feature) -> bool:
        return feature in self.state.features

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
