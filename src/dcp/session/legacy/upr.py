"""Session in either draft of UPR: snapshots have explicit starts and ends.

docs/session.md lists what streams guarantee there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from dcp.errors import RemoteProtocolError
from dcp.json_reader import MAX_U64
from dcp.position import NO_LOG, UNKNOWN_END, Progress
from dcp.session.events import Event, StreamAccepted, StreamEnded, StreamRefused, StreamRolledBack
from dcp.session.handshake import CHECK_DIALECT
from dcp.session.legacy.legacy_session import LegacySession
from dcp.session.states import UPR, events, follow
from dcp.session.stream import ConsumerStream, decode_failover_log, flushed
from dcp.wire.dcp import StreamEnd
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from dcp.wire.upr2 import UprStreamEnd

_LOG_REQUESTS = {"upr1": "failover_log_request", "upr2": "get_failover_log"}
# Events of the table of states for which the first draft has messages of its own.
_EVENTS = {
    "stream_ok": "accepted",
    "rollback": "rolled_back",
    "not_my_vbucket": "refused",
    "stream_end_ok": "stream_end",
    "stream_end_state_changed": "stream_end",
}
# A node that does not know the history of a position (KEY_ENOENT) means a rollback, too.
_KNOWN_EVENTS = events(UPR)
_ANSWERS = {Status.SUCCESS: "accepted", Status.ROLLBACK: "rolled_back", Status.KEY_ENOENT: "rolled_back"}


class UprConsumerStream(ConsumerStream):
    """A stream whose snapshots have no announced end.

    A UPR request cannot resume inside a snapshot. A stream that broke there is requested from the snapshot's start:
    its rows arrive again, and the position does not move before the stream has passed it.

    log: failover log that the node sent before the stream was requested.
    """

    def __init__(self, opaque: int, progress: Progress, end: int) -> None:
        super().__init__(opaque, progress, end)
        self.log = NO_LOG
        self.last_seqno = self.start

    @property
    def start(self) -> int:
        """Seqno after which the stream is requested."""
        here = self.progress.position
        return here.seqno if here.complete else here.snapshot_start

    @property
    def rollback_seqno(self) -> int | None:
        """Seqno up to which the node has the consumer's half-received snapshot, if it has less; else None.

        The request itself would name only the snapshot's start, so the node could not notice the loss.
        """
        here = self.progress.position
        end = self.log.end_of(here.vbuuid, MAX_U64) or 0
        return end if not here.complete and end < here.seqno else None

    def transition(self, event: str) -> None:
        """Enter the state that follows an event. Raises RemoteProtocolError if the event is not allowed."""
        self.state = follow(UPR, self.state, event, f"stream of vbucket {self.vbucket}")

    def snapshot_starts(self) -> None:
        """Begin a snapshot with an unknown end."""
        self.progress = self.progress.marker(self.last_seqno, UNKNOWN_END)

    def snapshot_ends(self) -> None:
        """End the snapshot, if the stream has passed the position: else its rows are still being repeated."""
        here = self.position
        end = self.last_seqno if self.last_seqno == here.seqno else UNKNOWN_END
        self.progress = Progress(replace(here, snapshot_start=self.last_seqno, snapshot_end=end), first=False)

    def request(self) -> dict[str, int]:
        """Return the fields of the stream request. `high_seqno` is where the position's history began."""
        here = self.progress.position
        vbuuid = here.vbuuid if self.start else 0
        began = next((branch.seqno for branch in here.failover_log if branch.vbuuid == vbuuid), 0)
        return {"start_seqno": self.start, "end_seqno": self.end, "vbuuid": vbuuid, "high_seqno": began}


class UprSession(LegacySession):
    """One connection to one node. The name of the connection is the group id of its stream requests."""

    def _open(self, progress: Progress, end: int) -> UprConsumerStream:
        """Request the failover log of a vbucket; its answer triggers the stream request."""
        stream = UprConsumerStream(self._next_opaque(), Progress(progress.position), end)
        self._add(stream)
        self._send(Frame(_LOG_REQUESTS[self.dialect.name], Magic.REQUEST, stream.opaque, vbucket=stream.vbucket))
        return stream

    def _message(self, frame: Frame, last_seqno: int) -> Iterable[Event]:
        stream = self.streams.get(frame.opaque)
        if not isinstance(stream, UprConsumerStream):
            return self._answer(frame)
        if self.dialect.name == "upr1" or not frame.kind.answers:
            self._stream_of(frame.opaque, frame.vbucket, None)
        stream.rows_arrived(last_seqno)
        event = _event(frame)
        if event not in _KNOWN_EVENTS:
            raise RemoteProtocolError(f"{self.dialect.title}: no answer is {event}; {CHECK_DIALECT}")
        stream.transition(event)
        self._moved.add(stream)
        step = _STEPS.get(event)
        return () if step is None else step(self, stream, frame)

    # Effects of messages that the table of states allows.

    def _failover_log(self, stream: UprConsumerStream, frame: Frame) -> Iterable[Event]:
        """Request the stream, or roll back where the log shows a loss that the request could not.

        The log is from before the request was accepted, so it is the log of the rows or an older one, never a newer.
        """
        stream.log = decode_failover_log(stream.vbucket, frame.value)
        if (seqno := stream.rollback_seqno) is not None:
            stream.transition("rolled_back")
            self._remove_stream(stream)
            return (StreamRolledBack(stream, seqno),)
        fields = stream.request() | ({"flags": 0} if self.dialect.name == "upr2" else {})
        group = self._settings.name.encode()
        vbucket = stream.vbucket
        self._send(Frame("stream_request", Magic.REQUEST, stream.opaque, vbucket=vbucket, fields=fields, key=group))
        return ()

    def _accepted(self, stream: UprConsumerStream, frame: Frame) -> Iterable[Event]:
        stream.progress = stream.progress.accepted(stream.log)
        return (StreamAccepted(stream),)

    def _rolled_back(self, stream: UprConsumerStream, frame: Frame) -> Iterable[Event]:
        self._remove_stream(stream)
        seqno = frame.fields.get("rollback_seqno", frame.fields.get("rollback_seqno_in_extras", 0))
        return (StreamRolledBack(stream, int(seqno)),)

    def _refused(self, stream: UprConsumerStream, frame: Frame) -> Iterable[Event]:
        self._remove_stream(stream)
        status = frame.status or Status.NOT_MY_VBUCKET
        return (StreamRefused(stream, status, frame.value),)

    def _snapshot_starts(self, stream: UprConsumerStream, frame: Frame) -> Iterable[Event]:
        stream.snapshot_starts()
        return ()

    def _snapshot_ends(self, stream: UprConsumerStream, frame: Frame) -> Iterable[Event]:
        stream.snapshot_ends()
        return ()

    def _flushed(self, stream: UprConsumerStream, frame: Frame) -> Iterable[Event]:
        raise flushed(stream.vbucket)

    def _stream_ends(self, stream: UprConsumerStream, frame: Frame) -> Iterable[Event]:
        self._remove_stream(stream)
        changed = frame.name == "stream_end_state_changed" or frame.fields.get("reason", 0) != UprStreamEnd.OK
        return (StreamEnded(stream, int(StreamEnd.STATE_CHANGED if changed else StreamEnd.OK)),)


_STEPS: dict[str, Callable[[UprSession, UprConsumerStream, Frame], Iterable[Event]]] = {
    "failover_log": UprSession._failover_log,
    "accepted": UprSession._accepted,
    "rolled_back": UprSession._rolled_back,
    "refused": UprSession._refused,
    "snapshot_start": UprSession._snapshot_starts,
    "snapshot_end": UprSession._snapshot_ends,
    "stream_flush": UprSession._flushed,
    "stream_end": UprSession._stream_ends,
}


def _event(frame: Frame) -> str:
    """Return the name of a message in the table of states."""
    if frame.name == _LOG_REQUESTS["upr2"]:
        return "refused" if frame.status else "failover_log"
    if frame.name == "stream_request":
        return _ANSWERS.get(Status(frame.status), "refused") if frame.status in list(Status) else "refused"
    return _EVENTS.get(frame.name, frame.name)
