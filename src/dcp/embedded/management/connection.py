"""One client's connection to the management service of a node, or to the control service. No socket."""

from __future__ import annotations

import secrets
from http import HTTPStatus

from dcp.embedded.bucket import BucketStore, ServerNode
from dcp.embedded.control.service import ControlService, json_error
from dcp.embedded.management.http import (
    STREAM_END,
    HttpError,
    HttpRequest,
    HttpResponse,
    RequestSplitter,
    stream_head,
)
from dcp.embedded.management.routes import Answer, Exchange, route
from dcp.embedded.management.streams import ResponseStream
from dcp.embedded.users import ANYBODY, User, Users

# Bytes of queued responses above which received requests wait until the responses were sent.
_MAX_QUEUED = 4 << 20
_REALM = {"WWW-Authenticate": 'Basic realm="Couchbase Server Admin / REST"'}


class ManagementConnection:
    """Answers a client's requests, for a node, or for the cluster as a whole (`node` is None).

    The caller holds the cluster's lock for every call.
    """

    def __init__(self, bucket: BucketStore, node: ServerNode | None, users: Users, control: ControlService) -> None:
        self.bucket = bucket
        self.node = node
        self.closing = False
        # True while received requests wait until queued responses were sent.
        self.backlogged = False
        self._users = users
        self._control = control
        self._splitter = RequestSplitter()
        self._queued: list[bytes] = []
        # User of the client's certificate.
        self._certified: User | None = None
        self._stream: ResponseStream | None = None

    def admit(self, name: str) -> None:
        """Set the user that a client certificate has authenticated; close the connection if there is none."""
        self._certified = self._users.get(name)
        self.closing = self.closing or self._certified is None

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> None:
        """Take bytes from the client and answer the requests that they complete."""
        # A stream never ends, so a request after it would never be answered.
        if self.closing or self._stream is not None:
            return
        self._splitter.feed(data)
        if not self.backlogged:
            self._answer_received()

    def _answer_received(self) -> None:
        self.backlogged = False
        try:
            for request in self._splitter:
                self._answer(request)
                if self.closing or self._stream is not None:
                    return
                if sum(map(len, self._queued)) > _MAX_QUEUED:
                    self.backlogged = True
                    return
        except HttpError as error:
            phrase = error.status.phrase
            refusal = json_error(phrase, error.status) if self.node is None else HttpResponse(phrase, error.status)
            self._queue(refusal, persistent=False)

    def _answer(self, request: HttpRequest) -> None:
        answer = self._answer_to(request)
        if isinstance(answer, HttpResponse):
            self._queue(answer, persistent=request.persistent)
        else:
            self._stream = answer
            self._queued.append(stream_head(answer.content_type))

    def _answer_to(self, request: HttpRequest) -> Answer:
        """Return the answer to a request of any user."""
        controls = self.node is None or self._control.concerns(request)
        if request.is_foreign_change:
            return json_error("requests of the pages of other servers are refused", HTTPStatus.FORBIDDEN)
        user = self._user(request, anybody=not controls)
        if user is None:
            status = HTTPStatus.UNAUTHORIZED
            text = "authenticate as a user of the cluster: the user name and password are those of its URL"
            return json_error(text, status, _REALM) if controls else HttpResponse("", status, _REALM)
        if self.node is None or controls:
            return self._control.answer(request, user)
        return route(Exchange(self.bucket, self.node, user, request))

    def _user(self, request: HttpRequest, *, anybody: bool) -> User | None:
        """Return the user of a request, `ANYBODY` if it needs to name none; None if it is refused."""
        try:
            given = request.credentials
        except HttpError:
            return None
        if anybody and not self.bucket.release.has_users:
            return ANYBODY
        if given is None:
            return self._certified or (ANYBODY if request.path == ("whoami",) else None)
        name, password = given
        user = self._users.get(name)
        return user if user is not None and secrets.compare_digest(user.password.encode(), password.encode()) else None

    def _queue(self, response: HttpResponse, *, persistent: bool) -> None:
        self._queued.append(response.encode(persistent=persistent))
        self.closing = self.closing or not persistent

    def send(self, now: float) -> list[bytes | memoryview]:
        """Return the bytes to send now, if any."""
        if self.backlogged and not self._queued:
            self._answer_received()
        # A node that has left the cluster has no map any more.
        if self.node is not None and not self.node.alive:
            self._end()
        if self._stream is not None and (chunk := self._stream.take(now)):
            self._queued.append(chunk)
        queued, self._queued = self._queued, []
        return [*queued]

    def _end(self) -> None:
        """Close the connection, after the end of a stream."""
        if self._stream is not None:
            self._queued.append(STREAM_END)
        self._release_stream()
        self.closing = True

    def due(self) -> float | None:
        """Return when the stream has more to send, if it has one that waits for a time."""
        return None if self._stream is None else self._stream.due()

    def tick(self, now: float) -> None:
        """Let the stream act on the time."""
        if self._stream is not None:
            self._stream.tick(now)

    def closed(self) -> None:
        """Release what the connection holds; its socket is gone."""
        self.closing = True
        self._release_stream()

    def _release_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
