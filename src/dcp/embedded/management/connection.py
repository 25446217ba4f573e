"""One client's connection to the management service of a node: HTTP in, HTTP out. No socket."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from dcp.embedded.bucket import BucketStore, ServerNode
from dcp.embedded.cluster_map import revision
from dcp.embedded.management.http import (
    STREAM_END,
    HttpError,
    HttpRequest,
    HttpResponse,
    RequestSplitter,
    stream_chunk,
    stream_head,
)
from dcp.embedded.management.routes import Exchange, Stream, route
from dcp.embedded.users import ANYBODY, User, Users

# Bytes of queued responses above which received requests wait until the responses were sent.
_MAX_QUEUED = 4 << 20
_REALM = {"WWW-Authenticate": 'Basic realm="Couchbase Server Admin / REST"'}


class ManagementConnection:
    """Answers a client's requests. Sends the documents that it streams again when the cluster map has changed.

    The caller holds the cluster's lock for every call.
    """

    def __init__(self, bucket: BucketStore, node: ServerNode, users: Users) -> None:
        self.bucket = bucket
        self.node = node
        self.closing = False
        # True while received requests wait until queued responses were sent.
        self.backlogged = False
        self._users = users
        self._splitter = RequestSplitter()
        self._queued: list[bytes] = []
        # User of the client's certificate.
        self._certified: User | None = None
        self._streamed: Callable[[], Any] | None = None
        self._revision = (0, 0)

    def admit(self, name: str) -> None:
        """Set the user that a client certificate has authenticated; close the connection if there is none."""
        self._certified = self._users.get(name)
        self.closing = self.closing or self._certified is None

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> None:
        """Take bytes from the client and answer the requests that they complete."""
        # A stream never ends, so a request after it would never be answered.
        if self.closing or self._streamed is not None:
            return
        self._splitter.feed(data)
        if not self.backlogged:
            self._answer_received()

    def _answer_received(self) -> None:
        self.backlogged = False
        try:
            for request in self._splitter:
                self._answer(request)
                if self.closing or self._streamed is not None:
                    return
                if sum(map(len, self._queued)) > _MAX_QUEUED:
                    self.backlogged = True
                    return
        except HttpError as error:
            self._queue(HttpResponse(error.status.phrase, error.status), persistent=False)

    def _answer(self, request: HttpRequest) -> None:
        user = self._user(request)
        if user is None:
            self._queue(HttpResponse("", HTTPStatus.UNAUTHORIZED, _REALM), persistent=request.persistent)
            return
        answer = route(Exchange(self.bucket, self.node, user, request))
        if isinstance(answer, Stream):
            self._streamed = answer.content
            self._queued.append(stream_head())
        else:
            self._queue(answer, persistent=request.persistent)

    def _user(self, request: HttpRequest) -> User | None:
        """Return the user of a request, `ANYBODY` if it names none where that is enough; None if it is refused."""
        try:
            given = request.credentials
        except HttpError:
            return None
        if not self.bucket.release.has_users:
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
        if not self.node.alive:
            self._end()
        newest = revision(self.bucket)
        if self._streamed is not None and self._revision < newest:
            self._revision = newest
            self._queued.append(stream_chunk(self._streamed()))
        queued, self._queued = self._queued, []
        return [*queued]

    def _end(self) -> None:
        """Close the connection, after the end of a stream."""
        if self._streamed is not None:
            self._queued.append(STREAM_END)
        self._streamed = None
        self.closing = True

    def due(self) -> float | None:
        """Return None: nothing waits for a time."""
        return None

    def tick(self, now: float) -> None:
        """Do nothing: nothing waits for a time."""

    def closed(self) -> None:
        """Release what the connection holds; its socket is gone."""
        self.closing = True
        self._streamed = None
