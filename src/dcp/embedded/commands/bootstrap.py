"""How a connection begins, and what can be asked at any time."""

from __future__ import annotations

from dcp.embedded.commands.config import follow_map
from dcp.embedded.commands.error_map import error_map
from dcp.embedded.commands.features import granted
from dcp.embedded.conversation import Conversation, Handler, Hangup, Refusal, answer
from dcp.wire.body import JSON
from dcp.wire.document import Datatype
from dcp.wire.frame import Frame
from dcp.wire.memcached import FEATURES, Status

_NO_BUCKET = b"@no bucket@"


def hello(talk: Conversation, frame: Frame) -> Frame:
    talk.session.features = frozenset()
    features = granted(FEATURES.decode(frame.value, {}), talk.bucket.release.number)
    talk.session.features = frozenset(features)
    follow_map(talk)
    return answer(frame, value=FEATURES.encode(features))


def select_bucket(talk: Conversation, frame: Frame) -> Frame:
    if talk.session.opened:
        raise Refusal(Status.NOT_SUPPORTED, "A DCP connection keeps its bucket")
    if frame.key == _NO_BUCKET:
        talk.session.bucket = None
    elif frame.key == talk.bucket.name.encode():
        talk.session.bucket = talk.bucket.name
    else:
        raise Refusal(Status.KEY_ENOENT)
    return answer(frame)


def get_error_map(talk: Conversation, frame: Frame) -> Frame:
    version = int(frame.fields["version"])
    if version < 1:
        raise Refusal(Status.KEY_ENOENT)
    return answer(frame, value=JSON.encode(error_map(version)), datatype=Datatype.JSON)


def version(talk: Conversation, frame: Frame) -> Frame:
    major, minor = talk.bucket.release.number
    # Servers before 4.0 give no build.
    build = "-0000-enterprise" if major >= 4 else ""
    return answer(frame, value=f"{major}.{minor}.0{build}".encode())


def noop(talk: Conversation, frame: Frame) -> Frame:
    return answer(frame)


def quit_(talk: Conversation, frame: Frame) -> Frame:
    talk.closing = True
    return answer(frame)


def quitq(talk: Conversation, frame: Frame) -> None:
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
