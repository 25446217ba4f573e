"""Messages of DCP, the Database Change Protocol of servers since 3.0.

Sources are files of couchbase/kv_engine. Where its documents and its code disagree, the table follows the code:
deletions and expirations can carry a value, a change of vbucket state is answered.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from dcp.wire.body import FAILOVER_LOG, JSON, TEXT
from dcp.wire.dcp_body import CACHED_DOCUMENTS, STREAM_FILTER, SYSTEM_EVENT_TABLE
from dcp.wire.field import Field, reserved, u8, u16, u32, u64
from dcp.wire.layout import MAY, MUST, Effect, Layout, Message, Role, Side
from dcp.wire.memcached import DOCUMENT, MEMCACHED, Status, VbucketState


class OpenFlag(IntFlag):
    """Flags of OPEN, which hold for the whole connection."""

    PRODUCER = 0x01
    NOTIFIER = 0x02
    INCLUDE_XATTRS = 0x04
    NO_VALUE = 0x08
    COLLECTIONS_PREVIEW = 0x10
    INCLUDE_DELETE_TIMES = 0x20
    NO_VALUE_WITH_UNDERLYING_DATATYPE = 0x40
    PITR = 0x80
    INCLUDE_DELETED_USER_XATTRS = 0x100
    SKIP_DELETES_IN_INITIAL_BACKFILL = 0x200


class StreamFlag(IntFlag):
    """Flags of a stream request."""

    TAKE_OVER = 0x01
    DISK_ONLY = 0x02
    TO_LATEST = 0x04
    NO_VALUE = 0x08
    ACTIVE_VB_ONLY = 0x10
    STRICT_VB_UUID = 0x20
    FROM_LATEST = 0x40
    IGNORE_PURGED_TOMBSTONES = 0x80
    CACHE_TRANSFER = 0x100


# End of a stream that never ends by itself.
ENDLESS = 0xFFFF_FFFF_FFFF_FFFF


class MarkerFlag(IntFlag):
    """Flags of a snapshot marker: where the node reads the snapshot from, and what it contains."""

    MEMORY = 0x01
    DISK = 0x02
    CHECKPOINT = 0x04
    ACKNOWLEDGE = 0x08
    HISTORY = 0x10
    MAY_CONTAIN_DUPLICATES = 0x20


class StreamEnd(IntEnum):
    """Reason of the end of a stream."""

    OK = 0
    CLOSED = 1
    STATE_CHANGED = 2
    DISCONNECTED = 3
    SLOW = 4
    BACKFILL_FAILED = 5
    ROLLBACK = 6
    FILTER_EMPTY = 7
    LOST_PRIVILEGES = 8


class SystemEvent(IntEnum):
    """Kind of a change of collections or scopes."""

    COLLECTION_BEGIN = 0
    COLLECTION_END = 1
    COLLECTION_FLUSH = 2
    SCOPE_CREATE = 3
    SCOPE_DROP = 4
    COLLECTION_MODIFY = 5


class OsoSnapshot(IntFlag):
    """Flags of the message before and after an out-of-order snapshot."""

    START = 1
    END = 2


class DurabilityLevel(IntEnum):
    """Durability that a sync write has to reach."""

    MAJORITY = 1
    MAJORITY_AND_PERSIST_ON_ACTIVE = 2
    PERSIST_TO_MAJORITY = 3


# Length of the section after the value that servers 4.0 to 6.6 send with control enable_ext_metadata.
_NMETA = u16("nmeta", measures="meta")
_CHANGE = (u64("seqno"), u64("rev_seqno"))
_MARKER = (u64("snapshot_start"), u64("snapshot_end"), u32("flags", MarkerFlag))
_MARKER_2_0 = (*_MARKER, u64("max_visible_seqno"), u64("high_completed_seqno"))
_MARKER_VERSION = u8("version")
_EVENT = (u64("seqno"), u32("event_id", SystemEvent), u8("version"))
_SCOPE_IDS = (u64("manifest_uid"), u32("scope_id"))
_COLLECTION_IDS = (*_SCOPE_IDS, u32("collection_id"))


def _document(name: str) -> str:
    return f"docs/dcp/documentation/commands/{name}.md"


def _marker(version: int, content: tuple[Field, ...], since: str, note: str) -> Layout:
    return Layout(extras=(_MARKER_VERSION,), content=content, when={"version": version}, since=since, note=note)


def _event(event: SystemEvent, version: int, *content: Field, note: str = "") -> Layout:
    return Layout(extras=_EVENT, key=MAY, content=content, when={"event_id": event, "version": version}, note=note)


DCP = MEMCACHED.extend(
    "dcp",
    "DCP",
    Message(
        "open",
        0x50,
        (
            Layout(
                extras=(reserved(4), u32("flags", OpenFlag)),
                key=MUST,
                value=MAY,
                body=JSON,
                note="value: JSON with consumer_name, consumers that are servers only",
            ),
        ),
        Side.EITHER,
        _document("open-connection"),
        (Layout(),),
    ),
    Message(
        "add_stream",
        0x51,
        (Layout(extras=(u32("flags", StreamFlag),)),),
        Side.EITHER,
        _document("add-stream"),
        (Layout(extras=(u32("stream_opaque"),)),),
        note="only the cluster manager sends it, to a consumer",
    ),
    Message(
        "close_stream",
        0x52,
        (Layout(),),
        Side.CONSUMER,
        _document("close-stream"),
        (Layout(),),
    ),
    Message(
        "stream_request",
        0x53,
        (
            Layout(
                extras=(
                    u32("flags", StreamFlag),
                    reserved(4),
                    u64("start_seqno"),
                    u64("end_seqno"),
                    u64("vbuuid"),
                    u64("snapshot_start"),
                    u64("snapshot_end"),
                ),
                value=MAY,
                body=STREAM_FILTER,
            ),
        ),
        Side.CONSUMER,
        _document("stream-request"),
        (
            Layout(value=MAY, body=FAILOVER_LOG),
            Layout(status=Status.ROLLBACK, content=(u64("rollback_seqno"),)),
        ),
    ),
    Message(
        "get_failover_log",
        0x54,
        (Layout(),),
        Side.CONSUMER,
        _document("failover-log"),
        (Layout(value=MAY, body=FAILOVER_LOG),),
    ),
    Message(
        "stream_end",
        0x55,
        (Layout(extras=(u32("reason", StreamEnd),)),),
        Side.PRODUCER,
        _document("stream-end"),
        role=Role.CONTROL,
        effect=Effect.STREAM_END,
    ),
    Message(
        "snapshot_marker",
        0x56,
        (
            Layout(extras=_MARKER, note="V1"),
            _marker(0, _MARKER_2_0, "6.5", "V2.0, with sync replication"),
            _marker(1, (*_MARKER_2_0, u64("timestamp")), "7.0", "V2.1, in headers only: no server sends it"),
            _marker(
                2,
                (*_MARKER_2_0, u64("purge_seqno"), u64("high_prepared_seqno")),
                "8.0",
                "V2.2, with control max_marker_version",
            ),
        ),
        Side.PRODUCER,
        _document("snapshot-marker"),
        (Layout(),),
        role=Role.CONTROL,
        effect=Effect.SNAPSHOT,
        note="answered only if its flags say so",
    ),
    Message(
        "mutation",
        0x57,
        (Layout(extras=(*DOCUMENT, _NMETA, u8("nru")), key=MUST, value=MAY),),
        Side.PRODUCER,
        _document("mutation"),
        role=Role.ROW,
        document=True,
    ),
    Message(
        "deletion",
        0x58,
        (
            Layout(extras=(*_CHANGE, _NMETA), key=MUST, value=MAY, note="V1"),
            Layout(
                extras=(*_CHANGE, u32("delete_time"), reserved(1)),
                key=MUST,
                value=MAY,
                since="5.5",
                note="V2, with open flag IncludeDeleteTimes",
                stream_id_defect=True,
            ),
        ),
        Side.PRODUCER,
        _document("deletion"),
        role=Role.ROW,
        document=True,
    ),
    Message(
        "expiration",
        0x59,
        (
            Layout(
                extras=(*_CHANGE, u32("delete_time")),
                key=MUST,
                value=MAY,
                stream_id_defect=True,
            ),
        ),
        Side.PRODUCER,
        _document("expiration"),
        role=Role.ROW,
        document=True,
        since="6.5",
        enabled_by="control enable_expiry_opcode and open flag IncludeDeleteTimes",
    ),
    Message(
        "stream_flush",
        0x5A,
        (Layout(),),
        Side.PRODUCER,
        _document("flush"),
        role=Role.CONTROL,
        note="no server ever sent it",
    ),
    Message(
        "set_vbucket_state",
        0x5B,
        (Layout(extras=(u8("state", VbucketState),)),),
        Side.PRODUCER,
        _document("set-vbucket-state"),
        (Layout(),),
        role=Role.CONTROL,
        enabled_by="stream flag TakeOver",
    ),
    Message(
        "dcp_noop",
        0x5C,
        (Layout(),),
        Side.PRODUCER,
        _document("no-op"),
        (Layout(),),
        role=Role.CONTROL,
        effect=Effect.UNCOUNTED,
        enabled_by="control enable_noop",
    ),
    Message(
        "buffer_ack",
        0x5D,
        (Layout(extras=(u32("bytes"),)),),
        Side.CONSUMER,
        _document("buffer-ack"),
        enabled_by="control connection_buffer_size",
        note="answered only if it fails",
    ),
    Message(
        "control",
        0x5E,
        (Layout(key=MUST, value=MUST, body=TEXT),),
        Side.EITHER,
        _document("control"),
        (Layout(),),
    ),
    Message(
        "system_event",
        0x5F,
        (
            _event(SystemEvent.COLLECTION_BEGIN, 0, *_COLLECTION_IDS),
            _event(SystemEvent.COLLECTION_BEGIN, 1, *_COLLECTION_IDS, u32("max_ttl"), note="with a time to live"),
            _event(SystemEvent.COLLECTION_END, 0, *_COLLECTION_IDS),
            _event(SystemEvent.SCOPE_CREATE, 0, *_SCOPE_IDS),
            _event(SystemEvent.SCOPE_DROP, 0, *_SCOPE_IDS),
            Layout(
                extras=_EVENT,
                key=MAY,
                value=MUST,
                body=SYSTEM_EVENT_TABLE,
                when={"version": 2},
                since="7.2",
                note="FlatBuffers, with control flatbuffers_system_events",
            ),
            Layout(extras=_EVENT, key=MAY, value=MAY, note="any other event or version"),
        ),
        Side.PRODUCER,
        _document("system_event"),
        role=Role.ROW,
        effect=Effect.ADVANCE,
        since="7.0",
        enabled_by="HELLO Collections",
    ),
    Message(
        "prepare",
        0x60,
        (
            Layout(
                extras=(*DOCUMENT, u8("nru"), u8("deleted"), u8("durability", DurabilityLevel)),
                key=MUST,
                value=MAY,
            ),
        ),
        Side.PRODUCER,
        _document("prepare"),
        role=Role.ROW,
        document=True,
        since="6.5",
        enabled_by="control enable_sync_writes",
    ),
    Message(
        "seqno_acknowledged",
        0x61,
        (Layout(extras=(u64("prepared_seqno"),)),),
        Side.CONSUMER,
        _document("seqno-acknowledged"),
        since="6.5",
        enabled_by="control consumer_name and enable_sync_writes",
        note="answered only if it fails",
    ),
    Message(
        "commit",
        0x62,
        (Layout(extras=(u64("prepared_seqno"), u64("seqno")), key=MUST),),
        Side.PRODUCER,
        _document("commit"),
        role=Role.ROW,
        document=True,
        since="6.5",
        enabled_by="control enable_sync_writes",
    ),
    Message(
        "abort",
        0x63,
        (Layout(extras=(u64("prepared_seqno"), u64("seqno")), key=MUST),),
        Side.PRODUCER,
        _document("abort"),
        role=Role.ROW,
        document=True,
        since="6.5",
        enabled_by="control enable_sync_writes",
    ),
    Message(
        "seqno_advanced",
        0x64,
        (Layout(extras=(u64("seqno"),)),),
        Side.PRODUCER,
        _document("seqno-advanced"),
        role=Role.CONTROL,
        effect=Effect.ADVANCE,
        since="7.0",
        enabled_by="HELLO Collections",
    ),
    Message(
        "oso_snapshot",
        0x65,
        (Layout(extras=(u32("flags", OsoSnapshot),)),),
        Side.PRODUCER,
        _document("oso_snapshot"),
        role=Role.CONTROL,
        effect=Effect.DISORDER,
        since="7.0",
        enabled_by="control enable_out_of_order_snapshots",
    ),
    Message(
        "cache_transfer",
        0x66,
        (Layout(value=MUST, body=CACHED_DOCUMENTS),),
        Side.PRODUCER,
        _document("cache-transfer"),
        role=Role.CONTROL,
        since="8.5",
        enabled_by="stream flag CacheTransfer",
        note="a consumer short of memory answers Enomem",
    ),
    Message(
        "cache_transfer_end",
        0x67,
        (Layout(),),
        Side.PRODUCER,
        _document("cache-transfer-end"),
        role=Role.CONTROL,
        since="8.5",
        enabled_by="stream flag CacheTransfer",
    ),
)
