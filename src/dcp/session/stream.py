"""One stream of a connection, with the position that it has reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dcp.errors import RemoteProtocolError, ServerError
from dcp.position import FailoverLog, Progress, StreamPosition
from dcp.session.states import IN_ORDER, OVER, REQUESTED, STREAM, events, follow
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import ENDLESS, OsoSnapshot, StreamEnd
from dcp.wire.frame import Frame

# Servers keep 25 entries of 16 bytes; the oldest documents of the protocol mention up to 1024.
_MAX_FAILOVER_LOG = 1024 * 16
# Version of a system event whose value is a FlatBuffers table.
_FLATBUFFERS = 2
# Snapshots whose ends a stream keeps before it computes its progress from them.
_MOST_ENDS = 100


def decode_failover_log(vbucket: int, value: bytes) -> FailoverLog:
    """Return the failover log in the body of an answer. Raises RemoteProtocolError if it is too long."""
    if len(value) > _MAX_FAILOVER_LOG:
        raise RemoteProtocolError(
            f"vbucket {vbucket}: expected a failover log of {_MAX_FAILOVER_LOG} bytes at most, found {len(value)}"
        )
    return FailoverLog.of(FAILOVER_LOG.decode(value, {}))


def flushed(vbucket: int) -> ServerError:
    """Return the error for a vbucket that was flushed."""
    return ServerError(f"vbucket {vbucket}: it was flushed: no position is valid any more, start over")


class PassedWindows(NamedTuple):
    """Snapshots that arrived whole, by their ends, and the window of the one after them: see `Progress.passed`."""

    ends: tuple[int, ...]
    start: int
    end: int


class LazyPosition(NamedTuple):
    """Position of a stream at one moment, computed only when it is read.

    A batch has one for each of its vbuckets, but most of them are replaced by the next batch's before anyone asks.

    progress: progress up to the last control message.
    last_seqno: seqno of the last row since then.
    passed: snapshots that arrived whole since then, if there are any.
    """

    progress: Progress
    last_seqno: int
    passed: PassedWindows | None = None

    @property
    def position(self) -> StreamPosition:
        """Position to resume from once everything up to here is processed."""
        return _with_rows(_past(self.progress, self.passed), self.last_seqno).position


@dataclass(eq=False)
class ConsumerStream:
    """A stream that the client requested, and how far it has come.

    opaque: identifies the stream in all messages of its connection.
    vbucket: number of the vbucket.
    key: vbucket and stream id: a connection has one open stream for each at most.
    progress: progress up to the last control message.
    end: seqno at which the node ends the stream.
    stream_id: id of the stream where several share a vbucket, else None.
    state: a state of its table in `states.py`.
    last_seqno: highest seqno of the rows that arrived.

    Messages that the table of states does not allow, or that contradict the announced snapshot, raise
    RemoteProtocolError.
    """

    opaque: int
    progress: Progress
    end: int = ENDLESS
    stream_id: int | None = None
    # True if the node was asked to resume although deletions were purged. Otherwise it rolls back those that miss some.
    ignores_purged: bool = False
    state: str = REQUESTED
    last_seqno: int = 0
    # The decoder reports the last seqno before every control message, also if no row arrived in between.
    _reported: int = 0
    _resumed_from: int = 0
    # Snapshots that arrived whole since `progress`.
    _passed: PassedWindows | None = None
    vbucket: int = field(init=False)
    key: tuple[int, int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.last_seqno = self._resumed_from = self.progress.position.seqno
        self.vbucket = self.progress.position.vbucket
        self.key = self.vbucket, self.stream_id

    @property
    def ended(self) -> bool:
        """True once the stream ended, was refused or was rolled back."""
        return self.state == OVER

    @property
    def lazy_position(self) -> LazyPosition:
        """Position now, to be computed later."""
        return LazyPosition(self.progress, self.last_seqno, self._passed)

    @property
    def position(self) -> StreamPosition:
        """Position now."""
        return self.lazy_position.position

    def transition(self, event: str) -> None:
        """Enter the state that follows an event. Raises RemoteProtocolError if the event is not allowed."""
        # The text that names the stream is built only if it is needed.
        self.state = STREAM[self.state].get(event) or follow(
            STREAM, self.state, event, f"stream of vbucket {self.vbucket}"
        )

    def accept(self, log: FailoverLog) -> None:
        """Record that the node accepted the request, with its failover log."""
        self.transition("accepted")
        self.progress = self.progress.accepted(log)

    def rows_arrived(self, last_seqno: int) -> None:
        """Record that rows arrived, the last of them with this seqno. Does nothing if it is that of the last call."""
        if last_seqno == self._reported:
            return
        self._reported = last_seqno
        # Called for each vbucket of each batch: rows and markers leave a stream in order.
        if self.state != IN_ORDER:
            self.transition("row")
            if self.progress.disorder is not None:
                self.last_seqno = max(self.last_seqno, last_seqno)
                return
        highest = self.progress.end if self._passed is None else self._passed.end
        # The decoder holds seqnos inside a batch against each other; here the first and last meet the marker.
        if not self.last_seqno < last_seqno <= highest:
            raise RemoteProtocolError(
                f"vbucket {self.vbucket}: expected a row from seqno {self.last_seqno + 1} to {highest}, "
                f"found {last_seqno}"
            )
        self.last_seqno = last_seqno

    def snapshots_passed(self, ends: Sequence[int], start: int, end: int) -> None:
        """Record that snapshots arrived whole, and that the next one begins: see `Progress.passed`."""
        self.rows_arrived(ends[0])
        if self.state != IN_ORDER:
            self.transition("snapshot_marker")
        together = (*ends,) if self._passed is None else (*self._passed.ends, *ends)
        self._passed = PassedWindows(together, start, end)
        self._reported = self.last_seqno = ends[-1]
        if len(together) > _MOST_ENDS:
            self._settle_passed()

    def settle(self, last_seqno: int) -> None:
        """Bring `progress` up to the last row, of this seqno. Necessary before a control message is applied."""
        self._settle_passed()
        self.rows_arrived(last_seqno)
        self.progress = _with_rows(self.progress, self.last_seqno)

    def _settle_passed(self) -> None:
        """Bring `progress` up to the last snapshot marker."""
        self.progress, self._passed = _past(self.progress, self._passed), None

    def misses_snapshot_end(self, frame: Frame) -> bool:
        """Return whether a message shows that the node skipped the end of the announced snapshot.

        `settle` is called before.
        """
        progress, seqno = self.progress, self.progress.position.seqno
        if frame.name == "stream_end" and frame.fields["reason"] == StreamEnd.OK:
            return progress.disorder is not None or seqno < min(progress.end, self.end)
        begins = frame.name == "snapshot_marker" and int(frame.fields["snapshot_start"]) > progress.end
        return begins and not progress.first and seqno < progress.end

    def missed_purge(self, frame: Frame) -> int:
        """Return the purge seqno of a marker if it is above the position that the stream resumed from, else 0.

        Deletions between the two were purged, so the stream cannot deliver them. A purge seqno that the position
        already knows of is no news: the consumer was current when it happened. Nothing is missed from the beginning,
        even if an out-of-order snapshot came before the first marker, nor by a stream that the node checked.
        """
        if not self.ignores_purged or not self.progress.first:
            return 0
        purge_seqno = int(frame.fields.get("purge_seqno", 0))
        missed = 0 < self._resumed_from < purge_seqno != self.position.purge_seqno
        return purge_seqno if missed else 0

    def control_arrived(self, frame: Frame) -> None:
        """Advance by a message of the stream that is not a row."""
        event = _event(frame)
        self.transition(event)
        if (step := _STEPS.get(event)) is not None:
            self.progress = step(_with_rows(self.progress, self.last_seqno), frame)
            self.last_seqno = max(self.last_seqno, self.progress.position.seqno)


def concerns_stream(frame: Frame) -> bool:
    """Return whether a message of the node has a place in the table of states."""
    return frame.name in _CONCERNS


def _past(progress: Progress, passed: PassedWindows | None) -> Progress:
    return progress if passed is None else progress.passed(*passed)


def _with_rows(progress: Progress, last_seqno: int) -> Progress:
    known = progress.position.seqno if progress.disorder is None else progress.disorder
    return progress.seen(last_seqno) if last_seqno > known else progress


def _event(frame: Frame) -> str:
    """Return the name of a message in the table of states."""
    if frame.name != "oso_snapshot":
        return frame.name
    return "oso_begins" if int(frame.fields["flags"]) & OsoSnapshot.START else "oso_ends"


def _marker(progress: Progress, frame: Frame) -> Progress:
    fields = frame.fields
    return progress.marker(
        int(fields["snapshot_start"]), int(fields["snapshot_end"]), int(fields.get("purge_seqno", 0))
    )


def _advanced(progress: Progress, frame: Frame) -> Progress:
    return progress.seen(int(frame.fields["seqno"]))


def _system_event(progress: Progress, frame: Frame) -> Progress:
    event = frame.body() if frame.fields["version"] == _FLATBUFFERS else frame.fields
    progress = progress.seen(int(frame.fields["seqno"]))
    return progress.manifest(int(event["manifest_uid"])) if "manifest_uid" in event else progress


_CONCERNS = events(STREAM) | {"oso_snapshot"}
_STEPS: dict[str, Callable[[Progress, Frame], Progress]] = {
    "snapshot_marker": _marker,
    "seqno_advanced": _advanced,
    "oso_begins": lambda progress, _: progress.disorder_begins(),
    "oso_ends": lambda progress, _: progress.disorder_ends(),
    "system_event": _system_event,
}
