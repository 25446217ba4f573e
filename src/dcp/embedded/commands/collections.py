"""Commands for scopes and collections: the manifest, and the ids of names."""

from __future__ import annotations

from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.manifest import DEFAULT, BucketManifest, Scope
from dcp.embedded.refusals import Refusal
from dcp.embedded.release import ReleaseNumber
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import Frame
from dcp.wire.memcached import Feature, Status

# Clients of 6.5 and 6.6 send the path as the key, later ones as the value.
_PATH_IN_VALUE: ReleaseNumber = (7, 0)


def get_manifest(connection: ServerConnection, frame: Frame) -> Frame:
    if frame.vbucket or frame.cas:
        raise Refusal(Status.EINVAL)
    return response(frame, value=JSON.encode(connection.bucket.manifest.to_json()), datatype=Datatype.JSON)


def get_collection_id(connection: ServerConnection, frame: Frame) -> Frame:
    scope_name, separator, name = _path(connection, frame).partition(".")
    if not separator or "." in name:
        raise Refusal(Status.EINVAL, "Expected scope.collection")
    manifest = connection.bucket.manifest
    for collection in _scope(manifest, scope_name).collections:
        if collection.name == (name or DEFAULT):
            return response(frame, fields={"manifest_uid": manifest.uid, "collection_id": collection.id})
    raise unknown_collection(Status.UNKNOWN_COLLECTION, manifest)


def get_scope_id(connection: ServerConnection, frame: Frame) -> Frame:
    manifest = connection.bucket.manifest
    scope = _scope(manifest, _path(connection, frame).partition(".")[0])
    return response(frame, fields={"manifest_uid": manifest.uid, "scope_id": scope.id})


def unknown_collection(status: Status, manifest: BucketManifest) -> Refusal:
    """Return the refusal of an unknown scope or collection, with the uid of the node's manifest.

    By the uid a client finds out whether the node or the client has the older manifest.
    """
    return Refusal(status, value=JSON.encode({"manifest_uid": f"{manifest.uid:x}"}), datatype=int(Datatype.JSON))


def _path(connection: ServerConnection, frame: Frame) -> str:
    if not connection.has(Feature.COLLECTIONS):
        raise Refusal(Status.NOT_SUPPORTED, "Collections were not agreed on")
    in_value = connection.bucket.release.number >= _PATH_IN_VALUE
    if frame.vbucket or frame.cas or (frame.key and frame.value) or (frame.value and not in_value):
        raise Refusal(Status.EINVAL)
    return (frame.key or frame.value).decode(errors="replace")


def _scope(manifest: BucketManifest, name: str) -> Scope:
    for scope in manifest.scopes:
        if scope.name == (name or DEFAULT):
            return scope
    raise unknown_collection(Status.UNKNOWN_SCOPE, manifest)


HANDLERS: dict[str, Handler] = {
    "get_collections_manifest": get_manifest,
    "get_collection_id": get_collection_id,
    "get_scope_id": get_scope_id,
}
