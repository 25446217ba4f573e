"""Statistics of a client: counts, rates, lag, windows, stuck vbuckets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Lag(NamedTuple):
    """Distance of the consumer from the cluster.

    items: seqnos between the two; the number of changes is not larger.
    seconds: time for which the consumer has been behind without a break.
    """

    items: int
    seconds: float


class Window(NamedTuple):
    """Flow-control window of a connection in bytes.

    size: bytes that a node may send before they are processed; 0 for no limit. used: bytes not processed yet.
    """

    size: int
    used: int


class Stuck(NamedTuple):
    """Reason for which a vbucket makes no progress.

    reason: a word for programs, of `dcp.client.monitor.REASONS`. detail: a sentence for people.
    seconds: time since its last progress.
    """

    reason: str
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of all streams of a client together, at one moment.

    bucket: name of the bucket.
    changes, bytes, batches: totals received from nodes. unselected_rows: changes that were not selected, which
        `changes` does not count. bad_rows: changes with a value, or a part of a document, that could not be read.
    changes_per_second, bytes_per_second: rates in the last `stats_interval`.
    rollbacks, reconnects: numbers of vbuckets rolled back, and of connections lost.
    stream_ends: number of vbuckets' streams that ended, by reason.
    vbuckets, streams: number of vbuckets that are followed, and of those whose stream a node has accepted.
    connections: window of each open connection, by node.
    lag, collections: lag of everything that is followed, and of each collection by its path; None and empty while it
        is unknown for any vbucket, since its node does not answer.
    stuck: vbuckets that make no progress although there is more of them.
    """

    bucket: str
    changes: int = 0
    bytes: int = 0
    batches: int = 0
    unselected_rows: int = 0
    bad_rows: int = 0
    changes_per_second: float = 0.0
    bytes_per_second: float = 0.0
    rollbacks: int = 0
    reconnects: int = 0
    stream_ends: Mapping[str, int] = field(default_factory=dict)
    vbuckets: int = 0
    streams: int = 0
    connections: Mapping[str, Window] = field(default_factory=dict)
    lag: Lag | None = None
    collections: Mapping[str, Lag] = field(default_factory=dict)
    stuck: Mapping[int, Stuck] = field(default_factory=dict)


@dataclass(slots=True)
class Counters:
    """Totals of one stream."""

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    unselected_rows: int = 0
    bad_rows: int = 0
    rollbacks: int = 0
    reconnects: int = 0
    stream_ends: dict[str, int] = field(default_factory=dict)


def combine(bucket: str, parts: Iterable[Stats]) -> Stats:
    """Return the statistics of several streams as one. Windows are added; the lag is that of the furthest behind."""
    return reduce(_add, parts, Stats(bucket))


def _add(one: Stats, other: Stats) -> Stats:
    added: dict[str, Any] = {
        each.name: getattr(one, each.name) + getattr(other, each.name)
        for each in fields(Stats)
        if isinstance(getattr(one, each.name), int | float)
    }
    ends = Counter(one.stream_ends) + Counter(other.stream_ends)
    windows = _merged(one.connections, other.connections, lambda a, b: Window(a.size + b.size, a.used + b.used))
    collections = _merged(one.collections, other.collections, _further)
    lag = _further(one.lag, other.lag) if one.lag and other.lag else one.lag or other.lag
    if _is_unknown(one) or _is_unknown(other):
        lag, collections = None, {}
    stuck = {**one.stuck, **other.stuck}
    return Stats(
        one.bucket, **added, stream_ends=dict(ends), connections=windows, lag=lag, collections=collections, stuck=stuck
    )


def _is_unknown(stats: Stats) -> bool:
    """Return True if something is followed, and how far it lags is unknown."""
    return stats.lag is None and stats.vbuckets > 0


def _further(one: Lag, other: Lag) -> Lag:
    return Lag(max(one.items, other.items), max(one.seconds, other.seconds))


def _merged(one: Mapping[str, T], other: Mapping[str, T], both: Callable[[T, T], T]) -> dict[str, T]:
    return {
        key: both(one[key], other[key]) if key in one and key in other else (one if key in one else other)[key]
        for key in [*one, *(key for key in other if key not in one)]
    }
