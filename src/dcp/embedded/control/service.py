"""Endpoints of the control service: state, events and operations as JSON, and the files of the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dcp.embedded.control.operations import describe, run
from dcp.embedded.control.state import ClusterView, EventStream
from dcp.embedded.management.http import HTML_TYPE, JSON_TYPE, HttpRequest, HttpResponse
from dcp.embedded.management.streams import ResponseStream
from dcp.embedded.users import EVERYTHING, User
from dcp.errors import UsageError

if TYPE_CHECKING:
    from dcp.embedded.cluster import Cluster

CONTROL, PAGE = "control", "page"
# Files of the page beside this one, and their types. It has no others, and loads none from elsewhere.
_FILES = {
    (): ("page.html", HTML_TYPE),
    (PAGE, "page.css"): ("page.css", "text/css"),
    (PAGE, "page.js"): ("page.js", "text/javascript"),
}
_MOST_WATCHERS = 16
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def json_error(text: str, status: HTTPStatus, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Return a response that says what is wrong."""
    return HttpResponse({"error": text}, status, headers or {})


class ControlService:
    """Answers requests about the cluster as a whole. The caller holds the cluster's lock for every call."""

    def __init__(self, cluster: Cluster, state: ClusterView) -> None:
        self._cluster = cluster
        self._state = state
        self._watchers: set[EventStream] = set()
        # By path below the base.
        self._documents: dict[tuple[str, ...], Callable[[], Any]] = {
            (): state.everything,
            ("operations",): describe,
        }

    def concerns(self, request: HttpRequest) -> bool:
        """Return whether a request to a node is one for this service."""
        return request.path[:1] in ((CONTROL,), (PAGE,)) or (not request.path and request.wants_html)

    def answer(self, request: HttpRequest, user: User) -> HttpResponse | ResponseStream:
        """Return the answer to a request of a user."""
        if user.privileges != EVERYTHING or user.collections is not None:
            return json_error(f"user {user.name}: expected one with all privileges", HTTPStatus.FORBIDDEN)
        if request.path in _FILES:
            return self._reading(request, lambda: _file(request.path))
        if request.path[:1] != (CONTROL,):
            return json_error("there is nothing here: the page is at /, operations at /control", HTTPStatus.NOT_FOUND)
        rest = request.path[1:]
        if rest in self._documents:
            return self._reading(request, lambda: HttpResponse(self._documents[rest](), headers=_HEADERS))
        if rest == ("events",):
            return self._reading(request, self._watch)
        return self._operate(request, "/".join(rest))

    def _reading(
        self, request: HttpRequest, answer: Callable[[], HttpResponse | ResponseStream]
    ) -> HttpResponse | ResponseStream:
        return answer() if request.method == "GET" else _wrong_method(request, "GET")

    def _watch(self) -> HttpResponse | ResponseStream:
        if len(self._watchers) >= _MOST_WATCHERS:
            text = f"{_MOST_WATCHERS} clients watch the cluster already: close one of them"
            return json_error(text, HTTPStatus.SERVICE_UNAVAILABLE)
        watcher = EventStream(self._state, self._watchers.discard)
        self._watchers.add(watcher)
        return watcher

    def _operate(self, request: HttpRequest, name: str) -> HttpResponse:
        if request.method != "POST":
            return _wrong_method(request, "POST")
        # Browsers send this type to other servers only after these have agreed, which this one never does.
        if request.content_type != JSON_TYPE:
            text = f"Content-Type: expected {JSON_TYPE}, found {request.content_type!r:.100}"
            return json_error(text, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        try:
            return HttpResponse({"result": run(self._cluster, name, _arguments(request.body))})
        except UsageError as error:
            return json_error(str(error), HTTPStatus.BAD_REQUEST)


def _wrong_method(request: HttpRequest, expected: str) -> HttpResponse:
    text = f"expected {expected}, found {request.method:.20}"
    return json_error(text, HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": expected})


def _arguments(body: bytes) -> Any:
    """Return the arguments of an operation; no body, and null, stand for none."""
    try:
        found = json.loads(body.decode(), parse_constant=_refuse_constant) if body else {}
        # A text with half of a surrogate pair is no text to anybody else.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise UsageError(f"expected the arguments as JSON, in UTF-8; found {body[:60]!r}") from None
    return {} if found is None else found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


@cache
def _file(path: tuple[str, ...]) -> HttpResponse:
    """Return a file of the page."""
    name, kind = _FILES[path]
    text = Path(__file__).with_name(name).read_text("utf-8")
    headers = {"Content-Type": f"{kind}; charset=utf-8", "Vary": "Accept"}
    return HttpResponse(text, headers=headers | _HEADERS)
