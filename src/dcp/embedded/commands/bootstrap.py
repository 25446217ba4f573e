"""How a connection begins, and what can be asked at any time."""

from __future__ import annotations

from dcp.embedded.commands.config import follow_map
from dcp.embedded.commands.error_map import error_map
from dcp.embedded.commands.features import granted
from dcp.embedded.connection import Handler, Hangup, Refusal, ServerConnection, answer
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import Frame
from dcp.wire.memcached import FEATURES, Status

_NO_BUCKET = b"@no bucket@"


def hello(connection: ServerConnection, frame: Frame) -> Frame:
    connection.state.features = frozenset()
    features = granted(FEATURES.decode(frame.value, {}), connection.bucket.release.number)
    connection.state.features = frozenset(features)
    follow_map(connection)
    return answer(frame, value=FEATURES.encode(features))


def select_bucket(connection: ServerConnection, frame: Frame) -> Frame:
    if connection.state.opened:
        raise Refusal(Status.NOT_SUPPORTED, "A DCP connection keeps its bucket")
    if frame.key == _NO_BUCKET:
        connection.state.bucket = None
    elif frame.key == connection.bucket.name.encode():
        connection.state.bucket = connection.bucket.name
    else:
        raise Refusal(Status.KEY_ENOENT)
    return answer(frame)


def get_error_map(connection: ServerConnection, frame: Frame) -> Frame:
    version = int(frame.fields["version"])
    if version < 1:
        raise Refusal(Status.KEY_ENOENT)
    return answer(frame, value=JSON.encode(error_map(version)), datatype=Datatype.JSON)


def version(connection: ServerConnection, frame: Frame) -> Frame:
    major, minor = connection.bucket.release.number
    # Servers before 4.0 give no build.
    build = "-0000-enterprise" if major >= 4 else ""
    return answer(frame, value=f"{major}.{minor}.0{build}".encode())


def noop(connection: ServerConnection, frame: Frame) -> Frame:
    return answer(frame)


def quit_(connection: ServerConnection, frame: Frame) -> Frame:
    connection.closing = True
    return answer(frame)


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
