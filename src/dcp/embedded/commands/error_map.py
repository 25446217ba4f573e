"""The error map: attributes of each status, by which clients handle statuses that they do not know."""

from __future__ import annotations

from typing import Any

from dcp.wire.memcached import Status

_VERSION, _REVISION = 2, 9

_ITEM, _INPUT, _SUPPORT, _AUTH = ("item-only",), ("invalid-input",), ("support",), ("conn-state-invalidated", "auth")
_LATER, _NOW, _FULL = ("temp", "retry-later"), ("temp", "retry-now"), ("item-only", "system-constraint", "no-retry")
_RATE, _SUBDOC = (*_LATER, "rate-limit"), ("subdoc",)

# Copied from the servers' own map: etc/couchbase/kv/error_maps/error_map_v2.json in kv_engine.
ATTRIBUTES: dict[Status, tuple[str, ...]] = {
    Status.SUCCESS: ("success",),
    Status.KEY_ENOENT: _ITEM,
    Status.KEY_EEXISTS: _ITEM,
    Status.E2BIG: (*_ITEM, *_INPUT),
    Status.EINVAL: ("internal", *_INPUT),
    Status.NOT_STORED: ("internal", *_ITEM),
    Status.DELTA_BADVAL: (*_ITEM, *_INPUT),
    Status.NOT_MY_VBUCKET: ("fetch-config", *_INPUT),
    Status.NO_BUCKET: ("conn-state-invalidated",),
    Status.LOCKED: ("item-locked", *_ITEM, "retry-now"),
    Status.DCP_STREAM_NOT_FOUND: ("conn-state-invalidated",),
    Status.OPAQUE_NO_MATCH: ("conn-state-invalidated",),
    Status.EWOULD_THROTTLE: _RATE,
    Status.ECONFIG_ONLY: ("fetch-config", "retry-now"),
    Status.NOT_LOCKED: _ITEM,
    Status.CAS_VALUE_INVALID: _ITEM,
    Status.AUTH_STALE: _AUTH,
    Status.AUTH_ERROR: _AUTH,
    Status.AUTH_CONTINUE: ("special-handling",),
    Status.ERANGE: _INPUT,
    Status.ROLLBACK: ("dcp", "special-handling"),
    Status.EACCESS: _SUPPORT,
    Status.NOT_INITIALIZED: ("conn-state-invalidated",),
    Status.ENCRYPTION_KEY_NOT_AVAILABLE: ("special-handling",),
    Status.CHECKSUM_MISMATCH: ("special-handling",),
    Status.EXPIRY_OVERFLOW: _FULL,
    Status.LOCK_EXPIRY_OVERFLOW: _FULL,
    Status.RATE_LIMITED_INGRESS: _RATE,
    Status.RATE_LIMITED_EGRESS: _RATE,
    Status.RATE_LIMITED_CONNECTIONS: ("conn-state-invalidated", "rate-limit"),
    Status.RATE_LIMITED_COMMANDS: _RATE,
    Status.BUCKET_SIZE_LIMIT_EXCEEDED: _FULL,
    Status.BUCKET_RESIDENT_RATIO_TOO_LOW: _FULL,
    Status.BUCKET_DATA_SIZE_TOO_BIG: _FULL,
    Status.BUCKET_DISK_SPACE_TOO_LOW: _FULL,
    Status.BUCKET_PAUSED: _SUPPORT,
    Status.CANCELLED: (*_ITEM, "retry-now"),
    Status.UNKNOWN_FRAME_INFO: _SUPPORT,
    Status.UNKNOWN_COMMAND: _SUPPORT,
    Status.ENOMEM: _LATER,
    Status.NOT_SUPPORTED: _SUPPORT,
    Status.EINTERNAL: ("internal", "conn-state-invalidated"),
    Status.EBUSY: _NOW,
    Status.ETMPFAIL: _NOW,
    Status.XATTR_EINVAL: _INPUT,
    Status.UNKNOWN_COLLECTION: _INPUT,
    Status.CANNOT_APPLY_COLLECTIONS_MANIFEST: _INPUT,
    Status.UNKNOWN_SCOPE: _INPUT,
    Status.DCP_STREAM_ID_INVALID: _INPUT,
    Status.DURABILITY_INVALID_LEVEL: _INPUT,
    Status.DURABILITY_IMPOSSIBLE: (*_ITEM, *_INPUT),
    Status.SYNC_WRITE_IN_PROGRESS: (*_ITEM, "retry-later"),
    Status.SYNC_WRITE_AMBIGUOUS: _ITEM,
    Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS: (*_ITEM, "retry-later"),
    Status.RANGE_SCAN_CANCELLED: ("success",),
    Status.RANGE_SCAN_MORE: ("success",),
    Status.RANGE_SCAN_COMPLETE: ("success",),
    Status.VBUUID_NOT_EQUAL: _INPUT,
    Status.SUBDOC_PATH_ENOENT: (*_SUBDOC, *_ITEM),
    Status.SUBDOC_PATH_MISMATCH: (*_SUBDOC, *_ITEM),
    Status.SUBDOC_PATH_EINVAL: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_PATH_E2BIG: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_PATH_E2DEEP: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_VALUE_CANTINSERT: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_DOC_NOTJSON: (*_SUBDOC, *_ITEM),
    Status.SUBDOC_NUM_ERANGE: (*_SUBDOC, *_ITEM),
    Status.SUBDOC_DELTA_EINVAL: (*_SUBDOC, *_ITEM),
    Status.SUBDOC_PATH_EEXISTS: (*_SUBDOC, *_ITEM),
    Status.SUBDOC_VALUE_ETOODEEP: (*_SUBDOC, *_INPUT, *_ITEM),
    Status.SUBDOC_INVALID_COMBO: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_MULTI_PATH_FAILURE: (*_SUBDOC, "special-handling"),
    Status.SUBDOC_SUCCESS_DELETED: ("item-deleted", "success", *_SUBDOC),
    Status.SUBDOC_XATTR_INVALID_FLAG_COMBO: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_XATTR_INVALID_KEY_COMBO: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_XATTR_UNKNOWN_MACRO: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_XATTR_UNKNOWN_VATTR: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_XATTR_CANT_MODIFY_VATTR: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_MULTI_PATH_FAILURE_DELETED: ("item-deleted", *_SUBDOC, "special-handling"),
    Status.SUBDOC_INVALID_XATTR_ORDER: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO: (*_SUBDOC, *_INPUT),
    Status.SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS: (*_SUBDOC, *_ITEM),
    Status.SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE: (*_SUBDOC, *_ITEM),
    Status.SUBDOC_FIELD_NOT_BINARY_VALUE: (*_SUBDOC, *_ITEM),
}


def error_map(version: int) -> dict[str, Any]:
    """Return the map for a client that understands versions up to `version`."""
    errors = {
        f"{status:x}": {"name": status.name, "desc": status.name.replace("_", " ").capitalize(), "attrs": list(attrs)}
        for status, attrs in ATTRIBUTES.items()
    }
    return {"version": min(version, _VERSION), "revision": _REVISION, "errors": errors}
