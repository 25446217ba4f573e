"""Commands of a DCP consumer: open, control, streams, flow control."""

from __future__ import annotations

from dcp.embedded.commands.collections import unknown_collection
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.controls import set_control
from dcp.embedded.dcp_connection import DcpConnection
from dcp.embedded.manifest import BucketManifest
from dcp.embedded.negotiated import WITHOUT_VALUES, Negotiated
from dcp.embedded.refusals import Hangup, Refusal, error_value
from dcp.embedded.stream import ServerStream
from dcp.embedded.stream_request import RefusedStream, StreamRequest, decide
from dcp.errors import RemoteProtocolError
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import DCP, OpenFlag, StreamEnd, StreamFlag
from dcp.wire.frame import Frame
from dcp.wire.layout import Side
from dcp.wire.memcached import Feature, Status


def _opened(connection: ServerConnection) -> DcpConnection:
    """Return the DCP state of a connection; refuse the command, as each release does, if it was not opened."""
    for timer in connection.timers:
        if isinstance(timer, DcpConnection):
            return timer
    release = connection.bucket.release
    if release.hangs_up_on_misuse:
        raise Hangup
    closes = release.hangs_up_on_malformed(opened=False)
    raise Refusal(Status.EINVAL, "The command can only be sent on a DCP connection", close=closes)


def open_(connection: ServerConnection, frame: Frame) -> Frame:
    release, flags = connection.bucket.release, OpenFlag(int(frame.fields["flags"]))
    collections = connection.has(Feature.COLLECTIONS)
    if connection.state.opened and release.hangs_up_on_misuse:
        raise Hangup
    if connection.state.opened:
        raise Refusal(Status.EINVAL, "The connection is already opened as a DCP connection")
    if connection.has(Feature.UNORDERED_EXECUTION):
        context = "DCP on connections with unordered execution is not supported"
        # Servers send this JSON without its datatype (seen in 6.x and 7.x).
        raise Refusal(Status.NOT_SUPPORTED, value=error_value(Status.NOT_SUPPORTED, context, release)[0])
    if flags & ~int(release.open_flags) or not _compatible(flags, collections):
        raise Refusal(Status.EINVAL)
    if OpenFlag.PRODUCER not in flags:
        raise Refusal(Status.NOT_SUPPORTED, "This server cannot be a consumer")
    negotiated = Negotiated.opened(
        flags,
        collections=collections,
        snappy=connection.has(Feature.SNAPPY),
        retains_history=connection.bucket.retains_history,
        release=release,
    )
    opened = DcpConnection(connection, frame.key.decode(errors="replace"), negotiated)
    connection.state.opened = True
    _close_namesake(connection, opened.name)
    connection.timers.append(opened)
    connection.response_handlers["dcp_noop"] = opened.noop_answered
    return response(frame)


def _close_namesake(connection: ServerConnection, name: str) -> None:
    """Close an older DCP connection of the same name, as servers do."""
    names = connection.node.consumers
    if name in names:
        names[name].closing = True
    names[name] = connection

    def forget() -> None:
        # By now the name may belong to a newer connection.
        if names[name] is connection:
            del names[name]

    connection.on_close.append(forget)


def _compatible(flags: OpenFlag, collections: bool) -> bool:
    """Return whether servers accept this combination of open flags."""
    if flags & WITHOUT_VALUES == WITHOUT_VALUES:
        return False
    if OpenFlag.INCLUDE_DELETED_USER_XATTRS in flags and OpenFlag.INCLUDE_XATTRS not in flags:
        return False
    return OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL not in flags or (OpenFlag.PRODUCER in flags and collections)


def control(connection: ServerConnection, frame: Frame) -> Frame:
    opened = _opened(connection)
    name, value = frame.key.decode(errors="replace"), frame.value.decode(errors="replace")
    changed = set_control(opened.negotiated, name, value)
    if isinstance(changed, Status):
        raise Refusal(changed)
    opened.negotiated = changed
    connection.out.window = changed.window
    if not changed.window:
        # Without flow control nothing is acknowledged, so nothing must stay outstanding.
        connection.out.outstanding = 0
    return response(frame)


def stream_request(connection: ServerConnection, frame: Frame) -> Frame:
    opened = _opened(connection)
    request = _request(frame)
    vbucket = connection.node.vbucket(frame.vbucket)
    sid = None if request.filter is None else request.filter.sid
    outcome = decide(
        request,
        opened.negotiated,
        vbucket,
        connection.bucket.manifest,
        streaming=opened.live_stream((frame.vbucket, sid)) is not None,
    )
    if isinstance(outcome, RefusedStream):
        if outcome.status is Status.ROLLBACK:
            return response(frame, outcome.status, fields={"rollback_seqno": outcome.rollback_seqno or 0})
        raise _refusal(outcome.status, connection.bucket.manifest)
    assert vbucket is not None
    stream = ServerStream(vbucket, frame.opaque, outcome, opened.negotiated)
    opened.streams[stream.key] = stream
    connection.sources.append(stream)
    return response(frame, value=FAILOVER_LOG.encode(vbucket.log))


def _refusal(status: Status, manifest: BucketManifest) -> Refusal:
    if status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
        return unknown_collection(status, manifest)
    return Refusal(status)


def _request(frame: Frame) -> StreamRequest:
    try:
        stream_filter = frame.body()
    except RemoteProtocolError:
        stream_filter = None
    numbers = frame.fields
    return StreamRequest(
        StreamFlag(int(numbers["flags"])),
        int(numbers["start_seqno"]),
        int(numbers["end_seqno"]),
        int(numbers["vbuuid"]),
        int(numbers["snapshot_start"]),
        int(numbers["snapshot_end"]),
        stream_filter,
        bool(frame.value),
    )


def close_stream(connection: ServerConnection, frame: Frame) -> Frame:
    opened = _opened(connection)
    negotiated = opened.negotiated
    if (frame.stream_id is not None) != negotiated.stream_ids:
        raise Refusal(Status.DCP_STREAM_ID_INVALID)
    stream = opened.live_stream((frame.vbucket, frame.stream_id))
    if stream is None:
        others = any(number == frame.vbucket for number, _ in opened.streams)
        raise Refusal(Status.DCP_STREAM_ID_INVALID if others and negotiated.stream_ids else Status.KEY_ENOENT)
    del opened.streams[stream.key]
    if negotiated.end_on_close:
        stream.end(StreamEnd.CLOSED)
    else:
        stream.ended = True
    return response(frame)


def get_failover_log(connection: ServerConnection, frame: Frame) -> Frame:
    if not connection.bucket.release.failover_log_for_all:
        _opened(connection)
    return failover_log(connection, frame)


def failover_log(connection: ServerConnection, frame: Frame) -> Frame:
    vbucket = connection.node.vbucket(frame.vbucket)
    if vbucket is None:
        raise Refusal(Status.NOT_MY_VBUCKET)
    return response(frame, value=FAILOVER_LOG.encode(vbucket.log))


def buffer_ack(connection: ServerConnection, frame: Frame) -> None:
    _opened(connection)
    connection.out.acknowledge(int(frame.fields["bytes"]))


def seqno_acknowledged(connection: ServerConnection, frame: Frame) -> None:
    """Take the acknowledgement of prepares. As on servers, only those of the nodes in the map make a majority."""
    opened = _opened(connection)
    if not opened.negotiated.replicates:
        raise Refusal(Status.EINVAL)
    if connection.node.vbucket(frame.vbucket) is None:
        raise Refusal(Status.NOT_MY_VBUCKET)
    if all(number != frame.vbucket for number, _ in opened.streams):
        # kv_engine throws an exception, which closes the connection: DcpProducer::seqno_acknowledged.
        raise Hangup


def _disconnect(connection: ServerConnection, frame: Frame) -> None:
    """Close a connection whose client sends a message that only producers send."""
    _opened(connection)
    raise Hangup


def _not_supported(connection: ServerConnection, frame: Frame) -> None:
    _opened(connection)
    raise Refusal(Status.NOT_SUPPORTED)


HANDLERS: dict[str, Handler] = {
    **{message.name: _disconnect for message in DCP.messages if message.sender is Side.PRODUCER},
    "stream_flush": _not_supported,
    "open": open_,
    "control": control,
    "stream_request": stream_request,
    "close_stream": close_stream,
    "get_failover_log": get_failover_log,
    "kv_get_failover_log": failover_log,
    "buffer_ack": buffer_ack,
    "seqno_acknowledged": seqno_acknowledged,
    "add_stream": _disconnect,
}
