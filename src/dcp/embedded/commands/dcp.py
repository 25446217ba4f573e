"""The commands of a DCP consumer: open, control, streams, flow control, noops."""

from __future__ import annotations

from dcp.embedded.commands.collections import unknown
from dcp.embedded.connection import Handler, Hangup, Refusal, ServerConnection, answer
from dcp.embedded.controls import Connection, set_control
from dcp.embedded.dcp_connection import WITHOUT_VALUES, DcpConnection
from dcp.embedded.explanation import explain
from dcp.embedded.manifest import BucketManifest
from dcp.embedded.stream import ServerStream
from dcp.embedded.stream_request import RefusedStream, StreamRequest, decide
from dcp.errors import RemoteProtocolError
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import DCP, OpenFlag, StreamEnd, StreamFlag
from dcp.wire.frame import Frame
from dcp.wire.layout import Side
from dcp.wire.memcached import Feature, Status


def _producer(connection: ServerConnection) -> DcpConnection:
    for timer in connection.timers:
        if isinstance(timer, DcpConnection):
            return timer
    release = connection.bucket.release
    if release.hangs_up_on_misuse:
        raise Hangup
    closes = release.hangs_up_on_malformed(opened=False)
    raise Refusal(Status.EINVAL, "The command can only be sent on a DCP connection", close=closes)


def open_(connection: ServerConnection, frame: Frame) -> Frame:
    flags = OpenFlag(int(frame.fields["flags"]))
    if connection.state.opened and connection.bucket.release.hangs_up_on_misuse:
        raise Hangup
    if connection.state.opened:
        raise Refusal(Status.EINVAL, "The connection is already opened as a DCP connection")
    if connection.has(Feature.UNORDERED_EXECUTION):
        # Servers send this one without the datatype of JSON.
        context = "DCP on connections with unordered execution is not supported"
        raise Refusal(Status.NOT_SUPPORTED, value=explain(Status.NOT_SUPPORTED, context, connection.bucket.release)[0])
    if flags & ~int(connection.bucket.release.open_flags) or not _sensible(flags, connection.has(Feature.COLLECTIONS)):
        raise Refusal(Status.EINVAL)
    if OpenFlag.PRODUCER not in flags:
        raise Refusal(Status.NOT_SUPPORTED, "a consumer is not what this server can be")
    producer = DcpConnection(
        connection,
        frame.key.decode(errors="replace"),
        flags,
        connection.has(Feature.COLLECTIONS),
        connection.has(Feature.SNAPPY),
    )
    connection.state.opened = True
    _replace_namesake(connection, producer.name)
    connection.timers.append(producer)
    connection.answered["dcp_noop"] = producer.noop_answered
    return answer(frame)


def _replace_namesake(connection: ServerConnection, name: str) -> None:
    """An older connection of the same name is closed."""
    names = connection.node.consumers
    if name in names:
        names[name].closing = True
    names[name] = connection

    def forget() -> None:
        if names[name] is connection:
            del names[name]

    connection.on_close.append(forget)


def _sensible(flags: OpenFlag, collections: bool) -> bool:
    """Whether the flags can stand together."""
    if flags & WITHOUT_VALUES == WITHOUT_VALUES:
        return False
    if OpenFlag.INCLUDE_DELETED_USER_XATTRS in flags and OpenFlag.INCLUDE_XATTRS not in flags:
        return False
    return OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL not in flags or (OpenFlag.PRODUCER in flags and collections)


def control(connection: ServerConnection, frame: Frame) -> Frame:
    producer = _producer(connection)
    context = Connection(
        collections=producer.collections,
        snappy=producer.snappy,
        deleted_user_xattrs=OpenFlag.INCLUDE_DELETED_USER_XATTRS in producer.flags,
        history=any(vbucket.history is not None for vbucket in connection.bucket.actives()),
        release=connection.bucket.release,
    )
    name, value = frame.key.decode(errors="replace"), frame.value.decode(errors="replace")
    status = set_control(producer.controls, name, value, context)
    if status:
        raise Refusal(status)
    _set_window(connection, producer.controls.window)
    return answer(frame)


def _set_window(connection: ServerConnection, size: int) -> None:
    connection.out.window = size
    if not size:
        connection.out.outstanding = 0


def stream_request(connection: ServerConnection, frame: Frame) -> Frame:
    producer = _producer(connection)
    request = _request(frame)
    vbucket = connection.node.vbucket(frame.vbucket)
    sid = None if request.filter is None else request.filter.sid
    outcome = decide(
        request,
        producer.agreed(),
        vbucket,
        connection.bucket.manifest,
        streaming=producer.living((frame.vbucket, sid)) is not None,
        release=connection.bucket.release,
    )
    if isinstance(outcome, RefusedStream):
        if outcome.status is Status.ROLLBACK:
            return answer(frame, outcome.status, fields={"rollback_seqno": outcome.rollback_seqno or 0})
        raise _refusal(outcome.status, connection.bucket.manifest)
    assert vbucket is not None
    stream = ServerStream(vbucket, frame.opaque, outcome, producer.rules())
    producer.streams[stream.key] = stream
    connection.sources.append(stream)
    return answer(frame, value=FAILOVER_LOG.encode(vbucket.log))


def _refusal(status: Status, manifest: BucketManifest) -> Refusal:
    unknowns = (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE)
    return unknown(status, manifest) if status in unknowns else Refusal(status)


def _request(frame: Frame) -> StreamRequest:
    try:
        chosen = frame.body()
    except RemoteProtocolError:
        chosen = None
    numbers = frame.fields
    return StreamRequest(
        StreamFlag(int(numbers["flags"])),
        int(numbers["start_seqno"]),
        int(numbers["end_seqno"]),
        int(numbers["vbuuid"]),
        int(numbers["snapshot_start"]),
        int(numbers["snapshot_end"]),
        chosen,
        bool(frame.value),
    )


def close_stream(connection: ServerConnection, frame: Frame) -> Frame:
    producer = _producer(connection)
    if (frame.stream_id is not None) != producer.controls.stream_ids:
        raise Refusal(Status.DCP_STREAM_ID_INVALID)
    stream = producer.living((frame.vbucket, frame.stream_id))
    if stream is None:
        others = any(number == frame.vbucket for number, _ in producer.streams)
        raise Refusal(Status.DCP_STREAM_ID_INVALID if others and producer.controls.stream_ids else Status.KEY_ENOENT)
    del producer.streams[stream.key]
    if producer.controls.end_on_close:
        stream.end(StreamEnd.CLOSED)
    else:
        stream.ended = True
    return answer(frame)


def get_failover_log(connection: ServerConnection, frame: Frame) -> Frame:
    if not connection.bucket.release.failover_log_for_all:
        _producer(connection)
    return failover_log(connection, frame)


def failover_log(connection: ServerConnection, frame: Frame) -> Frame:
    vbucket = connection.node.vbucket(frame.vbucket)
    if vbucket is None:
        raise Refusal(Status.NOT_MY_VBUCKET)
    return answer(frame, value=FAILOVER_LOG.encode(vbucket.log))


def buffer_ack(connection: ServerConnection, frame: Frame) -> None:
    _producer(connection)
    connection.out.acknowledge(int(frame.fields["bytes"]))


def _disconnects(connection: ServerConnection, frame: Frame) -> None:
    """A message for another kind of endpoint."""
    _producer(connection)
    raise Hangup


def _not_supported(connection: ServerConnection, frame: Frame) -> None:
    _producer(connection)
    raise Refusal(Status.NOT_SUPPORTED)


HANDLERS: dict[str, Handler] = {
    **{message.name: _disconnects for message in DCP.messages if message.sender is Side.PRODUCER},
    "stream_flush": _not_supported,
    "open": open_,
    "control": control,
    "stream_request": stream_request,
    "close_stream": close_stream,
    "get_failover_log": get_failover_log,
    "kv_get_failover_log": failover_log,
    "buffer_ack": buffer_ack,
    "add_stream": _disconnects,
}
