"""The cluster map: fetched, or pushed whenever it changes."""

from __future__ import annotations

from typing import Any

from dcp.embedded.cluster_map import bucket_map, global_map, has_global_map, revision
from dcp.embedded.conversation import Conversation, Handler, Refusal, answer
from dcp.embedded.release import ReleaseNumber
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status

_KNOWN_VERSIONS: ReleaseNumber = (7, 6)
_EPOCHS_IN_NEWS: ReleaseNumber = (7, 1)
_UNKNOWN_EPOCH = -1


def get_cluster_config(talk: Conversation, frame: Frame) -> Frame:
    if frame.fields and not _is_news(talk, int(frame.fields["epoch"]), int(frame.fields["revision"])):
        return answer(frame)
    if talk.session.bucket is None and not has_global_map(talk.bucket):
        raise Refusal(Status.NO_BUCKET)
    talk.session.map_sent = revision(talk.bucket)
    datatype = int(Datatype.JSON) if talk.bucket.release.maps_are_json else 0
    return answer(frame, value=JSON.encode(_map(talk)), datatype=datatype)


def _is_news(talk: Conversation, epoch: int, known: int) -> bool:
    if talk.bucket.release.number < _KNOWN_VERSIONS:
        raise Refusal(Status.EINVAL)
    if known < 1 or (epoch < 1 and epoch != _UNKNOWN_EPOCH):
        raise Refusal(Status.EINVAL, "Expected a revision of at least 1, and an epoch of at least 1 or -1")
    return revision(talk.bucket) > (epoch, known)


def _map(talk: Conversation) -> dict[str, Any]:
    draw = global_map if talk.session.bucket is None else bucket_map
    return draw(talk.bucket, talk.node)


def follow_map(talk: Conversation) -> None:
    """Tell the client of every map from now on, in the form that it asked for, or of none."""
    if talk.has(Feature.CLUSTERMAP_CHANGE_NOTIFICATION) or talk.has(Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF):
        talk.session.map_noticed = revision(talk.bucket)
        talk.news["map"] = _look
    else:
        talk.news.pop("map", None)


def _look(talk: Conversation) -> None:
    newest = revision(talk.bucket)
    if newest == talk.session.map_noticed or talk.session.user is None:
        return
    talk.session.map_noticed = newest
    brief = talk.has(Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF)
    if not brief:
        talk.session.map_sent = newest
    epoch = {"epoch": newest[0]} if talk.bucket.release.number >= _EPOCHS_IN_NEWS else {}
    talk.say(
        Frame(
            "clustermap_change_notification",
            Magic.SERVER_REQUEST,
            datatype=0 if brief else Datatype.JSON,
            fields={**epoch, "revision": newest[1]},
            key=(talk.session.bucket or "").encode(),
            value=b"" if brief else JSON.encode(_map(talk)),
        )
    )


HANDLERS: dict[str, Handler] = {"get_cluster_config": get_cluster_config}
