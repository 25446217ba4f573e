"""The cluster map: on request, and as a notification whenever it changes."""

from __future__ import annotations

from typing import Any

from dcp.embedded.cluster_map import bucket_map, global_map, has_global_map, revision
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.refusals import Refusal
from dcp.embedded.release import ReleaseNumber
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status

_KNOWN_VERSIONS: ReleaseNumber = (7, 6)
_EPOCHS_IN_NOTIFICATIONS: ReleaseNumber = (7, 1)
# Epoch in a request of a client that has a map without one.
_UNKNOWN_EPOCH = -1


def get_cluster_config(connection: ServerConnection, frame: Frame) -> Frame:
    if frame.fields and not _is_newer(connection, int(frame.fields["epoch"]), int(frame.fields["revision"])):
        return response(frame)
    if connection.state.bucket is None and not has_global_map(connection.bucket):
        raise Refusal(Status.NO_BUCKET)
    connection.state.map_sent = revision(connection.bucket)
    datatype = int(Datatype.JSON) if connection.bucket.release.maps_are_json else 0
    return response(frame, value=JSON.encode(_map(connection)), datatype=datatype)


def _is_newer(connection: ServerConnection, epoch: int, known: int) -> bool:
    """Return whether the node has a newer map than the one that the client says it knows."""
    if connection.bucket.release.number < _KNOWN_VERSIONS:
        raise Refusal(Status.EINVAL)
    if known < 1 or (epoch < 1 and epoch != _UNKNOWN_EPOCH):
        raise Refusal(Status.EINVAL, "Expected a revision of at least 1, and an epoch of at least 1 or -1")
    return revision(connection.bucket) > (epoch, known)


def _map(connection: ServerConnection) -> dict[str, Any]:
    map_of = global_map if connection.state.bucket is None else bucket_map
    return map_of(connection.bucket, connection.node)


def set_map_notifications(connection: ServerConnection) -> None:
    """Start or stop notifying the client of new maps, as its HELLO features say."""
    features = (Feature.CLUSTERMAP_CHANGE_NOTIFICATION, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF)
    if any(map(connection.has, features)):
        connection.state.map_notified = revision(connection.bucket)
        connection.notifiers["map"] = _notify
    else:
        connection.notifiers.pop("map", None)


def _notify(connection: ServerConnection) -> None:
    newest = revision(connection.bucket)
    if newest == connection.state.map_notified or connection.state.user is None:
        return
    connection.state.map_notified = newest
    # A brief notification has the revision only; the client fetches the map when it wants to.
    brief = connection.has(Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF)
    if not brief:
        connection.state.map_sent = newest
    epoch = {"epoch": newest[0]} if connection.bucket.release.number >= _EPOCHS_IN_NOTIFICATIONS else {}
    connection.queue(
        Frame(
            "clustermap_change_notification",
            Magic.SERVER_REQUEST,
            datatype=0 if brief else Datatype.JSON,
            fields={**epoch, "revision": newest[1]},
            key=(connection.state.bucket or "").encode(),
            value=b"" if brief else JSON.encode(_map(connection)),
        )
    )


HANDLERS: dict[str, Handler] = {"get_cluster_config": get_cluster_config}
