"""Commands that begin a connection, and those that work at any time: HELLO, SELECT_BUCKET, NOOP, VERSION, QUIT."""

from __future__ import annotations

from dcp.embedded.commands.config import set_map_notifications
from dcp.embedded.commands.error_map import error_map
from dcp.embedded.commands.features import granted_features
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.refusals import Hangup, Refusal
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import Frame
from dcp.wire.memcached import FEATURES, Status

# Key of SELECT_BUCKET that deselects the bucket.
_NO_BUCKET = b"@no bucket@"


def hello(connection: ServerConnection, frame: Frame) -> Frame:
    # Each HELLO replaces the features of the one before, and a refused one leaves none.
    connection.state.features = frozenset()
    features = granted_features(FEATURES.decode(frame.value, {}), connection.bucket.release)
    connection.state.features = frozenset(features)
    set_map_notifications(connection)
    return response(frame, value=FEATURES.encode(features))


def select_bucket(connection: ServerConnection, frame: Frame) -> Frame:
    if connection.state.opened:
        raise Refusal(Status.NOT_SUPPORTED, "A DCP connection keeps its bucket")
    if frame.key == _NO_BUCKET:
        connection.state.bucket = None
    elif frame.key == connection.bucket.name.encode():
        connection.state.bucket = connection.bucket.name
    else:
        raise Refusal(Status.KEY_ENOENT)
    return response(frame)


def get_error_map(connection: ServerConnection, frame: Frame) -> Frame:
    version = int(frame.fields["version"])
    if version < 1:
        raise Refusal(Status.KEY_ENOENT)
    return response(frame, value=JSON.encode(error_map(version)), datatype=Datatype.JSON)


def version(connection: ServerConnection, frame: Frame) -> Frame:
    return response(frame, value=connection.bucket.release.version.encode())


def noop(connection: ServerConnection, frame: Frame) -> Frame:
    return response(frame)


def quit_(connection: ServerConnection, frame: Frame) -> Frame:
    connection.closing = True
    return response(frame)


def quitq(connection: ServerConnection, frame: Frame) -> None:
    raise Hangup


HANDLERS: dict[str, Handler] = {
    "hello": hello,
    "select_bucket": select_bucket,
    "get_error_map": get_error_map,
    "version": version,
    "noop": noop,
    "quit": quit_,
    "quitq": quitq,
}
