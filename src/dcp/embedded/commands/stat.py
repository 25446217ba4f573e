"""STAT: groups of statistics. Each statistic is a response of its own, and an empty response ends the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dcp.embedded.commands.documents import live_vbucket
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.dcp_connection import DcpConnection
from dcp.embedded.refusals import Refusal
from dcp.embedded.store import VbucketStore
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status, VbucketState

Statistic = tuple[str, object]


def stat(connection: ServerConnection, frame: Frame) -> Sequence[Frame]:
    group, _, argument = frame.key.decode(errors="replace").partition(" ")
    if group in _VBUCKET_GROUPS:
        found = [one for vbucket in _chosen(connection, argument) for one in _VBUCKET_GROUPS[group](vbucket)]
    elif group in _NODE_GROUPS and not argument:
        found = list(_NODE_GROUPS[group](connection))
    else:
        raise Refusal(Status.KEY_ENOENT)
    return [*(response(frame, key=name.encode(), value=str(value).encode()) for name, value in found), response(frame)]


def _chosen(connection: ServerConnection, argument: str) -> list[VbucketStore]:
    if not argument:
        return [vbucket for _, vbucket in sorted(connection.node.vbuckets.items())]
    if not argument.isdecimal() or len(argument) > len(str(0xFFFF)):
        raise Refusal(Status.EINVAL, "Expected the number of a vbucket")
    return [live_vbucket(connection, int(argument))]


# Groups of a vbucket.


def _seqnos(vbucket: VbucketStore) -> Iterator[Statistic]:
    high, persisted = vbucket.high_seqno, vbucket.persisted_seqno
    yield from _named(
        vbucket,
        high_seqno=high,
        abs_high_seqno=high,
        last_persisted_seqno=persisted,
        purge_seqno=vbucket.purge_seqno,
        uuid=vbucket.log.newest.vbuuid,
        last_persisted_snap_start=persisted,
        last_persisted_snap_end=persisted,
        high_prepared_seqno=vbucket.high_prepared_seqno,
        high_completed_seqno=vbucket.high_completed_seqno,
        max_visible_seqno=vbucket.visible_seqno,
    )


def _details(vbucket: VbucketStore) -> Iterator[Statistic]:
    yield f"vb_{vbucket.number}", vbucket.state.name.lower()
    yield from _named(
        vbucket,
        high_seqno=vbucket.high_seqno,
        purge_seqno=vbucket.purge_seqno,
        uuid=vbucket.log.newest.vbuuid,
        num_items=sum(getattr(item, "alive", False) for item in vbucket),
    )


def _failovers(vbucket: VbucketStore) -> Iterator[Statistic]:
    yield from _named(vbucket, num_entries=len(vbucket.log), num_erroneous_entries_erased=0)
    for position, branch in enumerate(vbucket.log):
        yield f"vb_{vbucket.number}:{position}:id", branch.vbuuid
        yield f"vb_{vbucket.number}:{position}:seq", branch.seqno


def _named(vbucket: VbucketStore, **statistics: object) -> Iterator[Statistic]:
    for name, value in statistics.items():
        yield f"vb_{vbucket.number}:{name}", value


# Groups of a node.


def _general(connection: ServerConnection) -> Iterator[Statistic]:
    vbuckets = connection.node.vbuckets.values()
    major, minor = connection.bucket.release.number
    yield "version", f"{major}.{minor}.0"
    yield "ep_bucket_type", "couchbase"
    yield "curr_items", sum(getattr(item, "alive", False) for vb in vbuckets for item in vb if _is_active(vb))
    for state in VbucketState:
        if state is not VbucketState.ALIVE:
            yield f"vb_{state.name.lower()}_num", sum(vbucket.state is state for vbucket in vbuckets)
    # Writes that are not on disk yet: in the queue, and of those that the flusher has taken out of it.
    yield "ep_queue_size", sum(vbucket.high_seqno - vbucket.persisted_seqno for vbucket in vbuckets)
    yield "ep_flusher_todo", 0
    yield "ep_dcp_producer_count", len(connection.node.consumers)


def _is_active(vbucket: VbucketStore) -> bool:
    return vbucket.state is VbucketState.ACTIVE


def _dcp(connection: ServerConnection) -> Iterator[Statistic]:
    for consumer in connection.node.consumers.values():
        for timer in consumer.timers:
            if isinstance(timer, DcpConnection):
                yield from _dcp_connection(timer)
    yield "ep_dcp_count", len(connection.node.consumers)
    yield "ep_dcp_producer_count", len(connection.node.consumers)


def _dcp_connection(opened: DcpConnection) -> Iterator[Statistic]:
    name = f"eq_dcpq:{opened.name}"
    yield f"{name}:type", "producer"
    yield f"{name}:max_buffer_bytes", opened.connection.out.window
    yield f"{name}:unacked_bytes", opened.connection.out.outstanding
    streams = [stream for stream in opened.streams.values() if not stream.ended]
    yield f"{name}:num_streams", len(streams)
    for stream in streams:
        prefix = f"{name}:stream_{stream.vbucket.number}"
        yield f"{prefix}_opaque", stream.opaque
        yield f"{prefix}_start_seqno", stream.granted.start
        yield f"{prefix}_end_seqno", stream.granted.end
        yield f"{prefix}_last_read_seqno", stream.cursor


_VBUCKET_GROUPS: dict[str, Callable[[VbucketStore], Iterator[Statistic]]] = {
    "vbucket-seqno": _seqnos,
    "vbucket-details": _details,
    "failovers": _failovers,
}
_NODE_GROUPS: dict[str, Callable[[ServerConnection], Iterator[Statistic]]] = {"": _general, "dcp": _dcp}

HANDLERS: dict[str, Handler] = {"stat": stat}
