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
from dcp.embedded.outbox import Outbox
from dcp.embedded.refusals import Hangup, Refusal, error_value, malformed_context, status_for
from dcp.embedded.users import ANYBODY, IssuedToken, User, Users
from dcp.errors import FrameError
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import UNKNOWN, Frame, dialect_of, encode, read_frame, read_opaque
from dcp.wire.layout import Kind, Magic
from dcp.wire.memcached import MAX_FRAME, Feature, Status

if TYPE_CHECKING:
    from dcp.embedded.commands.scram import ScramExchange

# Bytes of queued responses above which received requests wait until the responses were sent.
_MAX_QUEUED = 4 << 20

# Largest request, and largest part of one, from a client that has not authenticated.
_LARGEST_UNAUTHENTICATED = 16 << 10

# Commands that a node answers although the user's token has expired.
_LOGINS = ("sasl_auth", "sasl_step")


class FrameSource(Protocol):
    """Stream: something that a node sends without a request for each frame."""

    @property
    def ended(self) -> bool: ...

    def write(self, out: Outbox) -> None: ...


class Timer(Protocol):
    """Something that is due at a time, on the clock of `ServerConnection.now`."""

    def due(self) -> float | None: ...

    def tick(self, now: float) -> None: ...


@dataclass
class ConnectionState:
    """State that the client's commands have set on its connection so far."""

    features: frozenset[Feature] = frozenset()
    user: User | None = None
    # Unix time at which the token of `user` expires; None if it has none.
    token_expires: float | None = None
    bucket: str | None = None
    # True once the connection was opened for DCP or TAP.
    opened: bool = False
    # Set between the two steps of a SCRAM authentication.
    exchange: ScramExchange | None = None
    # Revision of the newest cluster map that the client was sent, and of the newest that it was notified of.
    map_sent: tuple[int, int] = (0, 0)
    map_notified: tuple[int, int] = (0, 0)


Handler = Callable[["ServerConnection", Frame], "Frame | Sequence[Frame] | None"]
Notifier = Callable[["ServerConnection"], None]


@dataclass(eq=False)
class ServerConnection:
    """Answers a client's requests and sends the streams that it asked for.

    The caller holds the cluster's lock for every call. `users` may authenticate; None admits everybody. `tokens` are
    accepted instead of passwords if the connection is `encrypted`. `random_bytes` supplies nonces. `may_write` says
    whether a stream may write now, which is how faults delay streams.
    """

    bucket: BucketStore
    node: ServerNode
    handlers: Mapping[str, Handler]
    dialect: str = "dcp"
    users: Users | None = None
    tokens: Mapping[str, IssuedToken] = field(default_factory=dict)
    encrypted: bool = False
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    state: ConnectionState = field(default_factory=ConnectionState)
    out: Outbox = field(default_factory=Outbox)
    sources: deque[FrameSource] = field(default_factory=deque)
    timers: list[Timer] = field(default_factory=list)
    closing: bool = False
    now: float = 0.0
    may_write: Callable[[ServerConnection, FrameSource], bool] = lambda connection, source: True
    # Time of the last bytes from the client.
    last_received: float = 0.0

    def __post_init__(self) -> None:
        self._splitter = Splitter(MAX_FRAME)
        self._responses: list[bytes] = []
        self._queued = 0
        # True while received requests wait until queued responses were sent.
        self.backlogged = False
        # Called before every send: they queue frames if there is something to report.
        self.notifiers: dict[str, Notifier] = {}
        # Receivers of the client's responses to the node's own requests, by message name.
        self.response_handlers: dict[str, Callable[[Frame], None]] = {}
        # Called once when the connection is gone.
        self.on_close: list[Callable[[], None]] = []
        self.reset_user()

    # Bytes in.

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> None:
        """Take bytes from the client and handle the requests that they complete."""
        self.now = self.last_received = now
        if self.closing:
            return
        self._splitter.feed(data)
        if not self.backlogged:
            self._handle_received()

    def _handle_received(self) -> None:
        """Handle received requests until their responses have to be sent first."""
        self.backlogged = False
        try:
            for raw in self._splitter:
                # A request may have closed the connection; the rest of the bytes is read only to be dropped.
                if not self.closing:
                    self._handle(raw)
                # A client that pipelines reads must not make the node hold all of their responses in memory.
                if self._queued > _MAX_QUEUED:
                    self.backlogged = True
                    return
        except FrameError:
            # The length of this frame is unknown, so the next one cannot be found.
            self.closing = True
        if self.state.user is None and self._splitter.pending > _LARGEST_UNAUTHENTICATED:
            self.closing = True

    def reset_user(self) -> None:
        """Forget the user and its bucket, as at the start of an authentication."""
        open_to_all = self.users is None or not self.bucket.release.has_users
        self.state.user = ANYBODY if open_to_all else None
        self.state.token_expires = None
        self.state.bucket = self.bucket.name if open_to_all else None

    def admit(self, name: str) -> None:
        """Set the user that a client certificate has authenticated; close the connection if there is none."""
        self.state.user = (self.users or {}).get(name)
        self.closing = self.closing or self.state.user is None

    def _handle(self, raw: bytes) -> None:
        if self.state.user is None and len(raw) > _LARGEST_UNAUTHENTICATED:
            self.closing = True
            return
        try:
            frame = read_frame(raw, dialect_of(self.dialect))
        except FrameError:
            context = malformed_context(raw, dialect_of(self.dialect))
            closes = self.bucket.release.hangs_up_on_malformed(self.state.opened)
            self.refuse(read_opaque(raw), Refusal(Status.EINVAL, context, close=closes))
            return
        stale = self.state.token_expires is not None and self.state.token_expires < self.bucket.clock()
        if frame.kind.answers:
            # kv_engine refuses it as a request, and an exception of that closes the connection.
            self.closing = self.closing or stale
            if (receiver := self.response_handlers.get(frame.name)) is not None:
                receiver(frame)
            return
        handler = self.handlers.get(frame.name) if frame.kind is Kind.REQUEST else None
        try:
            if handler is None:
                raise Refusal(self.bucket.release.unknown_command)
            if stale and frame.name not in _LOGINS:
                raise Refusal(Status.AUTH_STALE)
            result = handler(self, frame)
        except Refusal as refusal:
            self.refuse(frame, refusal)
        except Hangup:
            self.closing = True
        else:
            for one in () if result is None else (result,) if isinstance(result, Frame) else result:
                self.queue(one)

    def refuse(self, request: Frame, refusal: Refusal) -> None:
        """Answer a request with an error, in the form of the release."""
        status = status_for(refusal.status, self.state.features, self.bucket.release)
        if status is None:
            self.closing = True
            return
        value, datatype = refusal.value, refusal.datatype
        if status is Status.NOT_MY_VBUCKET:
            value, datatype = self._map_if_new()
        elif not value:
            value, datatype = error_value(status, refusal.context, self.bucket.release)
        self.queue(response(request, status, value=value, datatype=datatype))
        self.closing = self.closing or refusal.close

    def _map_if_new(self) -> tuple[bytes, int]:
        """Return the cluster map and its datatype for a client that asked the wrong node."""
        newest = revision(self.bucket)
        if self.has(Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP) and self.state.map_sent >= newest:
            return b"", 0
        self.state.map_sent = newest
        datatype = int(Datatype.JSON) if self.bucket.release.refusals_with_maps_are_json else 0
        return JSON.encode(bucket_map(self.bucket, self.node)), datatype

    # Bytes out.

    def queue(self, frame: Frame) -> None:
        """Queue a frame outside of streams. It is sent before their frames, and flow control does not count it."""
        self._responses.append(encode(frame, self.dialect))
        self._queued += len(self._responses[-1])

    def send(self, now: float) -> list[bytes | memoryview]:
        """Return the bytes to send now, if any.

        They may be views into the buffer of streams, so the caller must have sent them before it calls again.
        """
        self.now = now
        if self.backlogged and not self._responses:
            self._handle_received()
        for notifier in list(self.notifiers.values()):
            notifier(self)
        responses, self._responses, self._queued = self._responses, [], 0
        if not self.closing:
            self._write_sources()
        return [*responses, *self.out.take()]

    def _write_sources(self) -> None:
        """Let each stream write once, beginning after the one that wrote last, so that none starves."""
        for _ in range(len(self.sources)):
            if not self.out.open:
                return
            source = self.sources.popleft()
            if self.may_write(self, source):
                source.write(self.out)
            if not source.ended:
                self.sources.append(source)

    def has(self, feature: Feature) -> bool:
        """Return whether HELLO granted a feature."""
        return feature in self.state.features

    # Time.

    def due(self) -> float | None:
        """Return when `tick` is to be called next; None if nothing waits for a time."""
        return min((due for timer in self.timers if (due := timer.due()) is not None), default=None)

    def tick(self, now: float) -> None:
        """Let the timers act on the time."""
        for timer in self.timers:
            timer.tick(now)

    def closed(self) -> None:
        """Release what the connection holds; its socket is gone."""
        self.closing = True
        self.sources.clear()
        for action in self.on_close:
            action()
        self.on_close.clear()


def response(
    request: Frame,
    status: Status = Status.SUCCESS,
    *,
    fields: Mapping[str, int | bytes] | None = None,
    key: bytes = b"",
    value: bytes = b"",
    datatype: int = 0,
    cas: int = 0,
) -> Frame:
    """Return the response to a request, with its opaque."""
    response_fields = dict(fields or {})
    if request.name == UNKNOWN:
        response_fields = {"opcode": request.fields["opcode"], "extras": b""}
    magic = Magic.RESPONSE if request.kind is Kind.REQUEST else Magic.SERVER_RESPONSE
    return Frame(
        request.name,
        magic,
        request.opaque,
        cas,
        status=int(status),
        datatype=datatype,
        fields=response_fields,
        key=key,
        value=value,
    )
