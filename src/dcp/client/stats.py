"""What a client tells of its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Lag(NamedTuple):
    """How far the consumer is behind the cluster.

    items: the seqnos between them, which is as many changes at most. seconds: for how long there has been something
    that it has not got.
    """

    items: int
    seconds: float


class Window(NamedTuple):
    """Flow control of a connection: bytes that may be under way (0 for any number), and those not processed yet."""

    size: int
    used: int


class Stuck(NamedTuple):
    """Why nothing comes of a vbucket: a word for programs, words for people, and since when."""

    reason: str
    says: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stats:
    """The work of a client, all of its streams together, at a moment.

    changes, bytes, batches: what nodes have sent; the rates are those of the last `stats_interval`.
    stream_ends: how often streams of vbuckets ended, by reason. vbuckets, streams: how many are followed, and
    how many of them a node has agreed to send. connections: the open ones with their windows, by node.
    lag, collections: of everything that is followed, and of each collection by its path; None and empty until
    they are known. stuck: the vbuckets that do not get on although there is more of them.
    """

    bucket: str
    changes: int = 0
    bytes: int = 0
    batches: int = 0
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
    """What happened to a stream so far."""

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    rollbacks: int = 0
    reconnects: int = 0
    stream_ends: dict[str, int] = field(default_factory=dict)


def together(bucket: str, parts: Iterable[Stats]) -> Stats:
    """Those of several streams as one. The lag is that of the one that is further behind; windows are added."""
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
    stuck = {**one.stuck, **other.stuck}
    return Stats(
        one.bucket, **added, stream_ends=dict(ends), connections=windows, lag=lag, collections=collections, stuck=stuck
    )


def _further(one: Lag, other: Lag) -> Lag:
    return Lag(max(one.items, other.items), max(one.seconds, other.seconds))


def _merged(one: Mapping[str, T], other: Mapping[str, T], both: Callable[[T, T], T]) -> dict[str, T]:
    return {
        key: both(one[key], other[key]) if key in one and key in other else (one if key in one else other)[key]
        for key in [*one, *(key for key in other if key not in one)]
    }
