"""Endpoints of the management service: those that clients read, with the documents of ns_server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from dcp.embedded.bucket import BucketStore, ServerNode
from dcp.embedded.cluster_map import bucket_map, capabilities, global_map
from dcp.embedded.management import documents
from dcp.embedded.management.http import HttpRequest, HttpResponse
from dcp.embedded.management.streams import MapStream, ResponseStream
from dcp.embedded.manifest import DEFAULT, LONGEST_TTL, BucketManifest, ManifestStep
from dcp.embedded.users import EVERYTHING, User
from dcp.errors import UsageError


@dataclass(frozen=True, slots=True)
class Exchange:
    """Request of a user to a node."""

    bucket: BucketStore
    node: ServerNode
    user: User
    request: HttpRequest


Answer = HttpResponse | ResponseStream
# Takes an exchange, and the segments of its path that stand for names.
_Endpoint = Callable[..., Answer]

# Segments of the paths below that stand for any name, and for the name of the bucket.
_NAME, _BUCKET = "{name}", "{bucket}"
# Clients tell this text from that of other errors.
_NOT_FOUND = HttpResponse("Requested resource not found.\r\n", HTTPStatus.NOT_FOUND)


def route(exchange: Exchange) -> Answer:
    """Return the answer of the endpoint that a request names."""
    path, method = exchange.request.path, exchange.request.method
    for pattern, endpoints in ENDPOINTS.items():
        if not _matches(path, pattern, exchange.bucket.name):
            continue
        if method not in endpoints:
            allowed = {"Allow": ", ".join(endpoints)}
            return HttpResponse("Method Not Allowed", HTTPStatus.METHOD_NOT_ALLOWED, allowed)
        names = [part for part, expected in zip(path, pattern, strict=True) if expected == _NAME]
        return endpoints[method](exchange, *names)
    return _NOT_FOUND


def _matches(path: tuple[str, ...], pattern: tuple[str, ...], bucket: str) -> bool:
    return len(path) == len(pattern) and all(
        expected == _NAME or part == (bucket if expected == _BUCKET else expected)
        for part, expected in zip(path, pattern, strict=True)
    )


# Documents.


def _document(content: Callable[[Exchange], Any]) -> _Endpoint:
    """Return the endpoint that answers with a document."""
    return lambda exchange: HttpResponse(content(exchange))


def _stream(content: Callable[[Exchange], Any]) -> _Endpoint:
    """Return the endpoint that streams a document."""
    return lambda exchange: MapStream(exchange.bucket, lambda: content(exchange))


def _cluster(exchange: Exchange) -> Any:
    return documents.cluster(exchange.bucket)


def _user(exchange: Exchange) -> Any:
    return documents.user(exchange.user)


def _pool(exchange: Exchange) -> Any:
    return documents.pool(exchange.bucket, exchange.node, exchange.request.host)


def _bucket(exchange: Exchange) -> Any:
    return documents.bucket_details(exchange.bucket, exchange.node, exchange.request.host)


def _buckets(exchange: Exchange) -> Any:
    return [_bucket(exchange)]


def _terse_bucket(exchange: Exchange) -> Any:
    return bucket_map(exchange.bucket, exchange.node)


def _node_services(exchange: Exchange) -> Any:
    return global_map(exchange.bucket, exchange.node)


# Collections. The texts of refusals are those of servers: clients find out the reason by them.

_Change = tuple[BucketManifest, list[ManifestStep]]


class _Refused(Exception):
    """The change of the manifest is not possible."""

    def __init__(self, reason: str, status: HTTPStatus) -> None:
        super().__init__(reason)
        self.response = HttpResponse({"errors": {"_": reason}}, status)


def _manifest(exchange: Exchange) -> Answer:
    return HttpResponse(exchange.bucket.manifest.to_json()) if _has_collections(exchange) else _NOT_FOUND


def _has_collections(exchange: Exchange) -> bool:
    return "collections" in capabilities(exchange.bucket)


def _changing(change: Callable[..., _Change]) -> _Endpoint:
    """Return the endpoint of a change, which takes the manifest, the form and the names in the path."""

    def endpoint(exchange: Exchange, *names: str) -> Answer:
        if not _has_collections(exchange):
            return _NOT_FOUND
        if exchange.user.privileges != EVERYTHING:
            return HttpResponse({"message": "Forbidden. User needs all privileges"}, HTTPStatus.FORBIDDEN)
        bucket = exchange.bucket
        try:
            bucket.change_manifest(*change(bucket.manifest, exchange.request.form, *names))
        except _Refused as refused:
            return refused.response
        except UsageError as error:
            return HttpResponse({"errors": {"name": str(error)}}, HTTPStatus.BAD_REQUEST)
        return HttpResponse({"uid": f"{bucket.manifest.uid:x}"})

    return endpoint


def _create_scope(manifest: BucketManifest, form: Mapping[str, str]) -> _Change:
    name = form.get("name", "")
    if any(scope.name == name for scope in manifest.scopes):
        raise _Refused(f'Scope with name "{name}" already exists', HTTPStatus.BAD_REQUEST)
    return manifest.create_scope(name)


def _drop_scope(manifest: BucketManifest, form: Mapping[str, str], scope: str) -> _Change:
    _check_scope(manifest, scope)
    if scope == DEFAULT:
        raise _Refused(f"Deleting {DEFAULT} scope is not allowed", HTTPStatus.BAD_REQUEST)
    return manifest.drop_scope(scope)


def _create_collection(manifest: BucketManifest, form: Mapping[str, str], scope: str) -> _Change:
    name, ttl = form.get("name", ""), form.get("maxTTL")
    if name in _check_scope(manifest, scope):
        raise _Refused(f'Collection with name "{name}" in scope "{scope}" already exists', HTTPStatus.BAD_REQUEST)
    if ttl is not None and not (ttl.isascii() and ttl.isdigit() and int(ttl) <= LONGEST_TTL):
        raise _Refused(f"maxTTL must be between 0 and {LONGEST_TTL}", HTTPStatus.BAD_REQUEST)
    return manifest.create_collection(scope, name, None if ttl is None else int(ttl))


def _drop_collection(manifest: BucketManifest, form: Mapping[str, str], scope: str, name: str) -> _Change:
    if name not in _check_scope(manifest, scope):
        raise _Refused(f'Collection with name "{name}" in scope "{scope}" is not found', HTTPStatus.NOT_FOUND)
    return manifest.drop_collection(scope, name)


def _check_scope(manifest: BucketManifest, name: str) -> list[str]:
    """Return the names of the collections of a scope; refuse the request if it does not exist."""
    for scope in manifest.scopes:
        if scope.name == name:
            return [collection.name for collection in scope.collections]
    raise _Refused(f'Scope with name "{name}" is not found', HTTPStatus.NOT_FOUND)


def _wait_for_manifest(exchange: Exchange, uid: str) -> Answer:
    # Every node of this cluster has every manifest at once.
    return HttpResponse("") if _has_collections(exchange) else _NOT_FOUND


# By path and method. `docs/testing.md` lists them.

_POOL = ("pools", "default")
_SCOPES = (*_POOL, "buckets", _BUCKET, "scopes")

ENDPOINTS: dict[tuple[str, ...], dict[str, _Endpoint]] = {
    (): {"GET": _document(_cluster)},
    ("pools",): {"GET": _document(_cluster)},
    ("whoami",): {"GET": _document(_user)},
    _POOL: {"GET": _document(_pool)},
    ("pools", "nodes"): {"GET": _document(_pool)},
    ("poolsStreaming", "default"): {"GET": _stream(_pool)},
    (*_POOL, "nodeServices"): {"GET": _document(_node_services)},
    (*_POOL, "nodeServicesStreaming"): {"GET": _stream(_node_services)},
    (*_POOL, "buckets"): {"GET": _document(_buckets)},
    (*_POOL, "buckets", _BUCKET): {"GET": _document(_bucket)},
    (*_POOL, "bucketsStreaming", _BUCKET): {"GET": _stream(_bucket)},
    (*_POOL, "b", _BUCKET): {"GET": _document(_terse_bucket)},
    (*_POOL, "bs", _BUCKET): {"GET": _stream(_terse_bucket)},
    _SCOPES: {"GET": _manifest, "POST": _changing(_create_scope)},
    (*_SCOPES, "@ensureManifest", _NAME): {"POST": _wait_for_manifest},
    (*_SCOPES, _NAME): {"DELETE": _changing(_drop_scope)},
    (*_SCOPES, _NAME, "collections"): {"POST": _changing(_create_collection)},
    (*_SCOPES, _NAME, "collections", _NAME): {"DELETE": _changing(_drop_collection)},
}
