"""Stream requests: the checks of servers, in their order. The first one that fails determines the response."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcp.embedded.manifest import BucketManifest
from dcp.embedded.negotiated import Negotiated
from dcp.embedded.rollback import Resume, rollback_point
from dcp.embedded.store import VbucketStore
from dcp.wire.dcp import StreamFlag
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.memcached import Status, VbucketState


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """Fields of a stream request. `filter` is None if the value of the request is invalid."""

    flags: StreamFlag
    start: int
    end: int
    vbuuid: int
    snapshot_start: int
    snapshot_end: int
    filter: StreamFilter | None = field(default_factory=StreamFilter)
    has_value: bool = False


@dataclass(frozen=True, slots=True)
class GrantedStream:
    """Stream to send: items of `collections` (None for all) with seqnos above `start`, up to `end`."""

    start: int
    end: int
    snapshot_start: int
    snapshot_end: int
    collections: frozenset[int] | None
    stream_id: int | None = None
    scope: int | None = None
    disk_only: bool = False
    ignore_purged: bool = False


@dataclass(frozen=True, slots=True)
class RefusedStream:
    """Status of a refused request; with ROLLBACK, also the seqno to roll back to."""

    status: Status
    rollback_seqno: int | None = None


def decide(
    request: StreamRequest,
    negotiated: Negotiated,
    vbucket: VbucketStore | None,
    manifest: BucketManifest,
    *,
    streaming: bool = False,
) -> GrantedStream | RefusedStream:
    """Grant or refuse a request.

    `vbucket` is the node's copy, None if it has none. `streaming` says whether the connection has a live stream of this
    vbucket and stream id already.
    """
    # Clients depend on the order of these checks, for example on ROLLBACK for a start above the high seqno, which
    # would be ERANGE by the last check.
    if request.flags & ~int(negotiated.release.stream_flags):
        return RefusedStream(Status.EINVAL)
    if StreamFlag.TAKE_OVER in request.flags:
        # Takeovers belong to rebalances between servers, and this cluster moves its vbuckets without streams.
        return RefusedStream(Status.NOT_SUPPORTED)
    if vbucket is None or not _may_stream(vbucket, request.flags):
        return RefusedStream(Status.NOT_MY_VBUCKET)
    start, first, last, vbuuid = _window(request, vbucket)
    if (negotiated.xattrs or negotiated.collections) and not negotiated.noop:
        return RefusedStream(Status.NOT_SUPPORTED)
    if start > request.end or not first <= start <= last:
        return RefusedStream(Status.ERANGE)
    chosen = _collections(request, negotiated, manifest)
    if isinstance(chosen, RefusedStream):
        return chosen
    if streaming:
        return RefusedStream(Status.KEY_EEXISTS)
    assert request.filter is not None
    high = _high_seqno(vbucket, chosen)
    resume = Resume(
        start,
        vbuuid,
        first,
        last,
        strict=StreamFlag.STRICT_VB_UUID in request.flags,
        ignore_purged=StreamFlag.IGNORE_PURGED_TOMBSTONES in request.flags,
        purge_seqno=request.filter.purge_seqno or 0,
        filtered_high=None if chosen is None else high,
    )
    point = rollback_point(resume, vbucket.log, vbucket.high_seqno, vbucket.purge_seqno, negotiated.release.rollback)
    if point is not None:
        return RefusedStream(Status.ROLLBACK, point)
    end = request.end
    if StreamFlag.TO_LATEST in request.flags:
        end = high
    elif StreamFlag.DISK_ONLY in request.flags:
        end = vbucket.persisted_seqno
    if start > end or start > vbucket.high_seqno:
        return RefusedStream(Status.ERANGE)
    # Nothing of this snapshot was received, and its end was lost: servers forget the announced end without a word.
    if start == first and last > vbucket.high_seqno:
        last = first
    return GrantedStream(
        start,
        end,
        first,
        last,
        chosen,
        request.filter.sid,
        request.filter.scope,
        disk_only=StreamFlag.DISK_ONLY in request.flags,
        ignore_purged=StreamFlag.IGNORE_PURGED_TOMBSTONES in request.flags,
    )


def _may_stream(vbucket: VbucketStore, flags: StreamFlag) -> bool:
    if StreamFlag.ACTIVE_VB_ONLY in flags:
        return vbucket.state is VbucketState.ACTIVE
    return vbucket.state in (VbucketState.ACTIVE, VbucketState.REPLICA)


def _window(request: StreamRequest, vbucket: VbucketStore) -> tuple[int, int, int, int]:
    """Return start seqno, snapshot start, snapshot end and vbuuid of the resume position."""
    if StreamFlag.FROM_LATEST in request.flags:
        high = vbucket.high_seqno
        return high, high, high, request.vbuuid or vbucket.log.newest.vbuuid
    return request.start, request.snapshot_start, request.snapshot_end, request.vbuuid


def _collections(
    request: StreamRequest, negotiated: Negotiated, manifest: BucketManifest
) -> frozenset[int] | RefusedStream | None:
    """Return the ids of the requested collections; None for all."""
    wanted = request.filter
    if wanted is None or (request.has_value and not negotiated.collections):
        return RefusedStream(Status.EINVAL)
    # Clients without collections get the default collection only.
    chosen: frozenset[int] | None = None if negotiated.collections else frozenset({0})
    existing = manifest.collections()
    if not negotiated.collections and 0 not in existing:
        return RefusedStream(Status.EINVAL)
    if wanted.collections is not None:
        chosen = frozenset(wanted.collections)
        if not chosen <= existing.keys():
            return RefusedStream(Status.UNKNOWN_COLLECTION)
    if wanted.scope is not None:
        scopes = [scope for scope in manifest.scopes if scope.id == wanted.scope]
        if not scopes:
            return RefusedStream(Status.UNKNOWN_SCOPE)
        chosen = frozenset(collection.id for collection in scopes[0].collections)
    if negotiated.release.checks_manifest_uid and (wanted.uid or 0) > manifest.uid:
        return RefusedStream(Status.COLLECTIONS_MANIFEST_IS_AHEAD)
    if negotiated.stream_ids != (wanted.sid is not None) or wanted.sid == 0:
        return RefusedStream(Status.DCP_STREAM_ID_INVALID)
    if negotiated.sync_writes and wanted.collections is not None:
        return RefusedStream(Status.NOT_SUPPORTED)
    return chosen


def _high_seqno(vbucket: VbucketStore, collections: frozenset[int] | None) -> int:
    """Return the highest seqno of these collections."""
    if collections is None or (not vbucket.mixed and 0 in collections):
        return vbucket.high_seqno
    return max((vbucket.highs.get(collection, 0) for collection in collections), default=0)
