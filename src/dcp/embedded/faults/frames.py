"""Faults that see every frame of a stream, and leave some out, say some twice, or garble them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from dcp.embedded.faults.fault import Fault, Parts, number, option, positive, switch
from dcp.errors import FrameError
from dcp.wire.dcp import DCP
from dcp.wire.frame import Frame, dialect_of, encode, read_frame, split
from dcp.wire.framing import stream_id
from dcp.wire.layout import Kind

if TYPE_CHECKING:
    from dcp.embedded.link import ServerLink

_MARKER, _NOOP = "snapshot_marker", "dcp_noop"
# Those whose stream id may be sent without counting it.
_UNCOUNTED = frozenset(message.name for message in DCP.messages if any(form.stream_id_defect for form in message.sent))


@dataclass
class SnapshotProgress:
    """Where a stream is in its snapshot, as its consumer sees it."""

    marker: bytes = b""
    end: int = 0
    items: int = 0


@dataclass(eq=False)
class FrameFault(Fault):
    """What a fault does to one frame is in `altered`."""

    _snapshots: WeakKeyDictionary[ServerLink, dict[int, SnapshotProgress]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        """What is sent instead of a frame of a node's own accord."""
        raise NotImplementedError

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        sent: Parts = []
        try:
            for _, raw in split(b"".join(parts)):
                sent += self._sent(link, raw)
        except FrameError:
            # Another fault garbled it.
            return parts
        return sent

    def _sent(self, link: ServerLink, raw: bytes) -> list[bytes]:
        frame = read_frame(raw, dialect_of(link.connection.dialect))
        if frame.kind is not Kind.REQUEST:
            return [raw]
        snapshot = self._snapshots.setdefault(link, {}).setdefault(frame.opaque, SnapshotProgress())
        if frame.name == _MARKER:
            snapshot.marker, snapshot.end, snapshot.items = raw, int(frame.fields["snapshot_end"]), 0
        sent = self.altered(link, raw, frame, snapshot) if self._concerns(link, frame) else [raw]
        snapshot.items += "seqno" in frame.fields
        if not sent and frame.name != _NOOP:
            # The client cannot acknowledge what it never gets.
            link.connection.out.acknowledge(len(raw))
        return sent

    def _concerns(self, link: ServerLink, frame: Frame) -> bool:
        return self.concerns(link.connection.node.number, frame.vbucket)


@dataclass(eq=False)
class NoNoopsFault(FrameFault):
    """The node never asks whether the client is still there."""

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if frame.name != _NOOP:
            return [raw]
        self.hits += 1
        return []


@dataclass(eq=False)
class BareMarkerFault(FrameFault):
    """A snapshot is announced, and the connection breaks before its first item."""

    times: int | None = option(positive, "how many connections, at least 1", 1)
    _broken: WeakSet[ServerLink] = field(default_factory=WeakSet, init=False, repr=False)

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if link in self._broken:
            return []
        if frame.name == _MARKER:
            self.hits += 1
            self._broken.add(link)
            link.connection.closing = True
        return [raw]

    def concerns(self, node: int, vbucket: int | None = None) -> bool:
        return bool(self._broken) or super().concerns(node, vbucket)

    def _concerns(self, link: ServerLink, frame: Frame) -> bool:
        return link in self._broken or super().concerns(link.connection.node.number, frame.vbucket)


@dataclass(eq=False)
class GapFault(FrameFault):
    """Items are missing in the middle of every snapshot."""

    items: int = option(positive, "how many in a row, at least 1", 1)
    after: int = option(number, "how many of a snapshot are sent before", 1)

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if "seqno" not in frame.fields or not self.after <= snapshot.items < self.after + self.items:
            return [raw]
        self.hits += 1
        return []


@dataclass(eq=False)
class MissingTailFault(FrameFault):
    """A snapshot lacks what should complete it: the next one begins, or the stream ends, before."""

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if frame.fields.get("seqno") != snapshot.end:
            return [raw]
        self.hits += 1
        return []


@dataclass(eq=False)
class RepeatMarkerFault(FrameFault):
    """A snapshot is announced again in its middle, with the same range, as change streams do."""

    after: int = option(number, "how many of its items are sent before", 1)

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if "seqno" not in frame.fields or snapshot.items != self.after or not snapshot.marker:
            return [raw]
        self.hits += 1
        return [snapshot.marker, raw]


@dataclass(eq=False)
class StreamIdsFault(FrameFault):
    """Deletions and expirations have their stream id in the other form: counted in the header, or not."""

    counted: bool = option(switch, "whether the header counts it", False)

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        number = frame.stream_id
        if number is None or frame.name not in _UNCOUNTED:
            return [raw]
        changed = encode(replace(frame, frame_info=(stream_id(number, counted=self.counted),)))
        self.hits += changed != raw
        return [changed]


FRAMES: dict[str, type[Fault]] = {
    "no_noops": NoNoopsFault,
    "bare_marker": BareMarkerFault,
    "gap": GapFault,
    "missing_tail": MissingTailFault,
    "repeat_marker": RepeatMarkerFault,
    "stream_ids": StreamIdsFault,
}
