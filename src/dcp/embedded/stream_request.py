"""What a producer answers to a stream request: the checks of servers, in their order; the first that fails answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from dcp.embedded.manifest import BucketManifest
from dcp.embedded.release import NEWEST_RELEASE, Release
from dcp.embedded.rollback import Resume, Rules, rollback_point
from dcp.embedded.store import VbucketStore
from dcp.wire.dcp import StreamFlag
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.memcached import Status, VbucketState


@dataclass(frozen=True, slots=True)
class Agreed:
    """What a connection agreed on before it asks for a stream."""

    collections: bool = False
    xattrs: bool = False
    noop: bool = False
    stream_ids: bool = False
    sync_writes: bool = False


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A stream request. `filter` is None where its value is none that servers take."""

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
    """The stream that will be sent: items above `start`, of these collections (None for all), up to `end`."""

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
    """A status; with ROLLBACK the seqno to go back to."""

    status: Status
    rollback_seqno: int | None = None


def decide(
    request: StreamRequest,
    connection: Agreed,
    vbucket: VbucketStore | None,
    manifest: BucketManifest,
    *,
    streaming: bool = False,
    release: Release = NEWEST_RELEASE,
) -> GrantedStream | RefusedStream:
    """`streaming`: whether the connection has a live stream of this vbucket and stream id."""
    if request.flags & ~int(release.stream_flags):
        return RefusedStream(Status.EINVAL)
    if StreamFlag.TAKE_OVER in request.flags:
        # The cluster moves its vbuckets itself.
        return RefusedStream(Status.NOT_SUPPORTED)
    if vbucket is None or not _streams(vbucket, request.flags):
        return RefusedStream(Status.NOT_MY_VBUCKET)
    start, first, last, vbuuid = _window(request, vbucket)
    if (connection.xattrs or connection.collections) and not connection.noop:
        return RefusedStream(Status.NOT_SUPPORTED)
    if start > request.end or not first <= start <= last:
        return RefusedStream(Status.ERANGE)
    chosen = _collections(request, connection, manifest, release)
    if isinstance(chosen, RefusedStream):
        return chosen
    if streaming:
        return RefusedStream(Status.KEY_EEXISTS)
    high = _high(vbucket, chosen)
    point = _rollback(
        request, vbucket, (start, vbuuid, first, last), high if chosen is not None else None, release.rollback
    )
    if point is not None:
        return RefusedStream(Status.ROLLBACK, point)
    end = request.end
    if StreamFlag.TO_LATEST in request.flags:
        end = high
    elif StreamFlag.DISK_ONLY in request.flags:
        end = vbucket.persisted_seqno
    if start > end or start > vbucket.high_seqno:
        return RefusedStream(Status.ERANGE)
    if start == first and last > vbucket.high_seqno:
        last = first
    assert request.filter is not None
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


def _streams(vbucket: VbucketStore, flags: StreamFlag) -> bool:
    if StreamFlag.ACTIVE_VB_ONLY in flags:
        return vbucket.state is VbucketState.ACTIVE
    return vbucket.state in (VbucketState.ACTIVE, VbucketState.REPLICA)


def _window(request: StreamRequest, vbucket: VbucketStore) -> tuple[int, int, int, int]:
    """Where to start, inside which snapshot, and of which history."""
    if StreamFlag.FROM_LATEST in request.flags:
        high = vbucket.high_seqno
        return high, high, high, request.vbuuid or vbucket.log.newest.vbuuid
    return request.start, request.snapshot_start, request.snapshot_end, request.vbuuid


def _collections(
    request: StreamRequest, connection: Agreed, manifest: BucketManifest, release: Release
) -> frozenset[int] | RefusedStream | None:
    """The ids that the request is for; None for all."""
    wanted = request.filter
    if wanted is None or (request.has_value and not connection.collections):
        return RefusedStream(Status.EINVAL)
    chosen: frozenset[int] | None = None if connection.collections else frozenset({0})
    there = manifest.collections()
    if not connection.collections and 0 not in there:
        return RefusedStream(Status.EINVAL)
    if wanted.collections is not None:
        chosen = frozenset(wanted.collections)
        if not chosen <= there.keys():
            return RefusedStream(Status.UNKNOWN_COLLECTION)
    if wanted.scope is not None:
        scopes = [scope for scope in manifest.scopes if scope.id == wanted.scope]
        if not scopes:
            return RefusedStream(Status.UNKNOWN_SCOPE)
        chosen = frozenset(collection.id for collection in scopes[0].collections)
    if release.checks_manifest_uid and (wanted.uid or 0) > manifest.uid:
        return RefusedStream(Status.COLLECTIONS_MANIFEST_IS_AHEAD)
    if connection.stream_ids != (wanted.sid is not None) or wanted.sid == 0:
        return RefusedStream(Status.DCP_STREAM_ID_INVALID)
    if connection.sync_writes and wanted.collections is not None:
        return RefusedStream(Status.NOT_SUPPORTED)
    return chosen


def _high(vbucket: VbucketStore, collections: frozenset[int] | None) -> int:
    """The highest seqno of these collections."""
    if collections is None or (not vbucket.mixed and 0 in collections):
        return vbucket.high_seqno
    return max((vbucket.highs.get(collection, 0) for collection in collections), default=0)


def _rollback(
    request: StreamRequest,
    vbucket: VbucketStore,
    window: tuple[int, int, int, int],
    filtered_high: int | None,
    rules: Rules,
) -> int | None:
    assert request.filter is not None
    resume = Resume(
        *window,
        strict=StreamFlag.STRICT_VB_UUID in request.flags,
        ignore_purged=StreamFlag.IGNORE_PURGED_TOMBSTONES in request.flags,
        purge_seqno=request.filter.purge_seqno or 0,
        filtered_high=filtered_high,
    )
    return rollback_point(resume, vbucket.log, vbucket.high_seqno, vbucket.purge_seqno, rules)
