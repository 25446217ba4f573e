"""One stream of a connection, with the position that it has reached."""

from __future__ import annotations

from collections.abc import Callable

from dcp._codec import MovingStream
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


class ConsumerStream(MovingStream):
    """A stream that the client requested, and how far it has come.

    opaque: identifies the stream in all messages of its connection.
    key: vbucket and stream id: a connection has one open stream for each at most.
    end: seqno at which the node ends the stream.
    stream_id: id of the stream where several share a vbucket, else None.
    ignores_purged: True if the node was asked to resume although deletions were purged. Otherwise it rolls back those
        that miss some.
    state: a state of its table in `states.py`.

    Messages that the table of states does not allow, or that contradict the announced snapshot, raise
    RemoteProtocolError.
    """

    def __init__(
        self,
        opaque: int,
        progress: Progress,
        end: int = ENDLESS,
        stream_id: int | None = None,
        ignores_purged: bool = False,
    ) -> None:
        super().__init__(progress, stream_id, REQUESTED)
        self.opaque, self.end, self.stream_id, self.ignores_purged = opaque, end, stream_id, ignores_purged
        self._resumed_from = progress.position.seqno

    @property
    def ended(self) -> bool:
        """True once the stream ended, was refused or was rolled back."""
        return self.state == OVER

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
        if last_seqno == self.reported:
            return
        self.reported = last_seqno
        if self.state != IN_ORDER:
            self.transition("row")
            if self.progress.disorder is not None:
                self.last_seqno = max(self.last_seqno, last_seqno)
                return
        # The decoder holds seqnos inside a batch against each other; here the first and last meet the marker.
        if not self.last_seqno < last_seqno <= self.highest:
            raise RemoteProtocolError(
                f"vbucket {self.vbucket}: expected a row from seqno {self.last_seqno + 1} to {self.highest}, "
                f"found {last_seqno}"
            )
        self.last_seqno = last_seqno

    def snapshots_passed(self, ends: list[int], start: int, end: int) -> None:
        """Record that snapshots arrived whole, and that the next one begins: see `Progress.passed`."""
        self.rows_arrived(ends[0])
        if self.state != IN_ORDER:
            self.transition("snapshot_marker")
        self.pass_snapshots(ends, start, end)

    def settle(self, last_seqno: int) -> None:
        """Bring `progress` up to the last row, of this seqno. Necessary before a control message is applied."""
        self.settle_passed()
        self.rows_arrived(last_seqno)
        moved = self.progress.with_rows(self.last_seqno)
        if moved is not self.progress:
            self.progress = moved

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
        """Advance by a message of the stream that is not a row. `settle` is called before."""
        event = _event(frame)
        self.transition(event)
        if (step := _STEPS.get(event)) is not None:
            self.progress = step(self.progress, frame)
            self.last_seqno = max(self.last_seqno, self.progress.position.seqno)


def concerns_stream(frame: Frame) -> bool:
    """Return whether a message of the node has a place in the table of states."""
    return frame.name in _CONCERNS


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
