"""Commands of a TAP client: connect, deregister, change the filter."""

from __future__ import annotations

from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.legacy.clients import clients_of
from dcp.embedded.legacy.tap_messages import DIALECT
from dcp.embedded.legacy.tap_stream import ServerTapStream
from dcp.embedded.refusals import Hangup, Refusal
from dcp.embedded.release import Release
from dcp.errors import FrameError, RemoteProtocolError
from dcp.wire.frame import Frame, dialect_of, encode, read_frame
from dcp.wire.layout import Side
from dcp.wire.memcached import Status
from dcp.wire.tap import TAP_CONNECT, TapConnectFlag

_TABLE = dialect_of(DIALECT)
_CONNECT = _TABLE.by_name["tap_connect"]
# Last release that speaks TAP.
_LAST = Release.of(_CONNECT.until)
_ACKNOWLEDGED = [message.name for message in _TABLE.messages if message.sender is Side.PRODUCER]


def connect(connection: ServerConnection, frame: Frame) -> None:
    """Turn the connection into a TAP connection. Only a refusal has a response."""
    try:
        body = TAP_CONNECT.decode(frame.value, frame.fields)
    except RemoteProtocolError:
        raise Hangup from None
    flags = TapConnectFlag(int(frame.fields.get("flags", 0)))
    registers = bool(frame.key) and TapConnectFlag.REGISTERED_CLIENT in flags
    if connection.state.opened or any(isinstance(source, ServerTapStream) for source in connection.sources):
        raise Refusal(Status.NOT_SUPPORTED, "this connection streams already", close=True)
    if TapConnectFlag.TAKEOVER_VBUCKETS in flags and TapConnectFlag.LIST_VBUCKETS not in flags:
        raise Refusal(Status.NOT_SUPPORTED, "vbuckets are taken over only if they are listed", close=True)
    clients = clients_of(connection.node)
    if registers and not clients.may_register(frame.key):
        raise Refusal(Status.NOT_SUPPORTED, "there are too many registered clients", close=True)
    stream = ServerTapStream(connection, flags, body.backfill or 0, as_specified=connection.dialect == DIALECT)
    positions = clients.connect(frame.key, stream, registers) if frame.key else {}
    connection.on_close.append(lambda: clients.disconnect(frame.key, stream))
    connection.dialect = DIALECT
    connection.sources.append(stream)
    connection.timers.append(stream)
    connection.response_handlers.update(dict.fromkeys(_ACKNOWLEDGED, stream.answered))
    stream.open(body.vbuckets or connection.node.vbuckets, dict(body.checkpoints or ()), positions)


def deregister(connection: ServerConnection, frame: Frame) -> Frame:
    """Forget the positions of a client."""
    clients_of(connection.node).registered.pop(frame.key, None)
    return response(frame)


def change_filter(connection: ServerConnection, frame: Frame) -> Frame:
    """Change the vbuckets of a connected client."""
    stream = clients_of(connection.node).connected.get(frame.key)
    if stream is None:
        raise Refusal(Status.KEY_ENOENT, "no such client is connected")
    try:
        checkpoints = frame.body(DIALECT)
    except RemoteProtocolError:
        raise Refusal(Status.EINVAL) from None
    stream.change_filter(dict(checkpoints))
    return response(frame)


HANDLERS: dict[str, Handler] = {
    "tap_connect": connect,
    "deregister_tap_client": deregister,
    "change_vb_filter": change_filter,
}


def unknown(connection: ServerConnection, frame: Frame) -> Frame | None:
    """Handle a command that is unknown in the connection's dialect: up to 4.6 it may be one of TAP."""
    if connection.dialect != "dcp" or connection.bucket.release.number > _LAST.number:
        raise Refusal(connection.bucket.release.unknown_command)
    try:
        read = read_frame(encode(frame), _TABLE)
    except FrameError:
        # Servers close the connection for a malformed TAP_CONNECT, and answer all others.
        if frame.fields["opcode"] == _CONNECT.opcode:
            raise Hangup from None
        raise Refusal(Status.EINVAL) from None
    handler = HANDLERS.get(read.name)
    if handler is None:
        raise Refusal(connection.bucket.release.unknown_command)
    return None if handler(connection, read) is None else response(frame)
