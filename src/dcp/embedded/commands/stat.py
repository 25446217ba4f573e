"""Statistics, a group at a time: each is an answer of its own, and an empty one ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dcp.embedded.commands.seqnos import living_vbucket
from dcp.embedded.connection import Handler, Refusal, ServerConnection, answer
from dcp.embedded.dcp_connection import DcpConnection
from dcp.embedded.store import VbucketStore
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status, VbucketState

Statistic = tuple[str, object]


def stat(connection: ServerConnection, frame: Frame) -> Sequence[Frame]:
    group, _, argument = frame.key.decode(errors="replace").partition(" ")
    if group in _OF_VBUCKETS:
        found = [one for vbucket in _chosen(connection, argument) for one in _OF_VBUCKETS[group](vbucket)]
    elif group in _OF_NODES and not argument:
        found = list(_OF_NODES[group](connection))
    else:
        raise Refusal(Status.KEY_ENOENT)
    return [*(answer(frame, key=name.encode(), value=str(value).encode()) for name, value in found), answer(frame)]


def _chosen(connection: ServerConnection, argument: str) -> list[VbucketStore]:
    if not argument:
        return [vbucket for _, vbucket in sorted(connection.node.vbuckets.items())]
    if not argument.isdecimal() or len(argument) > len(str(0xFFFF)):
        raise Refusal(Status.EINVAL, "Expected the number of a vbucket")
    return [living_vbucket(connection, int(argument))]


# Of a vbucket.


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
        high_prepared_seqno=0,
        high_completed_seqno=0,
        max_visible_seqno=high,
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


# Of a node.


def _general(connection: ServerConnection) -> Iterator[Statistic]:
    vbuckets = connection.node.vbuckets.values()
    major, minor = connection.bucket.release.number
    yield "version", f"{major}.{minor}.0"
    yield "ep_bucket_type", "couchbase"
    yield "curr_items", sum(getattr(item, "alive", False) for vb in vbuckets for item in vb if _is_active(vb))
    for state in VbucketState:
        if state is not VbucketState.ALIVE:
            yield f"vb_{state.name.lower()}_num", sum(vbucket.state is state for vbucket in vbuckets)
    yield "ep_dcp_producer_count", len(connection.node.consumers)


def _is_active(vbucket: VbucketStore) -> bool:
    return vbucket.state is VbucketState.ACTIVE


def _dcp(connection: ServerConnection) -> Iterator[Statistic]:
    for consumer in connection.node.consumers.values():
        for producer in consumer.timers:
            if isinstance(producer, DcpConnection):
                yield from _connection(producer)
    yield "ep_dcp_count", len(connection.node.consumers)
    yield "ep_dcp_producer_count", len(connection.node.consumers)


def _connection(producer: DcpConnection) -> Iterator[Statistic]:
    name = f"eq_dcpq:{producer.name}"
    yield f"{name}:type", "producer"
    yield f"{name}:max_buffer_bytes", producer.connection.out.window
    yield f"{name}:unacked_bytes", producer.connection.out.outstanding
    streams = [stream for stream in producer.streams.values() if not stream.ended]
    yield f"{name}:num_streams", len(streams)
    for stream in streams:
        of_stream = f"{name}:stream_{stream.vbucket.number}"
        yield f"{of_stream}_opaque", stream.opaque
        yield f"{of_stream}_start_seqno", stream.accepted.start
        yield f"{of_stream}_end_seqno", stream.accepted.end
        yield f"{of_stream}_last_read_seqno", stream.cursor


_OF_VBUCKETS: dict[str, Callable[[VbucketStore], Iterator[Statistic]]] = {
    "vbucket-seqno": _seqnos,
    "vbucket-details": _details,
    "failovers": _failovers,
}
_OF_NODES: dict[str, Callable[[ServerConnection], Iterator[Statistic]]] = {"": _general, "dcp": _dcp}

HANDLERS: dict[str, Handler] = {"stat": stat}
