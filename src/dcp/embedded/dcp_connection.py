"""A connection that was opened for DCP: what was agreed on it, its streams, its noops."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcp.embedded.connection import ServerConnection
from dcp.embedded.controls import Controls
from dcp.embedded.stream import Rules, ServerStream
from dcp.embedded.stream_request import Agreed
from dcp.embedded.view import View
from dcp.wire.dcp import OpenFlag
from dcp.wire.frame import Frame
from dcp.wire.layout import Magic

WITHOUT_VALUES = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
# Where the opaques of noops begin; byte-swapped, as servers send them.
_FIRST_NOOP = 10_000_001
# A consumer that says nothing at all for so long is gone.
IDLE_TIMEOUT = 360.0


@dataclass(eq=False)
class DcpConnection:
    """A connection that was opened for DCP."""

    connection: ServerConnection
    name: str
    flags: OpenFlag
    # Latched as it opened.
    collections: bool
    snappy: bool
    controls: Controls = field(default_factory=Controls)
    streams: dict[tuple[int, int | None], ServerStream] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._last_noop = self.connection.now
        self._noops = 0
        self._unanswered: int | None = None

    # Noops and dead connections.

    def due(self) -> float | None:
        if not self.controls.noop:
            return None
        idle = self.connection.heard + IDLE_TIMEOUT
        return idle if self._unanswered is not None else min(idle, self._last_noop + self.controls.noop_interval)

    def tick(self, now: float) -> None:
        if not self.controls.noop:
            return
        if now >= self.connection.heard + IDLE_TIMEOUT:
            self.connection.closing = True
        elif self._unanswered is None and now >= self._last_noop + self.controls.noop_interval:
            number = (_FIRST_NOOP + self._noops) & 0xFFFFFFFF
            self._unanswered = int.from_bytes(number.to_bytes(4, "little"), "big")
            self._noops += 1
            self._last_noop = now
            self.connection.say(Frame("dcp_noop", Magic.REQUEST, self._unanswered))

    def noop_answered(self, frame: Frame) -> None:
        if frame.opaque != self._unanswered:
            self.connection.closing = True
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
        flags, controls, release = self.flags, self.controls, self.connection.bucket.release
        keeps_datatype = OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
        if release.no_value_keeps_datatype:
            keeps_datatype |= OpenFlag.NO_VALUE
        view = View(
            collections=self.collections,
            xattrs=OpenFlag.INCLUDE_XATTRS in flags,
            deleted_user_xattrs=OpenFlag.INCLUDE_DELETED_USER_XATTRS in flags or release.all_xattrs_of_tombstones,
            values=not flags & WITHOUT_VALUES,
            underlying_datatype=bool(flags & keeps_datatype),
            snappy=self.snappy,
            compress=controls.compress,
            delete_times=OpenFlag.INCLUDE_DELETE_TIMES in flags,
            expirations=controls.expirations,
            stream_id_defect=release.stream_id_defect,
        )
        return Rules(
            view,
            release,
            marker_2_2=controls.marker_2_2,
            marker_2_0=controls.sync_writes and bool(controls.consumer_name),
            out_of_order=controls.out_of_order,
            out_of_order_advances=controls.out_of_order_advances,
            history=controls.change_streams,
            flatbuffers=controls.flatbuffers,
            skip_deletes=OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL in flags,
        )

    def living(self, key: tuple[int, int | None]) -> ServerStream | None:
        stream = self.streams.get(key)
        return None if stream is None or stream.ended else stream
