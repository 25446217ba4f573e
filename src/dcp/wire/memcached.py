"""Messages that every dialect shares: the memcached commands around streams; statuses and features.

Sources are files of couchbase/kv_engine unless noted.
"""

from __future__ import annotations

from enum import IntEnum

from dcp.wire.body import FAILOVER_LOG, JSON, TEXT, TEXT_OR_JSON, Records
from dcp.wire.field import i64, u8, u16, u32, u64
from dcp.wire.layout import MAY, MUST, Dialect, Effect, Kind, Layout, Message, Role, Side

# Largest frame in bytes: the limit of the server itself, for a 20 MiB document with 1 MiB of system xattrs and some
# room (kv_engine setting max_packet_size).
MAX_FRAME = 30 << 20


class Status(IntEnum):
    """Result of a command, in bytes 6 and 7 of its response."""

    SUCCESS = 0x00
    KEY_ENOENT = 0x01
    KEY_EEXISTS = 0x02
    E2BIG = 0x03
    EINVAL = 0x04
    NOT_STORED = 0x05
    DELTA_BADVAL = 0x06
    NOT_MY_VBUCKET = 0x07
    NO_BUCKET = 0x08
    LOCKED = 0x09
    DCP_STREAM_NOT_FOUND = 0x0A
    OPAQUE_NO_MATCH = 0x0B
    EWOULD_THROTTLE = 0x0C
    ECONFIG_ONLY = 0x0D
    NOT_LOCKED = 0x0E
    CAS_VALUE_INVALID = 0x0F
    AUTH_STALE = 0x1F
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    ERANGE = 0x22
    ROLLBACK = 0x23
    EACCESS = 0x24
    NOT_INITIALIZED = 0x25
    ENCRYPTION_KEY_NOT_AVAILABLE = 0x26
    CHECKSUM_MISMATCH = 0x27
    EXPIRY_OVERFLOW = 0x28
    LOCK_EXPIRY_OVERFLOW = 0x29
    RATE_LIMITED_INGRESS = 0x30
    RATE_LIMITED_EGRESS = 0x31
    RATE_LIMITED_CONNECTIONS = 0x32
    RATE_LIMITED_COMMANDS = 0x33
    SCOPE_SIZE_LIMIT_EXCEEDED = 0x34
    BUCKET_SIZE_LIMIT_EXCEEDED = 0x35
    BUCKET_RESIDENT_RATIO_TOO_LOW = 0x36
    BUCKET_DATA_SIZE_TOO_BIG = 0x37
    BUCKET_DISK_SPACE_TOO_LOW = 0x38
    BUCKET_PAUSED = 0x50
    CANCELLED = 0x51
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    ENOMEM = 0x82
    NOT_SUPPORTED = 0x83
    EINTERNAL = 0x84
    EBUSY = 0x85
    ETMPFAIL = 0x86
    XATTR_EINVAL = 0x87
    UNKNOWN_COLLECTION = 0x88
    NO_COLLECTIONS_MANIFEST = 0x89
    CANNOT_APPLY_COLLECTIONS_MANIFEST = 0x8A
    COLLECTIONS_MANIFEST_IS_AHEAD = 0x8B
    UNKNOWN_SCOPE = 0x8C
    DCP_STREAM_ID_INVALID = 0x8D
    DURABILITY_INVALID_LEVEL = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    SYNC_WRITE_IN_PROGRESS = 0xA2
    SYNC_WRITE_AMBIGUOUS = 0xA3
    SYNC_WRITE_RE_COMMIT_IN_PROGRESS = 0xA4
    RANGE_SCAN_CANCELLED = 0xA5
    RANGE_SCAN_MORE = 0xA6
    RANGE_SCAN_COMPLETE = 0xA7
    VBUUID_NOT_EQUAL = 0xA8
    SUBDOC_PATH_ENOENT = 0xC0
    SUBDOC_PATH_MISMATCH = 0xC1
    SUBDOC_PATH_EINVAL = 0xC2
    SUBDOC_PATH_E2BIG = 0xC3
    SUBDOC_PATH_E2DEEP = 0xC4
    SUBDOC_VALUE_CANTINSERT = 0xC5
    SUBDOC_DOC_NOTJSON = 0xC6
    SUBDOC_NUM_ERANGE = 0xC7
    SUBDOC_DELTA_EINVAL = 0xC8
    SUBDOC_PATH_EEXISTS = 0xC9
    SUBDOC_VALUE_ETOODEEP = 0xCA
    SUBDOC_INVALID_COMBO = 0xCB
    SUBDOC_MULTI_PATH_FAILURE = 0xCC
    SUBDOC_SUCCESS_DELETED = 0xCD
    SUBDOC_XATTR_INVALID_FLAG_COMBO = 0xCE
    SUBDOC_XATTR_INVALID_KEY_COMBO = 0xCF
    SUBDOC_XATTR_UNKNOWN_MACRO = 0xD0
    SUBDOC_XATTR_UNKNOWN_VATTR = 0xD1
    SUBDOC_XATTR_CANT_MODIFY_VATTR = 0xD2
    SUBDOC_MULTI_PATH_FAILURE_DELETED = 0xD3
    SUBDOC_INVALID_XATTR_ORDER = 0xD4
    SUBDOC_XATTR_UNKNOWN_VATTR_MACRO = 0xD5
    SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS = 0xD6
    SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE = 0xD7
    SUBDOC_FIELD_NOT_BINARY_VALUE = 0xD8


class Feature(IntEnum):
    """Features that HELLO can request."""

    DATATYPE = 0x01
    TLS = 0x02
    TCP_NODELAY = 0x03
    MUTATION_SEQNO = 0x04
    TCP_DELAY = 0x05
    XATTR = 0x06
    XERROR = 0x07
    SELECT_BUCKET = 0x08
    COLLECTIONS_PREVIEW = 0x09
    SNAPPY = 0x0A
    JSON = 0x0B
    DUPLEX = 0x0C
    CLUSTERMAP_CHANGE_NOTIFICATION = 0x0D
    UNORDERED_EXECUTION = 0x0E
    TRACING = 0x0F
    ALT_REQUEST_SUPPORT = 0x10
    SYNC_REPLICATION = 0x11
    COLLECTIONS = 0x12
    SNAPPY_EVERYWHERE = 0x13
    PRESERVE_TTL = 0x14
    VATTR = 0x15
    PITR = 0x16
    SUBDOC_CREATE_AS_DELETED = 0x17
    SUBDOC_DOCUMENT_MACRO = 0x18
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0x19
    REPORT_UNIT_USAGE = 0x1A
    NON_BLOCKING_THROTTLING = 0x1B
    SUBDOC_REPLICA_READ = 0x1C
    GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION = 0x1D
    DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP = 0x1E
    CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF = 0x1F
    SUBDOC_ALLOW_MULTIPLE_XATTR_KEYS = 0x20
    SUBDOC_BINARY_XATTR = 0x21
    RANGE_SCAN_INCLUDE_XATTR = 0x22
    SUBDOC_REPLICA_READ_DELETED = 0x23
    GET_RANDOM_KEY_INCLUDE_XATTR = 0x24
    MUTATE_WITH_META = 0x25
    DCP_SKIP_DELETES_IN_INITIAL_BACKFILL = 0x26


class VbucketState(IntEnum):
    """State of a vbucket on a node, with the numbers of TAP, DCP and GET_ALL_VB_SEQNOS."""

    ALIVE = 0
    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


# Fields of every mutation of UPR and DCP.
DOCUMENT = (u64("seqno"), u64("rev_seqno"), u32("flags"), u32("expiry"), u32("lock_time"))

FEATURES = Records("features", u16("code"))
SEQNOS = Records("high seqnos", u16("vbucket"), u64("seqno"))

_PROTOCOL = "docs/BinaryProtocol.md"
_COLLECTIONS = "docs/Collections.md"

_OBSERVED = (u8("format"), u16("vbucket_id"), u64("vbuuid"), u64("persisted_seqno"), u64("seqno"))
_STORED = (Layout(), Layout(extras=(u64("vbuuid"), u64("seqno")), since="4.0", note="with HELLO MutationSeqno"))
_STORE = (Layout(extras=(u32("flags"), u32("expiry")), key=MUST, value=MAY),)
_JOIN = (Layout(key=MUST, value=MAY),)
_COUNT = (Layout(extras=(u64("delta"), u64("initial"), u32("expiry")), key=MUST),)
_COUNTED = (
    Layout(content=(u64("number"),)),
    Layout(
        extras=(u64("vbuuid"), u64("seqno")), content=(u64("number"),), since="4.0", note="with HELLO MutationSeqno"
    ),
)
_FETCHED = (Layout(extras=(u32("flags"),), value=MAY),)
_FETCHED_WITH_KEY = (
    Layout(extras=(u32("flags"),), key=MUST, value=MAY),
    Layout(status=Status.KEY_ENOENT, key=MAY, value=MAY),
)
_META = (u32("deleted"), u32("flags"), u32("expiry"), u64("rev_seqno"))
_QUIET, _QUIET_MISS = "only failures are answered", "a miss is not answered"
_SASL = (Layout(key=MUST, value=MAY),)
_SASL_ANSWER = (
    Layout(value=MAY),
    Layout(status=Status.AUTH_CONTINUE, value=MAY, note="challenge"),
)


def _command(
    name: str,
    opcode: int,
    sent: tuple[Layout, ...],
    answer: tuple[Layout, ...],
    *,
    source: str = _PROTOCOL,
    since: str = "3.0",
    note: str = "",
    document: bool = False,
    secret: bool = False,
) -> Message:
    """Return a command of the consumer."""
    return Message(
        name, opcode, sent, Side.CONSUMER, source, answer, since=since, note=note, document=document, secret=secret
    )


_SUBDOC = "docs/SubDocument.md"
_PATH, _EXPIRY, _DOC_FLAGS = (u16("path_length"), u8("path_flags")), u32("expiry"), u8("doc_flags")
# Those of the document; since 8.0.
_USER_FLAGS = u32("flags")
_MUTATION_EXTRAS = (
    *((_EXPIRY,), (_EXPIRY, _DOC_FLAGS)),
    *((_EXPIRY, _USER_FLAGS), (_EXPIRY, _USER_FLAGS, _DOC_FLAGS)),
)
# The value is the path, and after it the new value.
_LOOK_UP = tuple(Layout(extras=extras, key=MUST, value=MAY) for extras in (_PATH, (*_PATH, _DOC_FLAGS)))
_MUTATE = (
    *_LOOK_UP,
    *(Layout(extras=(*_PATH, *extras), key=MUST, value=MUST) for extras in _MUTATION_EXTRAS),
)
_FOUND = (
    Layout(value=MAY),
    Layout(status=Status.SUBDOC_SUCCESS_DELETED, value=MAY, note="of a tombstone"),
)
_MUTATED = tuple(
    Layout(extras=extras, status=status, value=MAY, note=note)
    for status, of_what in ((Status.SUCCESS, ""), (Status.SUBDOC_SUCCESS_DELETED, "of a tombstone"))
    for extras, note in (((), of_what), ((u64("vbuuid"), u64("seqno")), of_what or "with HELLO MutationSeqno"))
)


def _part(name: str, opcode: int, *, mutation: bool = True, since: str = "4.5") -> Message:
    """Return a command about one path of a document."""
    forms = (_MUTATE, _MUTATED) if mutation else (_LOOK_UP, _FOUND)
    return _command(f"subdoc_{name}", opcode, *forms, source=_SUBDOC, since=since, document=True)


# The halves of a uuid.
_SCAN_ID = (u64("scan_id_high"), u64("scan_id_low"))
_RANGE_SCAN_CONTINUE = "docs/range_scans/range_scan_continue.md"
# Flag 1: keys with metadata and values; otherwise keys alone.
_SCANNED = tuple(
    Layout(extras=(u32("flags"),), status=status, value=MAY, note=note)
    for status, note in (
        (Status.SUCCESS, "more responses follow"),
        (Status.RANGE_SCAN_MORE, "a limit was reached"),
        (Status.RANGE_SCAN_COMPLETE, "the end of the scan"),
    )
)


MEMCACHED = Dialect(
    "memcached",
    "the commands around a stream",
    (
        _command("get", 0x00, (Layout(key=MUST),), _FETCHED, document=True),
        _command("set", 0x01, _STORE, _STORED, document=True),
        _command("add", 0x02, _STORE, _STORED, document=True),
        _command("replace", 0x03, _STORE, _STORED, document=True),
        _command("delete", 0x04, (Layout(key=MUST),), _STORED, document=True),
        _command("increment", 0x05, _COUNT, _COUNTED, document=True),
        _command("decrement", 0x06, _COUNT, _COUNTED, document=True),
        _command("quit", 0x07, (Layout(),), (Layout(),)),
        _command("flush", 0x08, (Layout(), Layout(extras=(u32("expiry"),))), (Layout(),)),
        _command("getq", 0x09, (Layout(key=MUST),), _FETCHED, document=True, note=_QUIET_MISS),
        Message(
            "noop",
            0x0A,
            (Layout(),),
            Side.EITHER,
            _PROTOCOL,
            (Layout(),),
            role=Role.CONTROL,
            effect=Effect.UNCOUNTED,
        ),
        _command("version", 0x0B, (Layout(),), (Layout(value=MAY, body=TEXT),)),
        _command("getk", 0x0C, (Layout(key=MUST),), _FETCHED_WITH_KEY, document=True),
        _command("getkq", 0x0D, (Layout(key=MUST),), _FETCHED_WITH_KEY, document=True, note=_QUIET_MISS),
        _command("append", 0x0E, _JOIN, _STORED, document=True),
        _command("prepend", 0x0F, _JOIN, _STORED, document=True),
        _command(
            "stat",
            0x10,
            (Layout(key=MAY), Layout(key=MAY, value=MUST, body=JSON, since="5.0", note="with an argument")),
            (Layout(key=MAY, value=MAY, body=TEXT, note="one a statistic, the last one empty"),),
        ),
        _command("setq", 0x11, _STORE, _STORED, document=True, note=_QUIET),
        _command("addq", 0x12, _STORE, _STORED, document=True, note=_QUIET),
        _command("replaceq", 0x13, _STORE, _STORED, document=True, note=_QUIET),
        _command("deleteq", 0x14, (Layout(key=MUST),), _STORED, document=True, note=_QUIET),
        _command("incrementq", 0x15, _COUNT, _COUNTED, document=True, note=_QUIET),
        _command("decrementq", 0x16, _COUNT, _COUNTED, document=True, note=_QUIET),
        _command("quitq", 0x17, (Layout(),), ()),
        _command("appendq", 0x19, _JOIN, _STORED, document=True, note=_QUIET),
        _command("prependq", 0x1A, _JOIN, _STORED, document=True, note=_QUIET),
        _command(
            "touch",
            0x1C,
            (Layout(extras=(u32("expiry"),), key=MUST),),
            (Layout(), Layout(extras=(u32("flags"),), note="older servers")),
            document=True,
        ),
        _command("gat", 0x1D, (Layout(extras=(u32("expiry"),), key=MUST),), _FETCHED, document=True),
        _command("gatq", 0x1E, (Layout(extras=(u32("expiry"),), key=MUST),), _FETCHED, document=True, note=_QUIET_MISS),
        _command("hello", 0x1F, (Layout(key=MAY, value=MAY, body=FEATURES),), (Layout(value=MAY, body=FEATURES),)),
        _command("sasl_list_mechs", 0x20, (Layout(),), (Layout(value=MAY, body=TEXT),)),
        _command("sasl_auth", 0x21, _SASL, _SASL_ANSWER, secret=True),
        _command("sasl_step", 0x22, _SASL, _SASL_ANSWER, secret=True),
        _command(
            "get_all_vb_seqnos",
            0x48,
            (
                Layout(),
                Layout(extras=(u32("state", VbucketState),)),
                Layout(extras=(u32("state", VbucketState), u32("collection_id")), since="7.0"),
            ),
            (Layout(value=MAY, body=SEQNOS),),
            source="docs/dcp/documentation/commands/get_seqno.md",
        ),
        _command("get_replica", 0x83, (Layout(key=MUST),), _FETCHED, source="daemon/mcbp_validators.cc", document=True),
        _command("select_bucket", 0x89, (Layout(key=MAY),), (Layout(),), since="3.0"),
        _command(
            "observe_seqno",
            0x91,
            (Layout(content=(u64("vbuuid"),)),),
            (
                Layout(content=_OBSERVED),
                Layout(
                    content=(*_OBSERVED, u64("old_vbuuid"), u64("old_seqno")),
                    note="format 1: the uuid asked for is an older branch",
                ),
            ),
            since="4.0",
        ),
        _command(
            "observe",
            0x92,
            (Layout(value=MUST, note="for each key: vbucket, length and key"),),
            (Layout(value=MUST, note="for each key: vbucket, length, key, state and CAS"),),
        ),
        _command(
            "get_locked",
            0x94,
            (Layout(key=MUST), Layout(extras=(u32("lock_time"),), key=MUST)),
            _FETCHED,
            source="daemon/mcbp_validators.cc",
            document=True,
            note="its CAS is that of the lock",
        ),
        _command(
            "unlock_key", 0x95, (Layout(key=MUST),), (Layout(),), source="daemon/mcbp_validators.cc", document=True
        ),
        _command(
            "kv_get_failover_log",
            0x96,
            (Layout(),),
            (Layout(value=MAY, body=FAILOVER_LOG),),
            source="docs/dcp/documentation/commands/failover-log.md",
            note="0x54 on a connection that is not DCP",
        ),
        _command(
            "get_meta",
            0xA0,
            (Layout(key=MUST), Layout(extras=(u8("version"),), key=MUST, note="version 2: with the datatype")),
            (Layout(extras=_META), Layout(extras=(*_META, u8("datatype")))),
            document=True,
            source="docs/protocol/get_meta.md",
        ),
        _command(
            "get_cluster_config",
            0xB5,
            (Layout(), Layout(extras=(i64("epoch"), i64("revision")), since="7.6", note="known already")),
            (Layout(value=MAY, body=JSON),),
        ),
        _command(
            "get_random_key",
            0xB6,
            (Layout(), Layout(extras=(u32("collection_id"),), since="7.0")),
            (
                Layout(extras=(u32("flags"),), key=MUST, value=MAY),
                Layout(key=MUST, note="as its document draws it"),
            ),
            source="docs/dcp/documentation/commands/random_key.md",
        ),
        _command(
            "seqno_persistence",
            0xB7,
            (Layout(extras=(u64("seqno"),)),),
            (Layout(),),
            source="docs/dcp/documentation/commands/persist_seqno.md",
        ),
        _command(
            "get_collections_manifest",
            0xBA,
            (Layout(),),
            (Layout(value=MAY, body=JSON),),
            since="7.0",
            source=_COLLECTIONS,
        ),
        _command(
            "get_collection_id",
            0xBB,
            (Layout(key=MAY, value=MAY, body=TEXT, note="the path is the value, or the key"),),
            (Layout(extras=(u64("manifest_uid"), u32("collection_id"))),),
            since="6.5",
            source=_COLLECTIONS,
        ),
        _command(
            "get_scope_id",
            0xBC,
            (Layout(key=MAY, value=MAY, body=TEXT, note="the path is the value, or the key"),),
            (Layout(extras=(u64("manifest_uid"), u32("scope_id"))),),
            since="6.5",
            source=_COLLECTIONS,
        ),
        _part("get", 0xC5, mutation=False),
        _part("exists", 0xC6, mutation=False),
        _part("dict_add", 0xC7),
        _part("dict_upsert", 0xC8),
        _part("delete", 0xC9),
        _part("replace", 0xCA),
        _part("array_push_last", 0xCB),
        _part("array_push_first", 0xCC),
        _part("array_insert", 0xCD),
        _part("array_add_unique", 0xCE),
        _part("counter", 0xCF),
        _command(
            "subdoc_multi_lookup",
            0xD0,
            (Layout(key=MUST, value=MUST), Layout(extras=(_DOC_FLAGS,), key=MUST, value=MUST)),
            _FOUND,
            source=_SUBDOC,
            since="4.5",
            document=True,
        ),
        _command(
            "subdoc_multi_mutation",
            0xD1,
            tuple(Layout(extras=extras, key=MUST, value=MUST) for extras in ((), (_DOC_FLAGS,), *_MUTATION_EXTRAS)),
            _MUTATED,
            source=_SUBDOC,
            since="4.5",
            document=True,
        ),
        _part("get_count", 0xD2, mutation=False, since="5.0"),
        _part("replace_body_with_xattr", 0xD3, since="7.0"),
        _command(
            "range_scan_create",
            0xDA,
            (Layout(value=MUST, body=JSON),),
            (Layout(value=MUST, note="the uuid of the scan, 16 bytes"),),
            since="7.6",
            source="docs/range_scans/range_scan_create.md",
        ),
        _command(
            "range_scan_continue",
            0xDB,
            (Layout(extras=(*_SCAN_ID, u32("item_limit"), u32("time_limit"), u32("byte_limit"))),),
            _SCANNED,
            since="7.6",
            source=_RANGE_SCAN_CONTINUE,
        ),
        _command(
            "range_scan_cancel",
            0xDC,
            (Layout(extras=_SCAN_ID),),
            (Layout(),),
            since="7.6",
            source="daemon/mcbp_validators.cc",
        ),
        Message(
            "get_error_map",
            0xFE,
            (Layout(content=(u16("version"),)),),
            Side.EITHER,
            "docs/ErrorMap.md",
            (Layout(value=MAY, body=JSON),),
            since="5.0",
        ),
        Message(
            "clustermap_change_notification",
            0x01,
            (
                Layout(extras=(i64("epoch"), i64("revision")), key=MAY, value=MAY, body=JSON, since="7.1"),
                Layout(extras=(u32("revision"),), key=MAY, value=MAY, body=JSON),
            ),
            Side.PRODUCER,
            _PROTOCOL,
            kind=Kind.SERVER_REQUEST,
            role=Role.CONTROL,
            since="5.5",
            enabled_by="HELLO Duplex and ClustermapChangeNotification(Brief)",
        ),
        *(
            Message(
                name,
                opcode,
                (Layout(key=MAY, value=MAY, body=TEXT_OR_JSON),),
                Side.PRODUCER,
                _PROTOCOL,
                (Layout(value=MAY, body=TEXT_OR_JSON),),
                kind=Kind.SERVER_REQUEST,
                role=Role.CONTROL,
                since="6.5",
                note="only to providers of authentication",
            )
            for name, opcode in (("authenticate", 0x02), ("active_external_users", 0x03), ("get_authorization", 0x04))
        ),
    ),
)
