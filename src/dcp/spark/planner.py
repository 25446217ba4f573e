"""The plan of a read: which task streams what, from where to where, and where the next read goes on."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import dcp
from dcp.checkpoint import Checkpoint
from dcp.client import Client
from dcp.client.filters import path_of
from dcp.client.queries import Manifest
from dcp.client.time_search import Time
from dcp.cluster_map import format_vbuckets, no_owner_error
from dcp.errors import LocalProtocolError, RollbackError, TransportError
from dcp.position import UNKNOWN_END, StreamPosition
from dcp.spark.options import Options

T = TypeVar("T")

# A vbucket on the move is with no node for a moment.
_PATIENCE, _PAUSE = 10.0, 0.25
# How many ends of earlier reads a position remembers.
_MOST_MARKS = 32


@dataclass(frozen=True, slots=True)
class Range:
    """What is read of a vbucket: from behind `start` up to `end`.

    `undone_from`: where the reader had been, if the cluster has lost what lies between there and `start`.
    `whole`: the snapshot that the end lies in is read to its own end.
    """

    start: StreamPosition
    end: int
    undone_from: int | None = None
    whole: bool = True

    @property
    def vbucket(self) -> int:
        return self.start.vbucket

    @property
    def size(self) -> int:
        return self.end - self.start.seqno


@dataclass(frozen=True, slots=True)
class Partition:
    """The work of one task: vbuckets that one node has, as far as is known when planned.

    `manifest_uid`: of the manifest that told which collections are left, if they may vanish.
    """

    node: str
    ranges: tuple[Range, ...] = field(repr=False)
    manifest_uid: int = 0

    @property
    def vbuckets(self) -> tuple[int, ...]:
        return tuple(part.vbucket for part in self.ranges)

    @property
    def start(self) -> Checkpoint:
        return Checkpoint(tuple(part.start for part in self.ranges))

    @property
    def end(self) -> dict[int, int]:
        """The last seqno of each vbucket."""
        return {part.vbucket: part.end for part in self.ranges}

    @property
    def cuts(self) -> dict[int, int]:
        """The last seqno of those behind which nothing is wanted."""
        return {part.vbucket: part.end for part in self.ranges if not part.whole}


@dataclass(frozen=True, slots=True)
class Plan:
    """A read that can be given to `read`, or kept. Two reads of one plan cover the same range.

    `end` is where the next read goes on: it misses nothing, if it is planned after the rows of this one
    are stored.
    """

    options: Options
    partitions: tuple[Partition, ...]
    end: Checkpoint = field(repr=False)


def plan(url: str, **options: Any) -> Plan:
    """What a read of a bucket with these options is made of, as of now."""
    return plan_for(Options.of({"url": url, **options}))


def plan_for(options: Options, parallelism: int = 1) -> Plan:
    """parallelism: how many tasks there are at least, if the options do not say."""
    with dcp.connect(options.login.into(options.url)) as client:
        ranges, end = ranges_of(client, options)
        partitions = divide(ranges, owners_of(client, ranges), options.min_partitions or parallelism)
    return Plan(options, partitions, end)


def ranges_of(client: Client, options: Options) -> tuple[list[Range], Checkpoint]:
    """What there is to read of each vbucket, and where to go on behind all of it."""
    begin = positions(client, options.start or "beginning", options)
    highs, uuids = newest(client, options)
    ends, wanted = _ends(options, highs, begin), filtered_high_seqnos(client, begin, options.scope)
    # Who begins at the beginning has been nowhere.
    purged = client.purge_seqnos() if any(position.seqno for position in begin) else {}
    ranges, after = [], begin.by_vbucket()
    for vbucket, start in sorted(begin.by_vbucket().items()):
        if vbucket not in highs:
            continue
        part = range_of(start, ends.get(vbucket, 0), highs[vbucket], uuids[vbucket], options)
        after[vbucket] = position_after(part, uuids[vbucket], purged.get(vbucket))
        if worth_asking(part := shortened(part, wanted), uuids[vbucket]):
            ranges.append(part)
    return ranges, replace(begin, positions=tuple(after[vbucket] for vbucket in sorted(after)))


def range_of(start: StreamPosition, end: int, high: int, uuid: int, options: Options) -> Range:
    """From a position on, as far as the vbucket has it."""
    if high >= start.seqno:
        return Range(narrowed(start, high, uuid), max(end, start.seqno))
    if options.on_rollback == "fail":
        raise RollbackError(start.vbucket, start.seqno, high)
    return Range(start.rolled_back(high), max(min(end, high), start.rolled_back(high).seqno), start.seqno)


def shortened(part: Range, wanted: Mapping[int, int]) -> Range:
    """What is left of a range where the last seqno that is wanted is known. It has to be newer than the range."""
    return replace(part, end=max(part.start.seqno, min(part.end, wanted.get(part.vbucket, part.end))))


def narrowed(start: StreamPosition, high: int, uuid: int) -> StreamPosition:
    """A position behind a planned read ends in a snapshot whose end only the tasks saw.

    While the history is still the same, that end is not above what the vbucket has now.
    """
    if start.snapshot_end != UNKNOWN_END or not uuid or start.vbuuid != uuid:
        return start
    begin = start.seqno if high == start.seqno else start.snapshot_start
    return replace(start, snapshot_start=begin, snapshot_end=high)


def worth_asking(part: Range, uuid: int) -> bool:
    """Whether there are changes, or some to undo, or a new history, which may have as many other changes."""
    return part.size > 0 or part.undone_from is not None or (part.start.seqno > 0 and part.start.vbuuid != uuid)


def position_after(part: Range, uuid: int, purged: int | None) -> StreamPosition:
    """Where to go on behind a range. docs/spark-semantics.md says why this misses nothing.

    purged: up to where the vbucket has forgotten deletions; None where nobody says.
    """
    start = part.start
    if part.end and start.vbuuid != uuid:
        return StreamPosition(start.vbucket, uuid, part.end, 0, UNKNOWN_END)
    if part.size <= 0:
        return start
    safe = start.seqno if start.complete else start.snapshot_start
    ends = (safe, *start.marks) if start.complete else start.marks
    if purged is None or safe < purged:
        # The task may be sent back to 0, and what it gets then is not whole where this reader was.
        safe = 0
    marks = sorted({mark for mark in ends if 0 < mark <= safe and mark >= (purged or 0)}, reverse=True)
    return replace(
        start, seqno=part.end, snapshot_start=safe, snapshot_end=UNKNOWN_END, marks=tuple(marks[:_MOST_MARKS])
    )


def positions(client: Client, start: Time | Checkpoint, options: Options) -> Checkpoint:
    """Where a stream that starts there stands, for each vbucket; nothing is streamed."""
    return client.positions(start, scope=options.scope, collections=options.collections, vbuckets=options.vbuckets)


def still_there(options: Options, manifest: Callable[[], Manifest]) -> Options | None:
    """What a stream goes on with where scopes and collections may vanish: those that are left. None if none is."""
    if options.fail_on_data_loss or (options.scope is None and options.collections is None):
        return options
    paths = {*manifest().paths.values()}
    if options.collections is None:
        return options if any(path.startswith(f"{options.scope}.") for path in paths) else None
    left = tuple(name for name in options.collections if path_of(name, options.scope) in paths)
    return replace(options, collections=left) if left else None


def asked_of(client: Client, options: Options) -> Checkpoint:
    """What is read, as a checkpoint without positions: the bucket, and the ids of scope or collections."""
    return replace(client.positions("beginning", scope=options.scope, collections=options.collections), positions=())


def filtered_high_seqnos(client: Client, asked: Checkpoint, scope: str | None) -> dict[int, int]:
    """The last seqno of each vbucket that a filter lets through; nothing where there is none."""
    if scope is None and not asked.collections:
        return {}
    ids = asked.collections or [number for number, path in client.collections().items() if path.split(".")[0] == scope]
    found: dict[int, int] = {}
    for number in ids:
        for vbucket, seqno in client.high_seqnos(number).items():
            found[vbucket] = max(seqno, found.get(vbucket, 0))
    return found


def newest(client: Client, options: Options) -> tuple[dict[int, int], dict[int, int]]:
    """The last seqno of each vbucket that is asked for, and the uuid of a history that has it."""

    def asked() -> tuple[dict[int, int], dict[int, int]]:
        highs = high_seqnos(client, options)
        uuids = _uuids(client, highs)
        _check_kept(highs, high_seqnos(client, options))
        return highs, uuids

    return patiently(client, asked)


def patiently(client: Client, question: Callable[[], T]) -> T:
    """Ask again while nodes come and go."""
    give_up_at = time.monotonic() + _PATIENCE
    while True:
        try:
            return question()
        except TransportError:
            if time.monotonic() > give_up_at:
                raise
        time.sleep(_PAUSE)
        with contextlib.suppress(TransportError):
            client.refresh()


def _uuids(client: Client, highs: Mapping[int, int]) -> dict[int, int]:
    logs = client.failover_logs(highs)
    if len(logs) < len(highs):
        raise no_owner_error(vbucket for vbucket in highs if vbucket not in logs)
    return {vbucket: log.newest.vbuuid for vbucket, log in logs.items()}


def _check_kept(before: Mapping[int, int], after: Mapping[int, int]) -> None:
    """A uuid that is seen after a seqno may be of a newer history, which has yet to come as far, with other changes."""
    lost = [vbucket for vbucket, seqno in before.items() if after.get(vbucket, seqno) < seqno]
    if lost:
        raise TransportError(f"vbuckets {format_vbuckets(lost)} lost changes while they were looked at: try again")


def high_seqnos(client: Client, options: Options) -> dict[int, int]:
    found = client.high_seqnos()
    count = client.map.num_vbuckets
    wanted = range(count) if options.vbuckets is None else options.vbuckets
    missing = [vbucket for vbucket in wanted if vbucket not in found and vbucket < count]
    if missing:
        raise no_owner_error(missing)
    return {vbucket: seqno for vbucket, seqno in found.items() if vbucket in wanted}


def _ends(options: Options, highs: Mapping[int, int], begin: Checkpoint) -> Mapping[int, int]:
    if not isinstance(options.end, Checkpoint):
        return highs
    options.end.check_bucket(begin)
    ends = {position.vbucket: position.seqno for position in options.end}
    for vbucket, end in ends.items():
        if vbucket in highs and end > highs[vbucket]:
            raise LocalProtocolError(
                f"option endingOffsets: vbucket {vbucket}: expected up to {highs[vbucket]}, where it is, found {end}"
            )
    return ends


def owners_of(client: Client, ranges: list[Range]) -> dict[int, str]:
    return {part.vbucket: str(client.map.owner(part.vbucket) or "") for part in ranges}


def divide(ranges: list[Range], owners: Mapping[int, str], at_least: int) -> tuple[Partition, ...]:
    """Partitions of one node each, about equally large: at most one for every two vbuckets of a node."""
    by_node: dict[str, list[Range]] = {}
    for part in ranges:
        by_node.setdefault(owners[part.vbucket], []).append(part)
    counts = _counts(by_node, at_least)
    return tuple(
        Partition(node, tuple(group)) for node in sorted(by_node) for group in _groups(by_node[node], counts[node])
    )


def _counts(by_node: Mapping[str, list[Range]], at_least: int) -> dict[str, int]:
    """How many partitions each node gets: one, and then another one always where they are the largest."""
    sizes = {node: sum(part.size for part in parts) for node, parts in by_node.items()}
    counts = dict.fromkeys(by_node, 1)
    largest = [(-size, node) for node, size in sizes.items()]
    heapq.heapify(largest)
    while largest and sum(counts.values()) < at_least:
        _, node = heapq.heappop(largest)
        if counts[node] < len(by_node[node]) // 2:
            counts[node] += 1
            heapq.heappush(largest, (-sizes[node] // counts[node], node))
    return counts


def _groups(parts: list[Range], count: int) -> list[list[Range]]:
    """The largest first, each to the group that has the least."""
    groups: list[list[Range]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for part in sorted(parts, key=lambda part: (-part.size, part.vbucket)):
        size, number = heapq.heappop(heap)
        groups[number].append(part)
        # A vbucket costs something even if it is almost empty.
        heapq.heappush(heap, (size + part.size + 1, number))
    return [sorted(group, key=lambda part: part.vbucket) for group in groups]
