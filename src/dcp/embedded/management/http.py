"""HTTP/1.1 of the management service: requests from bytes, and responses as bytes. No socket."""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from string import digits, hexdigits
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

# Bytes. The longest heads are those of browsers; no endpoint takes more than a few names.
_LONGEST_HEAD = 64 << 10
_LONGEST_BODY = 1 << 20
_LINE_END = b"\r\n"
_HEAD_END = 2 * _LINE_END
_MOST_DIGITS = 16
JSON_TYPE = "application/json"
HTML_TYPE = "text/html"
# Methods that change nothing.
_SAFE_METHODS = ("GET", "HEAD")


class HttpError(Exception):
    """The request is answered with this status, and its connection is closed: its end is not known."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Request of a client. `headers` have names in lower case; `path` has the decoded segments."""

    method: str
    path: tuple[str, ...]
    headers: Mapping[str, str]
    body: bytes = b""
    persistent: bool = True

    @property
    def form(self) -> dict[str, str]:
        """Fields of an HTML form in the body."""
        return dict(parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True))

    @property
    def host(self) -> str:
        """Host, without port, by which the client reached the node; "" if it does not say."""
        try:
            return urlsplit(f"//{self.headers.get('host', '')}").hostname or ""
        except ValueError:
            return ""

    @property
    def content_type(self) -> str:
        """Type of the body, without parameters and in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def wants_html(self) -> bool:
        """True if a browser asks: other clients accept anything, or JSON."""
        return HTML_TYPE in self.headers.get("accept", "")

    @property
    def is_foreign_change(self) -> bool:
        """True if the page of another server asks a browser for a change, with the password that the browser knows."""
        origin = self.headers.get("origin")
        if origin is None or self.method in _SAFE_METHODS:
            return False
        return origin.partition("://")[2] != self.headers.get("host", "")

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User name and password of basic authentication; None without them. Raises HttpError if malformed."""
        given = self.headers.get("authorization")
        if given is None:
            return None
        scheme, _, encoded = given.partition(" ")
        try:
            name, colon, password = b64decode(encoded, validate=True).decode().partition(":")
        except (Base64Error, UnicodeDecodeError):
            raise HttpError(HTTPStatus.UNAUTHORIZED) from None
        if scheme.lower() != "basic" or not colon:
            raise HttpError(HTTPStatus.UNAUTHORIZED)
        return name, password


class RequestSplitter:
    """Splits the bytes of a connection into requests."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def __iter__(self) -> Iterator[HttpRequest]:
        """Yield the requests that are complete. Raises HttpError for one that is malformed or too long."""
        while (request := self._next()) is not None:
            yield request

    def _next(self) -> HttpRequest | None:
        end = self._data.find(_HEAD_END, 0, _LONGEST_HEAD)
        if end < 0:
            if len(self._data) >= _LONGEST_HEAD:
                raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return None
        method, target, version, headers = _parse_head(bytes(self._data[:end]))
        found = _read_body(self._data, end + len(_HEAD_END), headers)
        if found is None:
            return None
        body, end = found
        del self._data[:end]
        connection = headers.get("connection", "").lower()
        persistent = connection != "close" and (version == "HTTP/1.1" or connection == "keep-alive")
        return HttpRequest(method, _segments(target), headers, body, persistent)


def _parse_head(head: bytes) -> tuple[str, str, str, dict[str, str]]:
    """Return method, target, version and headers of a request."""
    first, *lines = head.decode("latin-1").lstrip("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise HttpError(HTTPStatus.BAD_REQUEST)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise HttpError(HTTPStatus.BAD_REQUEST)
        headers[name.lower()] = value.strip()
    return *parts, headers  # type: ignore[return-value]


def _read_body(data: bytearray, begin: int, headers: Mapping[str, str]) -> tuple[bytes, int] | None:
    """Return the body that begins there, and where it ends; None if it is not complete."""
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise HttpError(HTTPStatus.NOT_IMPLEMENTED)
        return _read_chunks(data, begin)
    end = begin + _size(headers.get("content-length", "0"), 10)
    return (bytes(data[begin:end]), end) if len(data) >= end else None


def _read_chunks(data: bytearray, begin: int) -> tuple[bytes, int] | None:
    """Return a body in chunks, and where it ends; None if it is not complete. Trailers are not accepted."""
    body = b""
    while (line_end := data.find(_LINE_END, begin)) >= 0:
        size = _size(data[begin:line_end].decode("latin-1").partition(";")[0].strip(), 16)
        first = line_end + len(_LINE_END)
        begin = first + size + len(_LINE_END)
        if len(data) < begin:
            return None
        if data[first + size : begin] != _LINE_END or len(body) + size > _LONGEST_BODY:
            raise HttpError(HTTPStatus.BAD_REQUEST)
        if not size:
            return body, begin
        body += data[first : first + size]
    if len(data) - begin > _LONGEST_BODY:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return None


def _size(text: str, base: int) -> int:
    """Return the size that a client announces, if it may be that large."""
    if not text or len(text) > _MOST_DIGITS or not set(text) <= set(hexdigits if base == 16 else digits):
        raise HttpError(HTTPStatus.BAD_REQUEST)
    if (size := int(text, base)) > _LONGEST_BODY:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return size


def _segments(target: str) -> tuple[str, ...]:
    path = target.partition("?")[0]
    return tuple(unquote(part) for part in path.split("/") if part)


# Responses.


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Response of a node: `content` is sent as JSON, unless it is text."""

    content: Any
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, *, persistent: bool = True) -> bytes:
        """Return the bytes of the response. Unless `persistent`, they say that the connection ends."""
        text = isinstance(self.content, str)
        body = self.content.encode() if text else json.dumps(self.content).encode()
        headers = {"Content-Type": "text/plain" if text else JSON_TYPE, "Content-Length": str(len(body))}
        return _head(self.status, {**headers, **self.headers}, persistent=persistent) + body


def stream_head(content_type: str) -> bytes:
    """Return the beginning of a response that never ends, and consists of `stream_chunk`s."""
    headers = {"Content-Type": f"{content_type}; charset=utf-8", "Transfer-Encoding": "chunked"}
    return _head(HTTPStatus.OK, headers, persistent=True)


def stream_chunk(*pieces: bytes) -> bytes:
    """Return a part of a stream, in one chunk for each piece."""
    return b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in pieces)


# End of a stream.
STREAM_END = b"0\r\n\r\n"


def _head(status: HTTPStatus, headers: Mapping[str, str], *, persistent: bool) -> bytes:
    common = {"Server": "Couchbase Server", "Cache-Control": "no-cache,no-store,must-revalidate"}
    ending = {} if persistent else {"Connection": "close"}
    lines = [f"{name}: {value}" for name, value in {**common, **headers, **ending}.items()]
    return "\r\n".join((f"HTTP/1.1 {status.value} {status.phrase}", *lines, "", "")).encode("latin-1")
