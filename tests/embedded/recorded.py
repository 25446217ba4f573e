"""State of a recorded server: its frames with their times, and the contents of its vbuckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from dcp.embedded.manifest import BucketManifest, Collection, Scope
from dcp.embedded.store import CommittedItem, PreparedItem, StoredItem, StreamItem, SystemItem
from dcp.errors import FrameError
from dcp.position import FailoverLog
from dcp.wire.body import FAILOVER_LOG
from dcp.wire.dcp import DurabilityLevel, MarkerFlag, OpenFlag, SystemEvent
from dcp.wire.document import Datatype, join_xattrs, split_collection
from dcp.wire.frame import Frame, dialect_of, read_frame
from dcp.wire.memcached import Status
from tests.conformance import (
    TRANSCRIPTS,
    Connection,
    Document,
    Transcript,
    cut,
    has_collections,
    open_flags,
    transcript,
)

DCP = dialect_of("dcp")
_CHANGES = ("mutation", "deletion", "expiration")
_WITHOUT_VALUES = OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE


@dataclass(frozen=True)
class SentFrame:
    """Frame of one side, and the turn in which it was sent."""

    raw: bytes
    turn: int

    @property
    def frame(self) -> Frame:
        return read_frame(self.raw, DCP)


def frames_of(recording: Transcript, side: str) -> list[SentFrame]:
    """Return the frames of one side of the main connection.

    A frame of the client belongs to the turn in which it ends, one of the server to that in which it begins."""
    # The turn of each byte.
    turns = [turn for number, one in enumerate(recording.timeline) if one.side == side for turn in [number] * one.size]
    data = dict(recording.main.directions)[side]
    assert len(turns) == len(data)
    found, position = [], 0
    for raw in cut(data):
        found.append(SentFrame(raw, turns[position + (len(raw) - 1 if side == "client" else 0)]))
        position += len(raw)
    return found


def end_of(marker: Frame) -> int:
    return int(marker.fields["snapshot_end"])


def is_from_disk(marker: Frame) -> bool:
    return MarkerFlag.DISK in MarkerFlag(int(marker.fields["flags"]))


def begins_checkpoint(marker: Frame) -> bool:
    return MarkerFlag.CHECKPOINT in MarkerFlag(int(marker.fields["flags"]))


# Stored items.

Items = dict[int, list[StreamItem]]


def items_of(recording: Transcript) -> Items:
    """Return the items of each vbucket, in order: those that were sent, and others that the recorder stored.

    Recordings of the same bucket, and of the same history, complete each other.
    """
    recordings = [recording, *_relatives(recording)]
    found: dict[tuple[int, int], StreamItem] = {}
    for one in recordings:
        for vbucket, stored in _documented(one):
            found.setdefault((vbucket, stored.seqno), stored)
    for one in recordings:
        for vbucket, item in _sent(one, one.main):
            found[vbucket, item.seqno] = _fullest(recording.version, vbucket, item)
    for vbucket, seqno in _hidden(recording):
        found.setdefault((vbucket, seqno), StoredItem("mutation", seqno, b"in another collection"))
    by_vbucket: Items = {}
    for (vbucket, _), item in sorted(found.items(), key=lambda pair: pair[0]):
        by_vbucket.setdefault(vbucket, []).append(item)
    return by_vbucket


# Scenarios (by the beginning of their names) and others that recorded the same bucket and history.
_RELATIVES = {"collections": "collections", "error_kv_on_dcp_connection": "stream_memory_full_then_live"}


def _relatives(recording: Transcript) -> Iterator[Transcript]:
    for scenario, others in _RELATIVES.items():
        if recording.scenario.startswith(scenario):
            for other in map(transcript, TRANSCRIPTS):
                if other.version == recording.version and other.scenario.startswith(others):
                    yield other


def _documented(recording: Transcript) -> Iterator[tuple[int, StoredItem]]:
    for document in recording.documents:
        if document.seqno is not None and not document.deleted:
            yield document.vbucket, _from_document(document)


def _from_document(document: Document) -> StoredItem:
    body = document.value or b""
    datatype = Datatype.JSON if body[:1] in (b"{", b"[", b'"') else Datatype(0)
    if document.xattrs:
        datatype |= Datatype.XATTR
        body = join_xattrs(((name.encode(), text.encode()) for name, text in document.xattrs.items()), body)
    return StoredItem(
        "mutation",
        document.seqno or 0,
        document.key,
        body,
        cas=document.cas or 0,
        flags=document.flags or 0,
        expiry=document.expiry or 0,
        datatype=int(datatype),
        collection_id=document.collection,
    )


def _sent(recording: Transcript, connection: Connection) -> Iterator[tuple[int, StreamItem]]:
    collections = has_collections(recording)
    prepares: dict[int, PreparedItem] = {}
    for raw in cut(connection.server):
        frame = read_frame(raw, DCP)
        if frame.name in _CHANGES:
            yield frame.vbucket, _changed(frame, collections)
        elif frame.name == "system_event":
            yield frame.vbucket, _system(frame)
        elif frame.name == "prepare":
            prepares[int(frame.fields["seqno"])] = _prepared(frame)
            yield frame.vbucket, prepares[int(frame.fields["seqno"])]
        elif frame.name == "commit":
            yield frame.vbucket, _committed(frame, prepares[int(frame.fields["prepared_seqno"])])


def _hidden(recording: Transcript) -> Iterator[tuple[int, int]]:
    """Yield the seqnos to which out-of-order snapshots advanced: those of changes in other collections."""
    frames = [one.frame for one in frames_of(recording, "server")]
    out_of_order: set[int] = set()
    for frame in frames:
        if frame.name == "oso_snapshot":
            out_of_order ^= {frame.vbucket}
        elif frame.name == "seqno_advanced" and frame.vbucket in out_of_order:
            yield frame.vbucket, int(frame.fields["seqno"])


def _changed(frame: Frame, collections: bool) -> StoredItem:
    collection, key = split_collection(frame.key) if collections else (0, frame.key)
    numbers = {name: int(frame.fields.get(name, 0)) for name in ("seqno", "rev_seqno", "flags", "expiry")}
    return StoredItem(
        frame.name,
        key=key,
        value=frame.value,
        cas=frame.cas,
        delete_time=int(frame.fields.get("delete_time", 0)),
        datatype=frame.datatype,
        collection_id=collection,
        **numbers,
    )


def _prepared(frame: Frame) -> PreparedItem:
    """Return the prepare of a frame; none of the recordings has one with collections."""
    changed = _changed(frame, collections=False)
    event = "deletion" if frame.fields["deleted"] else "mutation"
    return PreparedItem(changed._replace(event=event), DurabilityLevel(int(frame.fields["durability"])))


def _committed(frame: Frame, prepare: PreparedItem) -> CommittedItem:
    return CommittedItem(prepare.document._replace(seqno=int(frame.fields["seqno"])), prepare.seqno)


def _system(frame: Frame) -> SystemItem:
    fields = {name: int(number) for name, number in frame.fields.items()}
    ids = fields["manifest_uid"], fields["scope_id"], fields.get("collection_id"), fields.get("max_ttl")
    return SystemItem(fields["seqno"], fields["event_id"], frame.key, *ids)


def _fullest(version: str, vbucket: int, item: StreamItem) -> StreamItem:
    """Return the item as it was stored, if another connection received more of it."""
    if not isinstance(item, StoredItem):
        return item
    seen = _seen_in_full(version).get((vbucket, item.seqno, item.cas))
    return item if seen is None else item._replace(value=seen.value, datatype=seen.datatype)


@cache
def _seen_in_full(version: str) -> dict[tuple[int, int, int], StoredItem]:
    """Return the changes that a server sent to connections with full values."""
    found: dict[tuple[int, int, int], StoredItem] = {}
    for recording in map(transcript, TRANSCRIPTS):
        flags = OpenFlag(open_flags(recording))
        in_full = OpenFlag.INCLUDE_XATTRS in flags and not flags & _WITHOUT_VALUES
        if recording.version == version and recording.dialect == "dcp" and in_full:
            for vbucket, item in _sent(recording, recording.main):
                if isinstance(item, StoredItem):
                    known = found.setdefault((vbucket, item.seqno, item.cas), item)
                    # Stored values may be compressed; a connection without Snappy receives them inflated.
                    if item.datatype & Datatype.SNAPPY and not known.datatype & Datatype.SNAPPY:
                        found[vbucket, item.seqno, item.cas] = item
    return found


# Other state.


def logs_of(recording: Transcript) -> dict[int, FailoverLog]:
    """Return the failover logs that the server sent."""
    requested = {frame.opaque: frame.vbucket for frame in _requests(recording, ("stream_request", "get_failover_log"))}
    found: dict[int, FailoverLog] = {}
    for one in frames_of(recording, "server"):
        frame = one.frame
        if frame.kind.answers and frame.opaque in requested and frame.status == Status.SUCCESS:
            found[requested[frame.opaque]] = FailoverLog.of(FAILOVER_LOG.decode(frame.value, {}))
    return found


def seqnos_of(recording: Transcript) -> list[dict[int, int]]:
    """Return the high seqnos in each response of the server."""
    answers = (one.frame for one in frames_of(recording, "server") if one.frame.name == "get_all_vb_seqnos")
    return [dict(frame.body()) for frame in answers if frame.status == Status.SUCCESS]


def purged_of(recording: Transcript) -> dict[int, int]:
    """Return the purge seqnos that the server sent in markers, or showed by a rollback to 0 of a known history."""
    found: dict[int, int] = {}
    requests = {frame.opaque: frame for frame in _requests(recording, ["stream_request"])}
    logs = logs_of(recording)
    for one in frames_of(recording, "server"):
        frame = one.frame
        if frame.name == "stream_request" and frame.status == Status.ROLLBACK and not frame.fields["rollback_seqno"]:
            request = requests[frame.opaque]
            if any(entry.vbuuid == request.fields["vbuuid"] for entry in logs.get(request.vbucket, ())):
                # It is unknown how far above the start seqno the server has purged.
                found.setdefault(request.vbucket, int(request.fields["start_seqno"]) + 1)
        elif frame.fields.get("purge_seqno"):
            found[frame.vbucket] = int(frame.fields["purge_seqno"])
    return found


def bucket_of(recording: Transcript) -> str:
    """Return the name of the bucket that the client selected."""
    refused = {one.frame.opaque for one in frames_of(recording, "server") if one.frame.status}
    names = [frame.key.decode() for frame in _requests(recording, ["select_bucket"]) if frame.opaque not in refused]
    return names[-1] if names else "default"


def absent_vbuckets(recording: Transcript) -> set[int]:
    """Return the vbuckets that the server did not have."""
    refused = {one.frame.opaque for one in frames_of(recording, "server") if one.frame.status == Status.NOT_MY_VBUCKET}
    return {frame.vbucket for frame in _requests(recording, None) if frame.opaque in refused}


def _requests(recording: Transcript, names: Iterable[str] | None) -> Iterator[Frame]:
    for one in frames_of(recording, "client"):
        try:
            frame = one.frame
        except FrameError:
            # Some recordings contain malformed requests.
            continue
        if not frame.kind.answers and (names is None or frame.name in names):
            yield frame


def manifest_of(items: Iterable[StreamItem]) -> BucketManifest:
    """Return the manifest after these system events."""
    scopes: dict[int, Scope] = {0: BucketManifest().scopes[0]}
    uid = 0
    for item in items:
        if not isinstance(item, SystemItem):
            continue
        scope = scopes.setdefault(item.scope_id, Scope(item.scope_id, item.key.decode()))
        uid = max(uid, item.manifest_uid)
        if item.event_id == SystemEvent.SCOPE_DROP:
            del scopes[item.scope_id]
        elif item.collection_id is not None:
            rest = tuple(one for one in scope.collections if one.id != item.collection_id)
            new = (Collection(item.collection_id, item.key.decode(), item.max_ttl),)
            begins = item.event_id == SystemEvent.COLLECTION_BEGIN
            scopes[item.scope_id] = replace(scope, collections=rest + new if begins else rest)
    return BucketManifest(uid, tuple(scopes.values()))
