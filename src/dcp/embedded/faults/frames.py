"""Faults of frames: they leave frames of a stream out, repeat them, or change them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from dcp.embedded.faults.fault import Fault, OneOf, Parts, option, positive
from dcp.errors import FrameError
from dcp.value_grammar import flag, whole_number
from dcp.wire.body import JSON
from dcp.wire.dcp import DCP, OpenFlag
from dcp.wire.frame import Frame, dialect_of, encode, read_frame, split
from dcp.wire.framing import stream_id
from dcp.wire.layout import Kind
from dcp.wire.mechanisms import MECHANISMS, OAUTHBEARER
from dcp.wire.memcached import FEATURES, Feature

if TYPE_CHECKING:
    from dcp.embedded.link import ServerLink

_MARKER, _NOOP = "snapshot_marker", "dcp_noop"
# Messages whose stream id servers send without counting it in the header.
_UNCOUNTED = frozenset(message.name for message in DCP.messages if any(form.stream_id_defect for form in message.sent))


@dataclass
class SnapshotProgress:
    """Last marker of a stream, its end seqno, and the number of items after it."""

    marker: bytes = b""
    end: int = 0
    items: int = 0


@dataclass(eq=False)
class FrameFault(Fault):
    """Base of faults that decide frame by frame, in `altered`."""

    # By link and opaque of the stream.
    _snapshots: WeakKeyDictionary[ServerLink, dict[int, SnapshotProgress]] = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        """Return the frames that are sent instead of one that the node sends without being asked."""
        raise NotImplementedError

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        sent: Parts = []
        try:
            for _, raw in split(b"".join(parts)):
                sent += self._sent(link, raw)
        except FrameError:
            # Another fault has put bytes there that are no frames.
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
            # The client never receives these bytes and cannot acknowledge them, so they must not fill its window.
            link.connection.out.acknowledge(len(raw))
        return sent

    def _concerns(self, link: ServerLink, frame: Frame) -> bool:
        return self.concerns(link.connection.node.number, frame.vbucket)


@dataclass(eq=False)
class NoNoopsFault(FrameFault):
    """Sends no no-ops, although the client has enabled them.

    Clients see idle connections that they have to take for dead after two intervals.
    """

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if frame.name != _NOOP:
            return [raw]
        self.hits += 1
        return []


@dataclass(eq=False)
class BareMarkerFault(FrameFault):
    """Closes the connection after a snapshot marker, before the first item.

    Clients see a marker, and then the end of the connection: their position is before the snapshot.
    """

    times: int | None = option(positive, "on how many connections", 1)
    _broken: WeakSet[ServerLink] = field(default_factory=WeakSet, init=False, repr=False)

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if link in self._broken:
            return []
        if frame.name == _MARKER:
            self.hits += 1
            self._broken.add(link)
            link.connection.closing = True
        return [raw]

    # A broken link stays concerned after the last hit: the frames that follow the marker must not be sent.

    def concerns(self, node: int, vbucket: int | None = None) -> bool:
        return bool(self._broken) or super().concerns(node, vbucket)

    def _concerns(self, link: ServerLink, frame: Frame) -> bool:
        return link in self._broken or super().concerns(link.connection.node.number, frame.vbucket)


@dataclass(eq=False)
class GapFault(FrameFault):
    """Leaves out items in the middle of every snapshot.

    Clients see seqnos missing within a snapshot, which looks like deduplication.
    """

    items: int = option(positive, "number of consecutive items", 1)
    after: int = option(whole_number, "number of items of a snapshot that are sent before", 1)

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if "seqno" not in frame.fields or not self.after <= snapshot.items < self.after + self.items:
            return [raw]
        self.hits += 1
        return []


@dataclass(eq=False)
class MissingTailFault(FrameFault):
    """Leaves out the end of every snapshot: the next one begins, or the stream ends, without it.

    Clients see a snapshot whose last items, and its end seqno, never arrive.
    """

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if frame.fields.get("seqno") != snapshot.end:
            return [raw]
        self.hits += 1
        return []


@dataclass(eq=False)
class RepeatMarkerFault(FrameFault):
    """Repeats the marker in the middle of a snapshot, with the same range, as change streams do.

    Clients see the same marker again after some items of its snapshot.
    """

    after: int = option(whole_number, "number of items of the snapshot that are sent before", 1)

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        if "seqno" not in frame.fields or snapshot.items != self.after or not snapshot.marker:
            return [raw]
        self.hits += 1
        return [snapshot.marker, raw]


@dataclass(eq=False)
class StreamIdsFault(FrameFault):
    """Sends the stream ids of deletions and expirations in the other form: counted in the header, or not.

    Clients see headers whose lengths include the stream id, or leave it out.
    """

    counted: bool = option(flag, "on if the header counts the stream id", False)

    def altered(self, link: ServerLink, raw: bytes, frame: Frame, snapshot: SnapshotProgress) -> list[bytes]:
        number = frame.stream_id
        if number is None or frame.name not in _UNCOUNTED:
            return [raw]
        changed = encode(replace(frame, frame_info=(stream_id(number, counted=self.counted),)))
        self.hits += changed != raw
        return [changed]


# Flag of OPEN, control and feature of HELLO that no node knows.
_UNKNOWN_FLAG, _UNKNOWN_CONTROL = 1 << 31, b"unknown"
_NAMES = frozenset({*Feature.__members__, *OpenFlag.__members__, *MECHANISMS, OAUTHBEARER})


def _granted_names(value: object) -> tuple[str, ...]:
    """Parse names of what a node grants, such as COLLECTIONS,enable_noop."""
    given = value.split(",") if isinstance(value, str) else value
    names = tuple(map(str, given)) if isinstance(given, Iterable) else ()
    # Controls have lower case, and no table: nodes refuse those that they do not know.
    if not names or not all(name.islower() or name in _NAMES for name in names):
        raise ValueError("names such as COLLECTIONS,enable_noop")
    return names


@dataclass(eq=False)
class DowngradeFault(Fault):
    """Grants less than nodes do, as older ones would, or somebody who alters connections.

    Clients see features, flags of OPEN, controls and mechanisms refused that the release has.
    """

    without: tuple[str, ...] = option(
        _granted_names, "HELLO features, flags of OPEN, controls and SASL mechanisms", ("COLLECTIONS",)
    )

    # Requests are changed, not responses: the node has to know what the client was not granted.

    def received(self, link: ServerLink, data: bytes) -> bytes:
        try:
            return b"".join(self._changed(raw, link) for _, raw in split(data))
        except FrameError:
            # An incomplete frame: those that this fault is about are short.
            return data

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        try:
            return [self._changed(raw, link) for _, raw in split(b"".join(parts))]
        except FrameError:
            return parts

    def _changed(self, raw: bytes, link: ServerLink) -> bytes:
        frame = read_frame(raw, dialect_of(link.connection.dialect))
        changed = self._without(frame)
        if changed == frame:
            return raw
        self.hits += 1
        return encode(changed)

    def _without(self, frame: Frame) -> Frame:
        if frame.name == "hello" and frame.kind is Kind.REQUEST:
            removed = [Feature[name] for name in self.without if name in Feature.__members__]
            kept = [code for code in FEATURES.decode(frame.value, {}) if code not in removed]
            return replace(frame, value=FEATURES.encode(kept))
        if frame.name == "open" and frame.kind is Kind.REQUEST:
            flags = [flag for name, flag in OpenFlag.__members__.items() if name in self.without]
            refused = any(int(flag) & int(frame.fields["flags"]) for flag in flags)
            return replace(frame, fields={**frame.fields, "flags": _UNKNOWN_FLAG}) if refused else frame
        if frame.name == "control" and frame.key.decode(errors="replace") in self.without:
            return replace(frame, key=_UNKNOWN_CONTROL)
        if frame.name == "sasl_list_mechs" and frame.kind is Kind.RESPONSE:
            offered = frame.value.decode(errors="replace").split()
            return replace(frame, value=" ".join(name for name in offered if name not in self.without).encode())
        return frame


_MAPS = frozenset({"get_cluster_config", "clustermap_change_notification"})


# By name, what each makes of a map.
_DEFECTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no_vbuckets": lambda found: found | {"vBucketServerMap": found["vBucketServerMap"] | {"vBucketMap": []}},
    "no_locator": lambda found: {name: value for name, value in found.items() if name != "nodeLocator"},
    "other_bucket": lambda found: found | {"name": "another", "uuid": "0" * 32},
}


@dataclass(eq=False)
class BadMapFault(Fault):
    """Sends cluster maps that no client of the bucket can use.

    Clients see a map without vbuckets, without a node locator, or of another bucket, by `defect`.
    """

    defect: str = option(OneOf(_DEFECTS), "what is wrong: no_vbuckets, no_locator or other_bucket", "no_vbuckets")

    def sending(self, link: ServerLink, parts: Parts) -> Parts:
        return [self._sent(raw, link) for _, raw in split(b"".join(parts))]

    def _sent(self, raw: bytes, link: ServerLink) -> bytes:
        frame = read_frame(raw, dialect_of(link.connection.dialect))
        if frame.name not in _MAPS or frame.status or not frame.value:
            return raw
        self.hits += 1
        return encode(replace(frame, value=JSON.encode(_DEFECTS[self.defect](frame.body()))))


FRAMES: dict[str, type[Fault]] = {
    "bad_map": BadMapFault,
    "no_noops": NoNoopsFault,
    "bare_marker": BareMarkerFault,
    "gap": GapFault,
    "missing_tail": MissingTailFault,
    "repeat_marker": RepeatMarkerFault,
    "stream_ids": StreamIdsFault,
    "downgrade": DowngradeFault,
}
