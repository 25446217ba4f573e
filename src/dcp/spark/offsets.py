"""Offsets of a stream: positions of all vbuckets as the JSON that Spark keeps. Equal offsets give equal text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from dcp.checkpoint import Checkpoint, filter_of
from dcp.cluster_map import format_vbuckets
from dcp.columns.selection import key_patterns
from dcp.errors import CheckpointError, LocalProtocolError
from dcp.position import UNKNOWN_END, StreamPosition

# Version 1 named each vbucket, and had one window and marks for a position. It is still read.
_VERSION = 2
_POSITION = re.compile(r"([0-9]{1,20})(\*|\+[0-9]{0,20})? ([0-9a-f]{1,16})(?: ([0-9+,]+))?")
_FLOOR = re.compile(r"([0-9]{1,20})(?:\+([0-9]{1,20}))?")
# A character that stands for no byte.
_STAR = "\u0100"


class Floor(NamedTuple):
    """A seqno to which a reader can go back, and from which a new stream completes its state.

    seqno: the reader keeps everything up to it.
    until: where the snapshots ended, at the latest, from which the reader got that. They lack the versions that were
        replaced up to there, so the cluster has to have the same changes up to `until`.
    """

    seqno: int
    until: int


BEGINNING = Floor(0, 0)


@dataclass(frozen=True, slots=True)
class LoggedPosition:
    """Position of one vbucket in an offset.

    vbuuid: a history that contains `seqno` and all floors; 0 at the beginning.
    until: as of a Floor; UNKNOWN_END if the batch that ends at `seqno` reads the vbucket: only its tasks see that.
    floors: earlier positions, newest first. The first one is where the batch that ends at `seqno` starts.
    persisted: True if that batch delivers only what every copy has on disk, up to the end of its snapshot.
    """

    vbucket: int
    vbuuid: int = 0
    seqno: int = 0
    until: int = 0
    floors: tuple[Floor, ...] = ()
    persisted: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seqno <= self.until <= UNKNOWN_END:
            raise ValueError
        if any(not 0 < floor.seqno <= floor.until for floor in self.floors):
            raise ValueError
        if any(older >= newer for newer, older in pairwise((self.seqno + 1, *(floor.seqno for floor in self.floors)))):
            raise ValueError

    @property
    def is_read(self) -> bool:
        """True if the batch that ends here reads the vbucket."""
        return self.until == UNKNOWN_END

    @classmethod
    def of(cls, position: StreamPosition) -> LoggedPosition:
        """Return a position of a checkpoint, such as a start position of the user, as one of an offset."""
        ends = () if position.complete else (position.snapshot_start,)
        floors = sorted({mark for mark in (*ends, *position.marks) if mark}, reverse=True)
        return cls(
            position.vbucket,
            position.vbuuid,
            position.seqno,
            position.snapshot_end,
            tuple(Floor(mark, mark) for mark in floors),
        )


class Selection(NamedTuple):
    """Options that select rows. A query cannot be restarted with wider ones; None selects all."""

    events: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    where: str | None = None

    def to_tree(self) -> dict[str, Any]:
        """Return the selection as JSON."""
        given = {name: value for name, value in self._asdict().items() if value}
        return {name: value if isinstance(value, str) else list(value) for name, value in given.items()}

    @classmethod
    def from_tree(cls, rows: Mapping[str, Any]) -> Selection:
        """Return the selection that an offset has as JSON. Raises ValueError for anything else."""
        events, keys = (None if rows.get(name) is None else tuple(rows[name]) for name in ("events", "keys"))
        if not rows.keys() <= {*cls._fields}:
            raise ValueError
        return cls(events, keys, rows.get("where"))


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset.

    identity: a checkpoint without positions, which has ids of the bucket, and of the scope or collections.
    selection: rows that the query selects; None if the offset is of a version that did not keep that.
    """

    identity: Checkpoint
    positions: tuple[LoggedPosition, ...]
    selection: Selection | None = None

    @classmethod
    def of(cls, here: Checkpoint, selection: Selection) -> Offset:
        """Return a checkpoint, such as that of a user, as an offset."""
        return cls(replace(here, positions=()), tuple(map(LoggedPosition.of, here)), selection)

    def __iter__(self) -> Iterator[LoggedPosition]:
        return iter(self.positions)

    def by_vbucket(self) -> dict[int, LoggedPosition]:
        """Return the positions by number of their vbucket."""
        return {position.vbucket: position for position in self.positions}

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint from which a client or a read resumes; it may go back further than a query does."""
        return replace(self.identity, positions=tuple(map(_stream_position, self.positions)))

    def lag(self, highs: Mapping[int, int]) -> dict[int, int]:
        """Return the number of seqnos between the offset and each high seqno."""
        return self.checkpoint().lag(highs)


def _stream_position(here: LoggedPosition) -> StreamPosition:
    # Only a floor at the end of its snapshot is one of a checkpoint.
    marks = tuple(floor.seqno for floor in here.floors if floor.until == floor.seqno and floor.seqno < here.seqno)
    start = here.seqno if here.until == here.seqno else next(iter(marks), 0)
    return StreamPosition(here.vbucket, here.vbuuid, here.seqno, start, here.until, marks=marks)


def to_offset(here: Offset) -> dict[str, Any]:
    """Return an offset as JSON for Spark."""
    of, rows = here.identity, here.selection
    # 64-bit values are text: a JSON parser that reads numbers as doubles would round them above 2^53.
    kept = {
        "version": _VERSION,
        "bucket": of.bucket,
        "uuid": of.bucket_uuid,
        "vbuckets": of.num_vbuckets,
        "scope": of.scope,
        "collections": list(of.collections),
        "positions": {str(run[0].vbucket): [_text(position) for position in run] for run in _runs(here.positions)},
    }
    return kept if rows is None else kept | {"rows": rows.to_tree()}


def _runs(positions: Iterable[LoggedPosition]) -> list[list[LoggedPosition]]:
    """Return positions in lists of adjoining vbuckets, so that not each of them has to be named."""
    runs: list[list[LoggedPosition]] = []
    for position in positions:
        if runs and runs[-1][-1].vbucket + 1 == position.vbucket:
            runs[-1].append(position)
        else:
            runs.append([position])
    return runs


def from_offset(offset: Mapping[str, Any]) -> Offset:
    """Return the offset that Spark kept as JSON. Raises CheckpointError unless this source wrote it."""
    try:
        version, selection = offset["version"], None
        if version == _VERSION:
            found = [
                _position(int(first) + number, text)
                for first, run in offset["positions"].items()
                for number, text in enumerate(run)
            ]
            if "rows" in offset:
                selection = Selection.from_tree(offset["rows"])
        elif version == 1:
            found = [_position_of_version_1(int(number), text) for number, text in offset["positions"].items()]
        else:
            raise ValueError
        # Spark may return the keys sorted as text, where "10" is before "2".
        found.sort(key=lambda position: position.vbucket)
        identity = Checkpoint(
            tuple(StreamPosition(position.vbucket) for position in found),
            offset["vbuckets"],
            offset["bucket"],
            offset["uuid"],
            offset["scope"],
            tuple(offset["collections"]),
        )
        return Offset(replace(identity, positions=()), tuple(found), selection)
    except (AttributeError, KeyError, TypeError, ValueError, LocalProtocolError):
        raise CheckpointError("offset: expected one that this source wrote, found something else") from None


def check_resumable(here: Offset, identity: Checkpoint, vbuckets: Collection[int]) -> None:
    """Raise CheckpointError unless a stream can resume from an offset.

    identity: a checkpoint without positions, of the bucket and collections that the stream reads now.
    vbuckets: those that it reads now.
    """
    logged = here.identity
    if logged.bucket_uuid != identity.bucket_uuid:
        same = f"bucket {logged.bucket!r} was deleted and recreated, or the url leads to another cluster"
        raise CheckpointError(
            f"offset: expected one of bucket {identity.bucket!r} with the uuid {identity.bucket_uuid}, which the query "
            f"reads, found one of bucket {logged.bucket!r} with the uuid {logged.bucket_uuid}: "
            f"{same if logged.bucket == identity.bucket else 'the checkpoint belongs to another query'}; start with "
            "another checkpointLocation"
        )
    if (logged.scope, logged.collections) != (identity.scope, identity.collections):
        raise CheckpointError(
            f"scope, collections: expected those that the query started with, {filter_of(logged)}, found "
            f"{filter_of(identity)}: one was dropped and recreated, or the options changed; start with another "
            "checkpointLocation"
        )
    logged.check(identity)
    if more := set(vbuckets) - here.by_vbucket().keys():
        raise CheckpointError(
            f"option vbuckets: expected only those that the query started with, found {format_vbuckets(more)}; start "
            "with another checkpointLocation"
        )


def check_not_wider(before: Selection, now: Selection) -> None:
    """Raise CheckpointError if the options select rows now that they did not select before."""
    for name, known, found in zip(Selection._fields, before, now, strict=True):
        if not _covers(name, known, found):
            raise CheckpointError(
                f"option {name}: expected only what the query selected so far, {_shown(known)}, found "
                f"{_shown(found)}: earlier changes of the others would be missing; start with another "
                "checkpointLocation, or set failOnDataLoss=false"
            )


def _covers(name: str, known: tuple[str, ...] | str | None, found: tuple[str, ...] | str | None) -> bool:
    """True if all rows that `found` selects were selected by `known`."""
    if known is None or found == known:
        return True
    if found is None or name == "where":
        return False
    if name == "events":
        return {*found} <= {*known}
    return all(any(_covers_key(pattern, key) for pattern in known) for key in found)


def _covers_key(pattern: str, other: str) -> bool:
    """True if a pattern of keys matches every key that another one does."""
    # Only a star matches a star of the other pattern, which stands for any bytes.
    parts = (".*" if part == _STAR else re.escape(part) for part in _characters(pattern))
    return re.fullmatch("".join(parts), _characters(other), re.DOTALL) is not None


def _characters(pattern: str) -> str:
    """Return a character for each byte of a pattern of keys, and _STAR for each star."""
    exact, patterns = key_patterns(pattern)
    text, stars = (*patterns, *((key, bytes(len(key))) for key in exact))[0]
    return "".join(_STAR if star else chr(byte) for byte, star in zip(text, stars, strict=True))


def _shown(value: tuple[str, ...] | str | None) -> str:
    return "all" if value is None else value if isinstance(value, str) else ", ".join(value)


def _text(here: LoggedPosition) -> str:
    """Return seqno, uuid in hexadecimal, and floors as distances from the seqno.

    A plus separates a seqno from the distance of its `until`, which is left out where it is 0, or unknown at the end. A
    star in its place stands for a batch that delivers only what every copy has on disk.
    """
    unknown = "*" if here.persisted else "+"
    until = "" if here.until == here.seqno else unknown if here.is_read else f"+{here.until - here.seqno}"
    floors = ",".join(_floor_text(here.seqno, floor) for floor in here.floors)
    return f"{here.seqno}{until} {here.vbuuid:x}{' ' if floors else ''}{floors}"


def _floor_text(seqno: int, floor: Floor) -> str:
    more = floor.until - floor.seqno
    return f"{seqno - floor.seqno}{f'+{more}' if more else ''}"


# Each batch reads two offsets, in which most positions are those of the batch before.
@lru_cache(maxsize=4096)
def _position(vbucket: int, text: str) -> LoggedPosition:
    """Return the position that `_text` wrote."""
    if (match := _POSITION.fullmatch(text)) is None:
        raise ValueError
    seqno, more, uuid, floors = int(match[1]), match[2], int(match[3], 16), match[4]
    until = seqno if more is None else UNKNOWN_END if more in ("+", "*") else seqno + int(more)
    return LoggedPosition(vbucket, uuid, seqno, until, tuple(_floors(seqno, floors)), more == "*")


def _floors(seqno: int, text: str | None) -> Iterator[Floor]:
    for part in text.split(",") if text else ():
        if (match := _FLOOR.fullmatch(part)) is None:
            raise ValueError
        floor = seqno - int(match[1])
        yield Floor(floor, floor + int(match[2] or 0))


def _position_of_version_1(vbucket: int, text: str) -> LoggedPosition:
    """Return a position of seqno, uuid, window and marks, which were ends of snapshots."""
    seqno, uuid, start, end, marks = text.split(" ")
    numbers = tuple(int(mark) for mark in marks.split(",") if mark)
    return LoggedPosition.of(StreamPosition(vbucket, int(uuid, 16), int(seqno), int(start), int(end), marks=numbers))
