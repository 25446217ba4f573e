"""Range scans: the documents of a collection in one vbucket, in order of key, as they were when the scan was created.

The formats are those of docs/range_scans in kv_engine.
"""

from __future__ import annotations

import binascii
import json
import random
import struct
from base64 import b64decode
from dataclasses import dataclass
from typing import Any, TypeVar

from dcp.embedded.bucket import RangeScan
from dcp.embedded.commands.collections import unknown_collection
from dcp.embedded.commands.documents import active_vbucket, response_value
from dcp.embedded.commands.seqnos import wait_for_persistence
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.document import inflate
from dcp.embedded.refusals import Refusal
from dcp.embedded.release import ReleaseNumber
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.wire.document import Datatype, unsigned_leb128
from dcp.wire.frame import Frame
from dcp.wire.memcached import Feature, Status

_SINCE: ReleaseNumber = (7, 6)
_LONGEST_KEY, _LONGEST_NAME = 250, 50
# Seconds: range_scan_max_lifetime of kv_engine.
_LIFETIME = 180.0
# numScansThreshold of kv_engine, and the share of it that range_scan_kv_store_scan_ratio leaves to range scans.
_MOST_SCANS = 4096 * 8 // 10
# Bytes of a response that are sent at once: range_scan_read_buffer_send_size of kv_engine.
_BATCH = 8192
_METADATA = struct.Struct(">IIQQB")
# Flag of a response: it has documents, not keys alone.
_DOCUMENTS = 1

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Request for a scan: a range of keys, or a sample."""

    collection_id: int
    keys_only: bool
    xattrs: bool
    first: bytes
    last: bytes | None
    exclusive_first: bool
    exclusive_last: bool
    samples: int | None
    seed: int

    def has(self, key: bytes) -> bool:
        """Return whether a key is in the range."""
        after = key > self.first if self.exclusive_first else key >= self.first
        if self.last is None:
            return after
        return after and (key < self.last if self.exclusive_last else key <= self.last)


def create(connection: ServerConnection, frame: Frame) -> Frame | None:
    _check_release(connection)
    if frame.datatype != Datatype.JSON or not connection.has(Feature.JSON):
        raise Refusal(Status.EINVAL, "Datatype must be JSON")
    options = _options(frame.value)
    wanted = _wanted(connection, options)
    vbucket = active_vbucket(connection, frame.vbucket)
    _check_collection(connection, wanted.collection_id)
    snapshot = _get(options, "snapshot_requirements", dict)
    if snapshot is None:
        return _created(connection, frame, vbucket, wanted)
    uuid, seqno = _vbuuid(snapshot), _needed(snapshot, "seqno", int)
    exists, timeout = _get(snapshot, "seqno_exists", bool), _get(snapshot, "timeout_ms", int)

    def answer() -> Frame:
        if vbucket.log.newest.vbuuid != uuid:
            raise Refusal(Status.VBUUID_NOT_EQUAL)
        if exists and all(item.seqno != seqno for item in vbucket):
            raise Refusal(Status.NOT_STORED)
        return _created(connection, frame, vbucket, wanted)

    if vbucket.persisted_seqno >= seqno:
        return answer()
    if timeout is None:
        raise Refusal(Status.ETMPFAIL)
    return wait_for_persistence(connection, frame, vbucket, seqno, timeout / 1000, answer)


def _created(connection: ServerConnection, frame: Frame, vbucket: VbucketStore, wanted: _Wanted) -> Frame:
    bucket = connection.bucket
    found = [item for item in vbucket.persisted_documents() if item.collection_id == wanted.collection_id]
    if wanted.samples is None:
        found = [item for item in found if wanted.has(item.key)]
    if not found:
        raise Refusal(Status.KEY_ENOENT)
    if wanted.samples is not None and wanted.samples < len(found):
        share, chance = wanted.samples / len(found), random.Random(wanted.seed)
        found = [item for item in sorted(found, key=_key) if chance.random() < share]
    scans = bucket.range_scans
    for number in [number for number, scan in scans.items() if scan.expires_at <= connection.now]:
        del scans[number]
    if len(scans) >= _MOST_SCANS:
        raise Refusal(Status.EBUSY)
    uuid = connection.random_bytes(16)
    left = sorted(found, key=_key, reverse=True)
    expires = connection.now + _LIFETIME
    scans[uuid] = RangeScan(vbucket, wanted.collection_id, wanted.keys_only, wanted.xattrs, left, expires)
    return response(frame, value=uuid)


def _key(item: StoredItem) -> bytes:
    return item.key


def continue_(connection: ServerConnection, frame: Frame) -> list[Frame]:
    _check_release(connection)
    uuid, scan = _scan(connection, frame)
    try:
        _check_collection(connection, scan.collection_id)
    except Refusal:
        del connection.bucket.range_scans[uuid]
        raise
    # The time limit is never reached: the clock of a connection stands still while it handles a request.
    parts, more = _batches(connection, scan, int(frame.fields["item_limit"]), int(frame.fields["byte_limit"]))
    if not more:
        del connection.bucket.range_scans[uuid]
    fields = {"flags": 0 if scan.keys_only else _DOCUMENTS}
    last = Status.RANGE_SCAN_MORE if more else Status.RANGE_SCAN_COMPLETE
    statuses = [*[Status.SUCCESS] * (len(parts) - 1), last]
    return [response(frame, status, fields=fields, value=part) for status, part in zip(statuses, parts, strict=True)]


def _batches(connection: ServerConnection, scan: RangeScan, items: int, size: int) -> tuple[list[bytes], bool]:
    """Take documents up to a limit, 0 for none; return them in batches, the last of which may be empty.

    The flag is true if a limit was reached: as on servers, even if nothing is left.
    """
    parts: list[bytes] = []
    batch, taken, taken_bytes = bytearray(), 0, 0
    while scan.left:
        item = scan.left.pop()
        encoded, content = _encoded(connection, scan, item)
        batch += encoded
        taken += 1
        taken_bytes += content
        if 0 < items <= taken or 0 < size <= taken_bytes:
            return [*parts, bytes(batch)], True
        if len(batch) >= _BATCH:
            parts.append(bytes(batch))
            batch.clear()
    return [*parts, bytes(batch)], False


def _encoded(connection: ServerConnection, scan: RangeScan, item: StoredItem) -> tuple[bytes, int]:
    """Return an entry of a response, and the number of its bytes that count for the limit."""
    key = unsigned_leb128(len(item.key)) + item.key
    if scan.keys_only:
        return key, len(item.key)
    if scan.xattrs and item.datatype & Datatype.XATTR:
        compressed = item.datatype & Datatype.SNAPPY
        value, datatype = inflate(item.value) if compressed else item.value, item.datatype - compressed
    else:
        value, datatype = response_value(connection, item)
    metadata = _METADATA.pack(item.flags, item.expiry, item.seqno, item.cas, datatype)
    return metadata + key + unsigned_leb128(len(value)) + value, len(item.key) + len(value)


def cancel(connection: ServerConnection, frame: Frame) -> Frame:
    _check_release(connection)
    uuid, _ = _scan(connection, frame)
    del connection.bucket.range_scans[uuid]
    return response(frame)


def _scan(connection: ServerConnection, frame: Frame) -> tuple[bytes, RangeScan]:
    """Return the scan that a request names, which any connection to the node may continue."""
    vbucket = active_vbucket(connection, frame.vbucket)
    uuid = struct.pack(">QQ", frame.fields["scan_id_high"], frame.fields["scan_id_low"])
    scan = connection.bucket.range_scans.get(uuid)
    if scan is None or scan.vbucket is not vbucket or scan.expires_at <= connection.now:
        raise Refusal(Status.KEY_ENOENT)
    return uuid, scan


def _check_release(connection: ServerConnection) -> None:
    if connection.bucket.release.number < _SINCE:
        raise Refusal(Status.UNKNOWN_COMMAND)


def _check_collection(connection: ServerConnection, collection_id: int) -> None:
    manifest = connection.bucket.manifest
    if collection_id not in manifest.collections():
        raise unknown_collection(Status.UNKNOWN_COLLECTION, manifest)


# The request, JSON.


def _options(value: bytes) -> dict[str, Any]:
    try:
        options = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Refusal(Status.EINVAL, f"Failed to parse the request: {error}") from None
    if not isinstance(options, dict):
        raise Refusal(Status.EINVAL, "Expected an object")
    return options


def _wanted(connection: ServerConnection, options: dict[str, Any]) -> _Wanted:
    chosen, sampling = _get(options, "range", dict), _get(options, "sampling", dict)
    if chosen is not None and sampling is not None:
        raise Refusal(Status.EINVAL, "Expected a range or a sampling, found both")
    first, exclusive_first = (b"", False) if chosen is None else _bound(chosen, "start", "excl_start")
    last, exclusive_last = (None, False) if chosen is None else _bound(chosen, "end", "excl_end")
    if len((_get(options, "name", str) or "").encode()) > _LONGEST_NAME:
        raise Refusal(Status.EINVAL, "name exceeds 50 bytes")
    keys_only, xattrs = bool(_get(options, "key_only", bool)), _get(options, "include_xattrs", bool)
    # Releases before 8.0 do not know the name, and ignore it as any other.
    if connection.bucket.release.number < _XATTRS_SINCE:
        xattrs = None
    if xattrs is not None and not connection.has(Feature.XATTR):
        raise Refusal(Status.NOT_SUPPORTED, "Client does not support XATTRs")
    if xattrs and keys_only:
        raise Refusal(Status.EINVAL, "cannot set key_only:true and include_xattrs:true")
    samples = None if sampling is None else _needed(sampling, "samples", int)
    seed = _get(sampling or {}, "seed", int) or 0
    collection_id = _collection_id(options)
    return _Wanted(collection_id, keys_only, bool(xattrs), first, last, exclusive_first, exclusive_last, samples, seed)


_XATTRS_SINCE: ReleaseNumber = (8, 0)


def _bound(chosen: dict[str, Any], inclusive: str, exclusive: str) -> tuple[bytes, bool]:
    """Return an end of the range, and whether it is exclusive."""
    given = [(name, text) for name in (inclusive, exclusive) if (text := _get(chosen, name, str)) is not None]
    if len(given) != 1:
        problem = f"range included both {inclusive} and {exclusive}"
        raise Refusal(Status.EINVAL, problem if given else f"range did not include {inclusive} or {exclusive}")
    ((name, text),) = given
    try:
        key = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal(Status.EINVAL, f"Expected base64 as {name}") from None
    if len(key) > _LONGEST_KEY:
        raise Refusal(Status.EINVAL, f"invalid key size in range {name}:{len(key)}")
    return key, name == exclusive


def _collection_id(options: dict[str, Any]) -> int:
    text = _get(options, "collection", str)
    try:
        return 0 if text is None else int(text, 16)
    except ValueError:
        raise Refusal(Status.EINVAL, "Invalid formatting of the collection field") from None


def _vbuuid(snapshot: dict[str, Any]) -> int:
    text = _needed(snapshot, "vb_uuid", str)
    if not text.isdecimal() or len(text) > len(str(1 << 64)):
        raise Refusal(Status.EINVAL, "Expected a decimal number as vb_uuid")
    return int(text)


def _needed(options: dict[str, Any], name: str, kind: type[Kind]) -> Kind:
    found = _get(options, name, kind)
    if found is None:
        raise Refusal(Status.EINVAL, f"Expected {name}")
    return found


def _get(options: dict[str, Any], name: str, kind: type[Kind]) -> Kind | None:
    """Return an option, None if it is missing; refuse another type. Numbers are not negative."""
    found = options.get(name)
    # A bool is an int in Python, and none in JSON.
    wrong = not isinstance(found, kind) or (kind is int and isinstance(found, bool)) or (kind is int and found < 0)  # type: ignore[operator]
    if name in options and wrong:
        raise Refusal(Status.EINVAL, f"Wrong type or value of {name}")
    return found if name in options else None


HANDLERS: dict[str, Handler] = {
    "range_scan_create": create,
    "range_scan_continue": continue_,
    "range_scan_cancel": cancel,
}
