"""One stream of a connection: how far it has come, as a position that can be resumed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from dcp.errors import RemoteProtocolError
from dcp.position import FailoverLog, Progress, StreamPosition
from dcp.session.manifest import FLATBUFFERS
from dcp.session.states import OVER, REQUESTED, STREAM, follow, knows
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import ENDLESS, OsoSnapshot, StreamEnd
from dcp.wire.frame import Frame

# Servers keep 25 histories; the oldest documents speak of up to 1024.
_LONGEST_LOG = 1024 * 16


def histories(vbucket: int, value: bytes) -> FailoverLog:
    """A failover log as a node tells it."""
    if len(value) > _LONGEST_LOG:
        raise RemoteProtocolError(
            f"vbucket {vbucket}: expected a failover log of {_LONGEST_LOG} bytes at most, found {len(value)}"
        )
    return FailoverLog.of(FAILOVER_LOG.decode(value, {}))


class Mark(NamedTuple):
    """How far a stream was at a moment: its progress, and the last row since."""

    progress: Progress
    last: int

    @property
    def position(self) -> StreamPosition:
        """What a consumer that has everything up to here may resume from."""
        return _with_rows(self.progress, self.last).position


@dataclass(eq=False)
class Stream:
    """A stream that was asked for under an opaque of its own, and what came of it.

    Everything that says otherwise than the table of states, or than the snapshot announced, is a
    RemoteProtocolError.
    """

    opaque: int
    progress: Progress
    end: int = ENDLESS
    stream_id: int | None = None
    state: str = REQUESTED
    # The last row since `progress`.
    last: int = 0
    # What the decoder said last; it says so again before every message.
    _told: int = 0

    def __post_init__(self) -> None:
        self.last = self.progress.position.seqno

    @property
    def vbucket(self) -> int:
        return self.progress.position.vbucket

    @cached_property
    def key(self) -> tuple[int, int | None]:
        """What only one stream of a connection has at a time."""
        return self.vbucket, self.stream_id

    @property
    def ended(self) -> bool:
        return self.state == OVER

    @property
    def mark(self) -> Mark:
        return Mark(self.progress, self.last)

    @property
    def position(self) -> StreamPosition:
        return self.mark.position

    def happens(self, event: str) -> None:
        # Each batch asks for each of its vbuckets: who it is about is spelt only where it is told.
        self.state = STREAM[self.state].get(event) or follow(
            STREAM, self.state, event, f"stream of vbucket {self.vbucket}"
        )

    def accept(self, log: FailoverLog) -> None:
        self.happens("accepted")
        self.progress = self.progress.accepted(log)

    def rows(self, last: int) -> None:
        """Rows up to this seqno came; none, if it is the one of the last time."""
        if last == self._told:
            return
        self.happens("row")
        most = self.progress.end
        if self.progress.disorder is None and not self.last < last <= most:
            raise RemoteProtocolError(
                f"vbucket {self.vbucket}: expected a row from seqno {self.last + 1} to {most}, found {last}"
            )
        self._told, self.last = last, max(self.last, last)

    def lacks(self, frame: Frame) -> bool:
        """Whether a message comes before the end of the snapshot that was announced."""
        progress, seqno = self.progress, self.position.seqno
        if frame.name == "stream_end" and frame.fields["reason"] == StreamEnd.OK:
            return progress.disorder is not None or seqno < min(progress.end, self.end)
        begins = frame.name == "snapshot_marker" and int(frame.fields["snapshot_start"]) > progress.end
        return begins and not progress.first and seqno < progress.end

    def purged(self, frame: Frame) -> int:
        """Up to where deletions are forgotten that the stream would have had to send; 0 if it misses none."""
        here, told = self.position, int(frame.fields.get("purge_seqno", 0))
        return told if self.progress.first and 0 < here.seqno < told != here.purge_seqno else 0

    def control(self, frame: Frame) -> None:
        """A message of the stream that is no row."""
        event = _event(frame)
        if not knows(STREAM, event):
            return
        self.happens(event)
        if (step := _STEPS.get(event)) is not None:
            self.progress = step(_with_rows(self.progress, self.last), frame)
            self.last = max(self.last, self.progress.position.seqno)


def _with_rows(progress: Progress, last: int) -> Progress:
    known = progress.position.seqno if progress.disorder is None else progress.disorder
    return progress.seen(last) if last > known else progress


def _event(frame: Frame) -> str:
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
    said = frame.body() if frame.fields["version"] == FLATBUFFERS else frame.fields
    progress = progress.seen(int(frame.fields["seqno"]))
    return progress.manifest(int(said["manifest_uid"])) if "manifest_uid" in said else progress


_STEPS: dict[str, Callable[[Progress, Frame], Progress]] = {
    "snapshot_marker": _marker,
    "seqno_advanced": _advanced,
    "oso_begins": lambda progress, _: progress.disorder_begins(),
    "oso_ends": lambda progress, _: progress.disorder_ends(),
    "system_event": _system_event,
}
