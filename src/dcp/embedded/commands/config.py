"""The cluster map: fetched, or pushed whenever it changes."""

from __future__ import annotations

from typing import Any

from dcp.embedded.cluster_map import bucket_map, global_map, has_global_map, revision
from dcp.embedded.connection import Handler, Refusal, ServerConnection, answer
from dcp.embedded.release import ReleaseNumber
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status

_KNOWN_VERSIONS: ReleaseNumber = (7, 6)
_EPOCHS_IN_NEWS: ReleaseNumber = (7, 1)
_UNKNOWN_EPOCH = -1


def get_cluster_config(connection: ServerConnection, frame: Frame) -> Frame:
    if frame.fields and not _is_news(connection, int(frame.fields["epoch"]), int(frame.fields["revision"])):
        return answer(frame)
    if connection.state.bucket is None and not has_global_map(connection.bucket):
        raise Refusal(Status.NO_BUCKET)
    connection.state.map_sent = revision(connection.bucket)
    datatype = int(Datatype.JSON) if connection.bucket.release.maps_are_json else 0
    return answer(frame, value=JSON.encode(_map(connection)), datatype=datatype)


def _is_news(connection: ServerConnection, epoch: int, known: int) -> bool:
    if connection.bucket.release.number < _KNOWN_VERSIONS:
        raise Refusal(Status.EINVAL)
    if known < 1 or (epoch < 1 and epoch != _UNKNOWN_EPOCH):
        raise Refusal(Status.EINVAL, "Expected a revision of at least 1, and an epoch of at least 1 or -1")
    return revision(connection.bucket) > (epoch, known)


def _map(connection: ServerConnection) -> dict[str, Any]:
    draw = global_map if connection.state.bucket is None else bucket_map
    return draw(connection.bucket, connection.node)


def follow_map(connection: ServerConnection) -> None:
    """Tell the client of every map from now on, in the form that it asked for, or of none."""
    if connection.has(Feature.CLUSTERMAP_CHANGE_NOTIFICATION) or connection.has(
        Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF
    ):
        connection.state.map_noticed = revision(connection.bucket)
        connection.news["map"] = _look
    else:
        connection.news.pop("map", None)


def _look(connection: ServerConnection) -> None:
    newest = revision(connection.bucket)
    if newest == connection.state.map_noticed or connection.state.user is None:
        return
    connection.state.map_noticed = newest
    brief = connection.has(Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF)
    if not brief:
        connection.state.map_sent = newest
    epoch = {"epoch": newest[0]} if connection.bucket.release.number >= _EPOCHS_IN_NEWS else {}
    connection.say(
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
