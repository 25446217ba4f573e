"""A conversation in either draft of UPR: streams with explicit starts and ends of snapshots.

What streams promise there is in docs/session.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from dcp.errors import RemoteProtocolError, ServerError
from dcp.json_reader import MAX_U64
from dcp.position import NO_LOG, UNKNOWN_END, FailoverLog, Progress
from dcp.session.events import Accepted, Ended, Event, Refused, RolledBack
from dcp.session.handshake import CHECK_DIALECT
from dcp.session.legacy.legacy_session import LegacySession
from dcp.session.states import UPR, follow, knows
from dcp.session.stream import Stream, histories
from dcp.wire.dcp import StreamEnd
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status
from dcp.wire.upr2 import StreamEnd as EndOfDraft2

_LOG_REQUESTS = {"upr1": "failover_log_request", "upr2": "get_failover_log"}
# What the first draft has messages of its own for.
_EVENTS = {
    "stream_ok": "accepted",
    "rollback": "rolled_back",
    "not_my_vbucket": "refused",
    "stream_end_ok": "stream_end",
    "stream_end_state_changed": "stream_end",
}
# A history that the node does not know is one to go back from.
_ANSWERS = {Status.SUCCESS: "accepted", Status.ROLLBACK: "rolled_back", Status.KEY_ENOENT: "rolled_back"}


@dataclass(eq=False)
class UprStream(Stream):
    """A stream whose snapshots end where nobody has told before.

    No request can say that it goes on inside of a snapshot. What breaks there is asked for from the snapshot's
    start on: the rows come again, and the position does not move before they are behind it.
    """

    log: FailoverLog = NO_LOG

    def __post_init__(self) -> None:
        self.last = self.start

    @property
    def start(self) -> int:
        """From behind which seqno on the stream is asked for."""
        here = self.progress.position
        return here.seqno if here.complete else here.snapshot_start

    @property
    def lost(self) -> int | None:
        """Up to where the node has what came of a snapshot that broke, if that is not all of it."""
        here = self.progress.position
        end = self.log.end_of(here.vbuuid, MAX_U64) or 0
        return end if not here.complete and end < here.seqno else None

    def happens(self, event: str) -> None:
        self.state = follow(UPR, self.state, event, f"stream of vbucket {self.vbucket}")

    def snapshot_starts(self) -> None:
        self.progress = self.progress.marker(self.last, UNKNOWN_END)

    def snapshot_ends(self) -> None:
        here = self.position
        whole = self.last if self.last == here.seqno else UNKNOWN_END
        self.progress = Progress(replace(here, snapshot_start=self.last, snapshot_end=whole), first=False)

    def request(self) -> dict[str, int]:
        """What is asked for. `high_seqno` is where the history of the position began."""
        here = self.progress.position
        vbuuid = here.vbuuid if self.start else 0
        began = next((branch.seqno for branch in here.failover_log if branch.vbuuid == vbuuid), 0)
        return {"start_seqno": self.start, "end_seqno": self.end, "vbuuid": vbuuid, "high_seqno": began}


class UprSession(LegacySession):
    """One connection to one node. The name of the connection is the group id of its requests."""

    def _open(self, progress: Progress, end: int) -> UprStream:
        """Ask for the histories of a vbucket, and then for a stream from a position on."""
        stream = UprStream(self._opaque(), Progress(progress.position), end)
        self._add(stream)
        self._say(Frame(_LOG_REQUESTS[self.dialect.name], Magic.REQUEST, stream.opaque, vbucket=stream.vbucket))
        return stream

    def _message(self, frame: Frame, before: int) -> Iterable[Event]:
        stream = self.streams.get(frame.opaque)
        if not isinstance(stream, UprStream):
            return self._answer(frame)
        if self.dialect.name == "upr1" or not frame.kind.answers:
            self._stream_of(frame.opaque, frame.vbucket, None)
        stream.rows(before)
        event = _event(frame)
        if not knows(UPR, event):
            raise RemoteProtocolError(f"{self.dialect.title}: no answer is {event}; {CHECK_DIALECT}")
        stream.happens(event)
        self._touched.add(stream)
        step = _STEPS.get(event)
        return () if step is None else step(self, stream, frame)

    # What a message does, once it may come.

    def _histories(self, stream: UprStream, frame: Frame) -> Iterable[Event]:
        """Those that the node has before it accepts are those of the rows, or older: never too new."""
        stream.log = histories(stream.vbucket, frame.value)
        if (seqno := stream.lost) is not None:
            stream.happens("rolled_back")
            self._is_over(stream)
            return (RolledBack(stream, seqno),)
        fields = stream.request() | ({"flags": 0} if self.dialect.name == "upr2" else {})
        group = self._wishes.name.encode()
        vbucket = stream.vbucket
        self._say(Frame("stream_request", Magic.REQUEST, stream.opaque, vbucket=vbucket, fields=fields, key=group))
        return ()

    def _accepted(self, stream: UprStream, frame: Frame) -> Iterable[Event]:
        stream.progress = stream.progress.accepted(stream.log)
        return (Accepted(stream),)

    def _rolled_back(self, stream: UprStream, frame: Frame) -> Iterable[Event]:
        self._is_over(stream)
        seqno = frame.fields.get("rollback_seqno", frame.fields.get("rollback_seqno_in_extras", 0))
        return (RolledBack(stream, int(seqno)),)

    def _refused(self, stream: UprStream, frame: Frame) -> Iterable[Event]:
        self._is_over(stream)
        status = frame.status or Status.NOT_MY_VBUCKET
        return (Refused(stream, status, frame.value),)

    def _snapshot_starts(self, stream: UprStream, frame: Frame) -> Iterable[Event]:
        stream.snapshot_starts()
        return ()

    def _snapshot_ends(self, stream: UprStream, frame: Frame) -> Iterable[Event]:
        stream.snapshot_ends()
        return ()

    def _flushed(self, stream: UprStream, frame: Frame) -> Iterable[Event]:
        raise ServerError(f"vbucket {stream.vbucket}: it was flushed: no position holds any more, begin again")

    def _stream_ends(self, stream: UprStream, frame: Frame) -> Iterable[Event]:
        self._is_over(stream)
        changed = frame.name == "stream_end_state_changed" or frame.fields.get("reason", 0) != EndOfDraft2.OK
        return (Ended(stream, int(StreamEnd.STATE_CHANGED if changed else StreamEnd.OK)),)


_STEPS: dict[str, Callable[[UprSession, UprStream, Frame], Iterable[Event]]] = {
    "failover_log": UprSession._histories,
    "accepted": UprSession._accepted,
    "rolled_back": UprSession._rolled_back,
    "refused": UprSession._refused,
    "snapshot_start": UprSession._snapshot_starts,
    "snapshot_end": UprSession._snapshot_ends,
    "stream_flush": UprSession._flushed,
    "stream_end": UprSession._stream_ends,
}


def _event(frame: Frame) -> str:
    """What a message is called in the table of states."""
    if frame.name == _LOG_REQUESTS["upr2"]:
        return "refused" if frame.status else "failover_log"
    if frame.name == "stream_request":
        return _ANSWERS.get(Status(frame.status), "refused") if frame.status in list(Status) else "refused"
    return _EVENTS.get(frame.name, frame.name)
