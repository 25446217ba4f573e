"""The commands of a DCP consumer: open, control, streams, flow control, noops."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcp.embedded.controls import Connection, Controls, set_control
from dcp.embedded.conversation import Conversation, Handler, Hangup, Refusal, answer
from dcp.embedded.explanation import explain
from dcp.embedded.request import Connection as Agreed
from dcp.embedded.request import Refused, Request, decide
from dcp.embedded.stream import Rules, Stream
from dcp.embedded.view import View
from dcp.errors import RemoteProtocolError
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import OpenFlag, StreamEnd, StreamFlag
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status

# Where the opaques of noops begin; byte-swapped, as servers send them.
_FIRST_NOOP = 10_000_001
# A consumer that says nothing at all for so long is gone.
IDLE_TIMEOUT = 360.0
_WITHOUT_VALUES = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE


@dataclass(eq=False)
class Producer:
    """A connection that was opened for DCP."""

    talk: Conversation
    name: str
    flags: OpenFlag
    # Latched as it opened.
    collections: bool
    snappy: bool
    controls: Controls = field(default_factory=Controls)
    streams: dict[tuple[int, int | None], Stream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._last_noop = self._last_heard = self.talk.now
        self._noops = 0
        self._unanswered: int | None = None

    # Noops and dead connections.

    def due(self) -> float | None:
        if not self.controls.noop:
            return None
        idle = self._last_heard + IDLE_TIMEOUT
        return idle if self._unanswered is not None else min(idle, self._last_noop + self.controls.noop_interval)

    def tick(self, now: float) -> None:
        if not self.controls.noop:
            return
        if now >= self._last_heard + IDLE_TIMEOUT:
            self.talk.closing = True
        elif self._unanswered is None and now >= self._last_noop + self.controls.noop_interval:
            number = (_FIRST_NOOP + self._noops) & 0xFFFFFFFF
            self._unanswered = int.from_bytes(number.to_bytes(4, "little"), "big")
            self._noops += 1
            self._last_noop = now
            self.talk.say(Frame("dcp_noop", Magic.REQUEST, self._unanswered))

    def heard(self) -> None:
        """Something came from the consumer."""
        self._last_heard = self.talk.now

    def noop_answered(self, frame: Frame) -> None:
        if frame.opaque != self._unanswered:
            self.talk.closing = True
        self._unanswered = None

    # Streams.

    def agreed(self) -> Agreed:
        return Agreed(
            collections=self.collections,
            xattrs=OpenFlag.INCLUDE_XATTRS in self.flags,
            noop=self.controls.noop,
            stream_ids=self.controls.stream_ids,
            sync_writes=self.controls.sync_writes,
        )

    def rules(self) -> Rules:
        flags, controls, generation = self.flags, self.controls, self.talk.bucket.generation
        keeps_datatype = OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
        if generation.no_value_keeps_datatype:
            keeps_datatype |= OpenFlag.NO_VALUE
        view = View(
            collections=self.collections,
            xattrs=OpenFlag.INCLUDE_XATTRS in flags,
            deleted_user_xattrs=OpenFlag.INCLUDE_DELETED_USER_XATTRS in flags or generation.all_xattrs_of_tombstones,
            values=not flags & _WITHOUT_VALUES,
            underlying_datatype=bool(flags & keeps_datatype),
            snappy=self.snappy,
            compress=controls.compress,
            delete_times=OpenFlag.INCLUDE_DELETE_TIMES in flags,
            expirations=controls.expirations,
            stream_id_defect=generation.stream_id_defect,
        )
        return Rules(
            view,
            generation,
            marker_2_2=controls.marker_2_2,
            marker_2_0=controls.sync_writes and bool(controls.consumer_name),
            out_of_order=controls.out_of_order,
            out_of_order_advances=controls.out_of_order_advances,
            history=controls.change_streams,
            flatbuffers=controls.flatbuffers,
        )

    def living(self, key: tuple[int, int | None]) -> Stream | None:
        stream = self.streams.get(key)
        return None if stream is None or stream.ended else stream


def _producer(talk: Conversation) -> Producer:
    for timer in talk.timers:
        if isinstance(timer, Producer):
            timer.heard()
            return timer
    generation = talk.bucket.generation
    if generation.hangs_up_on_misuse:
        raise Hangup
    closes = generation.hangs_up_on_malformed(opened=False)
    raise Refusal(Status.EINVAL, "The command can only be sent on a DCP connection", close=closes)


def open_(talk: Conversation, frame: Frame) -> Frame:
    flags = OpenFlag(int(frame.fields["flags"]))
    if talk.session.opened and talk.bucket.generation.hangs_up_on_misuse:
        raise Hangup
    if talk.session.opened:
        raise Refusal(Status.EINVAL, "The connection is already opened as a DCP connection")
    if talk.has(Feature.UNORDERED_EXECUTION):
        # Servers send this one without the datatype of JSON.
        context = "DCP on connections with unordered execution is not supported"
        raise Refusal(Status.NOT_SUPPORTED, value=explain(Status.NOT_SUPPORTED, context, talk.bucket.generation)[0])
    if flags & ~talk.bucket.generation.open_flags or not _sensible(flags):
        raise Refusal(Status.EINVAL)
    if OpenFlag.PRODUCER not in flags:
        raise Refusal(Status.NOT_SUPPORTED, "a consumer is not what this server can be")
    producer = Producer(
        talk, frame.key.decode(errors="replace"), flags, talk.has(Feature.COLLECTIONS), talk.has(Feature.SNAPPY)
    )
    talk.session.opened = True
    talk.timers.append(producer)
    talk.answered["dcp_noop"] = producer.noop_answered
    return answer(frame)


def _sensible(flags: OpenFlag) -> bool:
    """Whether the flags can stand together."""
    if flags & _WITHOUT_VALUES == _WITHOUT_VALUES:
        return False
    if OpenFlag.INCLUDE_DELETED_USER_XATTRS in flags and OpenFlag.INCLUDE_XATTRS not in flags:
        return False
    return OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL not in flags or OpenFlag.PRODUCER in flags


def control(talk: Conversation, frame: Frame) -> Frame:
    producer = _producer(talk)
    connection = Connection(
        collections=producer.collections,
        snappy=producer.snappy,
        deleted_user_xattrs=OpenFlag.INCLUDE_DELETED_USER_XATTRS in producer.flags,
        history=any(vbucket.history is not None for vbucket in talk.bucket.actives()),
        generation=talk.bucket.generation,
    )
    name, value = frame.key.decode(errors="replace"), frame.value.decode(errors="replace")
    status = set_control(producer.controls, name, value, connection)
    if status:
        raise Refusal(status)
    _set_window(talk, producer.controls.window)
    return answer(frame)


def _set_window(talk: Conversation, size: int) -> None:
    talk.out.window = size
    if not size:
        talk.out.outstanding = 0


def stream_request(talk: Conversation, frame: Frame) -> Frame:
    producer = _producer(talk)
    request = _request(frame)
    vbucket = talk.node.vbucket(frame.vbucket)
    sid = None if request.filter is None else request.filter.sid
    outcome = decide(
        request,
        producer.agreed(),
        vbucket,
        talk.bucket.manifest,
        streaming=producer.living((frame.vbucket, sid)) is not None,
        generation=talk.bucket.generation,
    )
    if isinstance(outcome, Refused):
        if outcome.status is Status.ROLLBACK:
            return answer(frame, outcome.status, fields={"rollback_seqno": outcome.rollback_seqno or 0})
        raise Refusal(outcome.status)
    assert vbucket is not None
    stream = Stream(vbucket, frame.opaque, outcome, producer.rules())
    producer.streams[stream.key] = stream
    talk.sources.append(stream)
    return answer(frame, value=FAILOVER_LOG.encode(vbucket.log))


def _request(frame: Frame) -> Request:
    try:
        chosen = frame.body()
    except RemoteProtocolError:
        chosen = None
    numbers = frame.fields
    return Request(
        StreamFlag(int(numbers["flags"])),
        int(numbers["start_seqno"]),
        int(numbers["end_seqno"]),
        int(numbers["vbuuid"]),
        int(numbers["snapshot_start"]),
        int(numbers["snapshot_end"]),
        chosen,
        bool(frame.value),
    )


def close_stream(talk: Conversation, frame: Frame) -> Frame:
    producer = _producer(talk)
    if (frame.stream_id is not None) != producer.controls.stream_ids:
        raise Refusal(Status.DCP_STREAM_ID_INVALID)
    stream = producer.living((frame.vbucket, frame.stream_id))
    if stream is None:
        others = any(number == frame.vbucket for number, _ in producer.streams)
        raise Refusal(Status.DCP_STREAM_ID_INVALID if others and producer.controls.stream_ids else Status.KEY_ENOENT)
    if producer.controls.end_on_close:
        stream.end(StreamEnd.CLOSED)
    else:
        stream.ended = True
    return answer(frame)


def get_failover_log(talk: Conversation, frame: Frame) -> Frame:
    if not talk.bucket.generation.failover_log_for_all:
        _producer(talk)
    return failover_log(talk, frame)


def failover_log(talk: Conversation, frame: Frame) -> Frame:
    vbucket = talk.node.vbucket(frame.vbucket)
    if vbucket is None:
        raise Refusal(Status.NOT_MY_VBUCKET)
    return answer(frame, value=FAILOVER_LOG.encode(vbucket.log))


def buffer_ack(talk: Conversation, frame: Frame) -> None:
    _producer(talk)
    talk.out.acknowledge(int(frame.fields["bytes"]))


def _disconnects(talk: Conversation, frame: Frame) -> None:
    """A message for another kind of endpoint."""
    _producer(talk)
    raise Hangup


HANDLERS: dict[str, Handler] = {
    "open": open_,
    "control": control,
    "stream_request": stream_request,
    "close_stream": close_stream,
    "get_failover_log": get_failover_log,
    "kv_get_failover_log": failover_log,
    "buffer_ack": buffer_ack,
    "add_stream": _disconnects,
    "dcp_noop": _disconnects,
}
