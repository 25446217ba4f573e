"""Plan of a read: which task streams which seqnos of which vbuckets, and where the next read resumes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

import dcp
from dcp.checkpoint import Checkpoint
from dcp.client import Client
from dcp.client.filters import collection_path
from dcp.client.queries import CollectionsManifest, Heads
from dcp.cluster_map import no_owner_error
from dcp.columns.decoder import DocumentLike
from dcp.errors import DcpError, UsageError
from dcp.spark.failures import short_errors
from dcp.spark.kept_client import kept_client
from dcp.spark.options import Options
from dcp.spark.ranges import Range, needs_stream, position_after, range_of, shortened
from dcp.spark.retry import retry

# Seqnos of a task where the number of cores is unknown: about a second of work, beside which starting it is cheap.
_SEQNOS_PER_TASK = 250_000
# Addresses that a task gets: enough to find the cluster, although nodes are replaced between plan and task.
_MOST_ADDRESSES = 16
# Ratio of the largest partition to the average one, above which there are more partitions than wanted.
_BALANCED = 1.2


@dataclass(frozen=True, slots=True)
class Partition:
    """Work of one task: ranges of vbuckets that one node owned when they were planned.

    node: host and port of that node. A task follows vbuckets that move to another one.
    manifest_uid: the collections manifest that the plan was made with; 0 if none was needed. A node with an older one
        may not know a collection yet, and is asked again.
    addresses: nodes that a task connects to first, that of `node` before the others. The hosts of the URL may have left
        the cluster since.
    bucket_uuid: uuid of the planned bucket; empty before server 2.5, and in a sample.
    """

    node: str
    ranges: tuple[Range, ...] = field(repr=False)
    manifest_uid: int = 0
    addresses: tuple[str, ...] = field(default=(), repr=False)
    bucket_uuid: str = field(default="", repr=False)

    @property
    def vbuckets(self) -> tuple[int, ...]:
        """Numbers of the vbuckets, ascending."""
        return tuple(part.vbucket for part in self.ranges)

    @property
    def start(self) -> Checkpoint:
        """Positions that the streams start from."""
        return Checkpoint(tuple(part.start for part in self.ranges))

    @property
    def end(self) -> dict[int, int]:
        """Last seqno to read, by vbucket."""
        return {part.vbucket: part.end for part in self.ranges}

    @property
    def cuts(self) -> dict[int, int]:
        """Last seqno to deliver, by vbucket, of the ranges whose later rows are dropped."""
        return {part.vbucket: part.end for part in self.ranges if not part.whole}


@dataclass(frozen=True, slots=True)
class Plan:
    """A read to give to `dcp.spark.read`. It can be pickled; every read of one plan covers the same range.

    end: the checkpoint to start the next read from. Plan that one only after the rows of this one are stored: then
        nothing is missed.
    """

    options: Options
    partitions: tuple[Partition, ...]
    end: Checkpoint = field(repr=False)


@short_errors
def plan(
    url: str,
    *,
    dialect: Literal["dcp", "tap", "upr1", "upr2"] | None = None,
    scope: str | None = None,
    collections: str | Iterable[str] | None = None,
    vbuckets: str | Iterable[int] | None = None,
    on_rollback: Literal["replay", "fail"] = "replay",
    persisted_only: bool = False,
    out_of_order: bool = False,
    history: bool = False,
    username: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    credential_provider: str | None = None,
    columns: str | Iterable[str] | None = None,
    events: str | Iterable[str] | None = None,
    keys: str | Iterable[str] | None = None,
    key_format: Literal["binary", "string"] = "binary",
    value_format: Literal["binary", "string"] = "binary",
    on_bad_value: Literal["quarantine", "fail"] = "quarantine",
    document_schema: DocumentLike | None = None,
    on_bad_document: Literal["quarantine", "fail"] = "quarantine",
    where: str | None = None,
    newest_only: bool = False,
    start: str | datetime | Checkpoint | None = None,
    end: str | datetime | Checkpoint | None = None,
    min_partitions: int | None = None,
    node_timeout: float | str | timedelta = 300.0,
    fail_on_data_loss: bool = True,
) -> Plan:
    """Plan a read of a bucket as it is now, for `dcp.spark.read`.

    url: URL of the bucket, as for `dcp.connect`.

    dialect: Protocol: `dcp`, `tap` for servers up to 4.6 over TAP, `upr1` or `upr2` for the drafts of UPR. Default:
        dcp.
    scope: Name of a scope: only its collections. With `collections`, the scope of names without one.
    collections: Names of collections, as `scope.name` or in `scope`: only these.
    vbuckets: Numbers of vbuckets, as "0-511,600" or several: only these.
    on_rollback: `replay` delivers a row with the event `rollback`, then what the cluster has above its seqno. What the
        lost changes had replaced is not sent: see docs/semantics.md. `fail` raises RollbackError. Default: replay.
    persisted_only: Deliver only changes that every copy of their vbucket has on disk, so that no failover takes them
        back. Default: False.
    out_of_order: Let nodes send the first snapshot of a collection in any order, which may be faster. Until it is
        complete, positions stay at the beginning. Default: False.
    history: Deliver every version that the bucket keeps of a document, not only the last one of a snapshot. Default:
        False.
    username: User to connect as, if the URL names none. Default: `DCP_USERNAME`.
    password: Password of `username`. It travels to the executors with each task. Default: `DCP_PASSWORD`.
    password_file: File with the password, on the driver and on every executor.
    credential_provider: Function that returns user and password, as `module:function`. It is called on the driver and
        on executors.
    columns: Names of the columns, in order; `scope` and `collection` are the names of a row's collection. Columns that
        are not named are not decoded. Default: event, vbucket, seqno, rev_seqno, cas, flags, expiry, lock_time,
        delete_time, datatype, collection_id, key, value, xattrs, snapshot_start, snapshot_end, stream_id.
    events: Names of events, such as `mutation,deletion`: only these, and rows that report a rollback or a purge.
        Default: all.
    keys: Keys, such as `order::*,user::7`: only these. A star stands for any bytes, unless a backslash is before it.
        Default: all.
    key_format: Type of the column `key`; `string` requires UTF-8. Default: binary.
    value_format: Type of the column `value`; see `onBadValue` for values that are not UTF-8. Default: binary.
    on_bad_value: Values that are no text, or cannot be read: `quarantine` delivers null, or the bytes as received, with
        the reason in the column `error`, which `valueFormat=string` adds. `fail` ends the query. Default: quarantine.
    document_schema: Schema of the documents, for the columns `document` and `error`: DDL such as `id bigint, customer
        struct<city string>`. See docs/documents.md.
    on_bad_document: Documents that do not fit the schema: `quarantine` delivers null for what does not, with the reason
        in the column `error`. `fail` ends the query. Default: quarantine.
    where: Condition on the document, such as `type = 'order' and total > 100`: only mutations for which it is true.
        Deletions are delivered, and values that are no JSON.
    newest_only: Deliver of each key only the newest version that the read or batch encounters. It excludes `events`,
        `where`, `history` and `outOfOrder`, with which an older version could be taken for it. Default: False.
    start: Where to begin: `earliest`, `latest`, a Checkpoint or its JSON, or a time. A stream that resumes from its own
        checkpoint ignores it. Default: `earliest` for a read or table, `latest` for a stream.
    end: Where a read ends: `latest`, a Checkpoint or its JSON, or a past time: only changes made before it. Default:
        `latest`.
    min_partitions: Least number of tasks, up to one for every two vbuckets. Default: the session's cores; with
        `format("dcp")` one for each 250,000 seqnos.
    node_timeout: How long nodes may be away before a read or a stream fails. Automatic failover takes 2 minutes by
        default. Default: 5m.
    fail_on_data_loss: Set it to false to continue where changes are lost: purged deletions, dropped collections.
        Default: True.

    Raises UsageError for a wrong option, and TransportError if the cluster cannot be reached.
    """
    # Nothing but the parameters is local yet.
    given = {name: value for name, value in locals().items() if name != "url"}
    return plan_for(Options.of_keywords(url, given))


def plan_for(options: Options, parallelism: int | None = None) -> Plan:
    """Plan a read with parsed options.

    parallelism: least number of partitions, unless the option minPartitions is set. None: by the size of the read.
    """
    url = options.login_url()
    with kept_client(url, partial(dcp.connect, url, stats_interval=0), _is_current) as client:
        ranges, end = retry(client, partial(ranges_of, client, options), options.node_timeout)
        partitions = partitions_of(client, ranges, options.min_partitions or parallelism)
    return Plan(options, partitions, end)


def _is_current(client: Client) -> bool:
    """Return True if a client still reaches its bucket: it may have been recreated, or the nodes replaced."""
    try:
        client.refresh_map()
    except DcpError:
        return False
    return True


def ranges_of(client: Client, options: Options) -> tuple[list[Range], Checkpoint]:
    """Return the ranges that need a stream, and the checkpoint after all of them."""
    begin = positions(client, "beginning" if options.start is None else options.start, options)
    highs, logs = settled_heads(client, options, options.node_timeout)
    uuids = {vbucket: log.newest.vbuuid for vbucket, log in logs.items()}
    # The order matters: a collection's high seqnos must not be older than `highs` (see shortened).
    ends, wanted = _ends(client, options, highs, begin), filtered_high_seqnos(client, begin, options.scope)
    # A first read cannot have missed purged deletions.
    purged = client.purge_seqnos() if any(position.seqno for position in begin) else {}
    ranges, after = [], begin.by_vbucket()
    for vbucket, start in sorted(begin.by_vbucket().items()):
        if vbucket not in highs:
            continue
        part = range_of(start, ends.get(vbucket, 0), highs[vbucket], uuids[vbucket], options)
        after[vbucket] = position_after(part, uuids[vbucket], purged.get(vbucket))
        if needs_stream(part := shortened(part, wanted), uuids[vbucket]):
            ranges.append(part)
    return ranges, replace(begin, positions=tuple(after[vbucket] for vbucket in sorted(after)))


def positions(client: Client, start: str | datetime | Checkpoint, options: Options) -> Checkpoint:
    """Return the position of each vbucket that a stream from `start` would have. Nothing is streamed."""
    return client.positions(start, scope=options.scope, collections=options.collections, vbuckets=options.vbuckets)


def without_dropped(options: Options, manifest: Callable[[], CollectionsManifest]) -> Options | None:
    """Return the options without the collections that were dropped; None if none is left.

    Only a stream with failOnDataLoss=false tolerates a dropped collection: without it the options stay as they are, and
    the node's error ends the query.
    """
    if options.fail_on_data_loss or (options.scope is None and options.collections is None):
        return options
    paths = {*manifest().paths.values()}
    if options.collections is None:
        return options if any(path.startswith(f"{options.scope}.") for path in paths) else None
    left = tuple(name for name in options.collections if collection_path(name, options.scope) in paths)
    return replace(options, collections=left) if left else None


def identity_of(client: Client, options: Options) -> Checkpoint:
    """Return a checkpoint without positions: the bucket's uuid, and the ids of the scope or collections to read."""
    return replace(client.positions("beginning", scope=options.scope, collections=options.collections), positions=())


def filtered_high_seqnos(client: Client, identity: Checkpoint, scope: str | None) -> dict[int, int]:
    """Return the last seqno in each vbucket that passes the collection filter; empty if there is no filter."""
    if scope is None and not identity.collections:
        return {}
    ids = identity.collections or [
        number for number, path in client.collections().items() if path.split(".")[0] == scope
    ]
    return client.high_seqnos(ids)


def settled_heads(client: Client, options: Options, timeout: float, max_log_age: float = 0.0) -> Heads:
    """Return the high seqno of each requested vbucket, and the failover log of a history that contains it.

    timeout: seconds for which to retry while a vbucket has no reachable owner. Raises TransportError after that.
    max_log_age: see Client.heads.
    """

    def query() -> Heads:
        found = client.heads(
            options.vbuckets, scope=options.scope, collections=options.collections, max_log_age=max_log_age
        )
        if missing := found.high_seqnos.keys() - found.failover_logs.keys():
            raise no_owner_error(sorted(missing))
        return found

    return retry(client, query, timeout)


def _ends(client: Client, options: Options, highs: Mapping[int, int], begin: Checkpoint) -> Mapping[int, int]:
    """Return the seqno that each vbucket is to be read to."""
    if isinstance(options.end, datetime):
        found = client.end_seqnos(
            options.end, scope=options.scope, collections=options.collections, vbuckets=options.vbuckets
        )
        return {vbucket: min(end, highs.get(vbucket, end)) for vbucket, end in found.items()}
    if not isinstance(options.end, Checkpoint):
        return highs
    options.end.check_bucket(begin)
    ends = {position.vbucket: position.seqno for position in options.end}
    for vbucket, end in ends.items():
        if vbucket in highs and end > highs[vbucket]:
            raise UsageError(
                f"option endingOffsets: vbucket {vbucket}: expected a seqno up to its high seqno {highs[vbucket]}, "
                f"found {end}"
            )
    return ends


def owners_of(client: Client, ranges: list[Range]) -> dict[int, str]:
    """Return host and port of the node that owns each range's vbucket; empty text where none does."""
    return {part.vbucket: str(client.map.owner(part.vbucket) or "") for part in ranges}


def partitions_of(
    client: Client, ranges: list[Range], at_least: int | None, manifest_uid: int = 0
) -> tuple[Partition, ...]:
    """Divide ranges into partitions for the nodes that own them now, see `divide`."""
    addresses = client.node_addresses
    names = [*addresses]
    found = []
    for part in divide(ranges, owners_of(client, ranges), at_least):
        # Each task begins at its own node: they do not all log in at the first one.
        first = names.index(part.node) if part.node in addresses else 0
        others = (addresses[name] for name in [*names[first:], *names[:first]][:_MOST_ADDRESSES])
        found.append(replace(part, manifest_uid=manifest_uid, addresses=tuple(others), bucket_uuid=client.map.uuid))
    return tuple(found)


def divide(ranges: list[Range], owners: Mapping[int, str], at_least: int | None = None) -> tuple[Partition, ...]:
    """Divide ranges into partitions of about equal size, each of one node's vbuckets.

    at_least: wanted number of partitions; None for one for each 250,000 seqnos. A node gets at least one and at most
        one for every two vbuckets. Up to twice as many partitions are made where that balances them.
    """
    if at_least is None:
        at_least = sum(part.size for part in ranges) // _SEQNOS_PER_TASK
    by_node: dict[str, list[Range]] = {}
    for part in ranges:
        by_node.setdefault(owners[part.vbucket], []).append(part)
    counts = _counts(by_node, at_least)
    # Spark starts tasks in this order: any number of first ones loads each node in proportion to its partitions.
    groups = [
        ((number + 0.5) / counts[node], node, tuple(group))
        for node, parts in by_node.items()
        for number, group in enumerate(_groups(parts, counts[node]))
    ]
    return tuple(Partition(node, group) for _, node, group in sorted(groups, key=lambda item: item[:2]))


def _counts(by_node: Mapping[str, list[Range]], at_least: int) -> dict[str, int]:
    """Return the number of partitions of each node: one, and each further one where partitions are largest.

    There are more than wanted, up to twice as many, until none is much larger than the average of the wanted number.
    """
    sizes = {node: sum(part.size for part in parts) for node, parts in by_node.items()}
    counts = dict.fromkeys(by_node, 1)
    # A heap with the size of one partition of each node, the largest first.
    largest = [(-float(size), node) for node, size in sizes.items()]
    heapq.heapify(largest)
    wanted = max(at_least, len(by_node))
    most = _BALANCED * sum(sizes.values()) / max(1, wanted)
    total = len(by_node)
    while largest and (total < wanted or (total < 2 * wanted and -largest[0][0] > most)):
        _, node = heapq.heappop(largest)
        if counts[node] < len(by_node[node]) // 2:
            counts[node] += 1
            total += 1
            heapq.heappush(largest, (-sizes[node] / counts[node], node))
    return counts


def _groups(parts: list[Range], count: int) -> list[list[Range]]:
    """Divide a node's ranges into `count` groups: the largest range first, each to the smallest group so far."""
    groups: list[list[Range]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for part in sorted(parts, key=lambda part: (-part.size, part.vbucket)):
        size, number = heapq.heappop(heap)
        groups[number].append(part)
        # The 1 is the cost of opening a stream, which even an empty vbucket has.
        heapq.heappush(heap, (size + part.size + 1, number))
    return [sorted(group, key=lambda part: part.vbucket) for group in groups]
