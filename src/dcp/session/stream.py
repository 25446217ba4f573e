"""One stream of a connection: how far it has come, as a position that can be resumed from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dcp.position import StreamPosition
from dcp.progress import Progress
from dcp.wire.dcp import OsoSnapshot, SystemEvent
from dcp.wire.frame import Frame

ENDLESS = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a stream was at a moment: its progress, and the last row since."""

    progress: Progress
    last: int

    @property
    def position(self) -> StreamPosition:
        """What a consumer that has everything up to here may resume from."""
        progress = self.progress
        if self.last > (progress.disorder or progress.position.seqno):
            progress = progress.seen(self.last)
        return progress.position


@dataclass(eq=False)
class Stream:
    """A stream that was asked for under an opaque of its own, and what came of it."""

    opaque: int
    progress: Progress
    end: int = ENDLESS
    stream_id: int | None = None
    accepted: bool = False
    ended: bool = False
    # The last row since `progress`.
    last: int = 0

    @property
    def vbucket(self) -> int:
        return self.progress.position.vbucket

    @property
    def mark(self) -> Mark:
        return Mark(self.progress, self.last)

    @property
    def position(self) -> StreamPosition:
        return self.mark.position

    def rows(self, last: int) -> None:
        """Rows up to this seqno came."""
        self.last = max(self.last, last)

    def control(self, frame: Frame) -> None:
        """A message of the stream that is no row."""
        step = _STEPS.get(frame.name)
        if step is None:
            return
        if self.last > (self.progress.disorder or self.progress.position.seqno):
            self.progress = self.progress.seen(self.last)
        self.progress = step(self.progress, frame)
        self.last = max(self.last, self.progress.position.seqno)


def _marker(progress: Progress, frame: Frame) -> Progress:
    fields = frame.fields
    return progress.marker(
        int(fields["snapshot_start"]), int(fields["snapshot_end"]), int(fields.get("purge_seqno", 0))
    )


def _advanced(progress: Progress, frame: Frame) -> Progress:
    return progress.seen(int(frame.fields["seqno"]))


def _disorder(progress: Progress, frame: Frame) -> Progress:
    begins = bool(int(frame.fields["flags"]) & OsoSnapshot.START)
    return progress.disorder_begins() if begins else progress.disorder_ends()


def _system_event(progress: Progress, frame: Frame) -> Progress:
    uid = frame.fields.get("manifest_uid")
    if uid is None and frame.fields["event_id"] != SystemEvent.COLLECTION_FLUSH:
        uid = frame.body().get("manifest_uid") if frame.fields["version"] == 2 else None
    progress = progress.seen(int(frame.fields["seqno"]))
    return progress if uid is None else progress.manifest(int(uid))


_STEPS: dict[str, Callable[[Progress, Frame], Progress]] = {
    "snapshot_marker": _marker,
    "seqno_advanced": _advanced,
    "oso_snapshot": _disorder,
    "system_event": _system_event,
}
