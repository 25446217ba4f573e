"""Where a whole bucket's stream stands: a position for each vbucket, its JSON, and two of them compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dcp import foreign_checkpoints as foreign
from dcp.errors import CheckpointError, LocalProtocolError
from dcp.json_reader import JsonReader
from dcp.position import FailoverLog, StreamPosition

_FORMAT, _VERSION = "dcp checkpoint", 1
_MOST_VBUCKETS = 1 << 16
_MOST_ID = (1 << 32) - 1


class Difference(NamedTuple):
    """How the position of a vbucket is another one. `items`: how many seqnos it moved, backwards if negative."""

    vbucket: int
    before: StreamPosition | None
    after: StreamPosition | None
    items: int
    same_history: bool


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The positions of a bucket's vbuckets; a vbucket that is not there is at its beginning.

    What is known of the bucket and of the stream's filter keeps it from being used for another one.
    Nothing is known where the text or the tuple is empty, or the number is None.
    """

    positions: tuple[StreamPosition, ...] = ()
    num_vbuckets: int | None = None
    bucket: str = ""
    bucket_uuid: str = ""
    scope: int | None = None
    collections: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        vbuckets = [position.vbucket for position in self.positions]
        most = _MOST_VBUCKETS if self.num_vbuckets is None else self.num_vbuckets
        if vbuckets != sorted(set(vbuckets)) or not all(0 <= vbucket < most for vbucket in vbuckets):
            raise CheckpointError(f"positions: expected vbuckets below {most} in order, each once, found {vbuckets}")

    def __iter__(self) -> Iterator[StreamPosition]:
        return iter(self.positions)

    def __len__(self) -> int:
        return len(self.positions)

    def by_vbucket(self) -> dict[int, StreamPosition]:
        return {position.vbucket: position for position in self.positions}

    def check(self, stream: Checkpoint) -> None:
        """Raise unless a stream of this bucket and filter, as an empty checkpoint of it tells, can go on from here.

        Other collections than those of the checkpoint would begin in the middle.
        """
        self.check_bucket(stream)
        narrower = self.scope == stream.scope and (
            not self.collections or (bool(stream.collections) and {*stream.collections} <= {*self.collections})
        )
        if not narrower and (self.scope is not None or self.collections):
            accepted = dict.fromkeys((filter_of(stream), "the whole bucket"))
            raise CheckpointError(
                f"checkpoint: expected one of {' or of '.join(accepted)}, found one of {filter_of(self)}"
            )

    def check_bucket(self, stream: Checkpoint) -> None:
        """Raise unless its numbers are those of this bucket, whatever the filter."""
        for name in ("bucket", "bucket_uuid", "num_vbuckets"):
            mine, its = getattr(self, name), getattr(stream, name)
            if mine and its and mine != its:
                raise CheckpointError(
                    f"checkpoint: {name}: expected {its!r}, found {mine!r}: it is of another bucket, or of one "
                    "that was deleted and made anew; begin again without it"
                )

    def to_json(self) -> str:
        """For people and for `from_json`: a line for each vbucket, 64-bit numbers as text."""
        head = {
            "format": _FORMAT,
            "version": _VERSION,
            "bucket": self.bucket,
            "bucket_uuid": self.bucket_uuid,
            "num_vbuckets": self.num_vbuckets,
            "scope": self.scope,
            "collections": list(self.collections),
        }
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        rows = [f'"{position.vbucket}": {json.dumps(_to_tree(position))}' for position in self.positions]
        inner = ",\n    ".join(rows)
        lines.append(f'"positions": {{\n    {inner}\n  }}' if rows else '"positions": {}')
        return "{\n  " + ",\n  ".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Checkpoint:
        """Read what `to_json` wrote. CheckpointError says what else it is, and where."""
        root = JsonReader.parse(text, "checkpoint", CheckpointError)
        for name, expected in (("format", _FORMAT), ("version", _VERSION)):
            if root[name].value != expected:
                root[name].refuse(repr(expected))
        members = root.members("format", "positions", "version", *_HEAD)
        rows = root["positions"].members()
        positions = [_from_tree(_vbucket(name, row), row) for name, row in rows.items()]
        head = {name: read(members[name]) for name, read in _HEAD.items() if root.get(name) is not None}
        return cls(_sorted(positions), **head)

    @classmethod
    def from_foreign(cls, kind: str, text: str | bytes) -> Checkpoint:
        """From what another consumer keeps: cbdatasource, cbes, cbes-backup, go-dcp, java-dcp-client,
        kafka-connect or spark-3.

        Where a format lacks the snapshot of a position, or contradicts it, the snapshot is taken to
        reach from 0 to no known end. Nothing is lost then, but the vbucket begins again: the producer
        says so with a rollback to 0. Without a last seqno (cbdatasource), what lies before the
        snapshot counts. Of an offset of Spark the start counts, since nobody knows whether its batch
        was written.
        """
        bucket, positions = foreign.read(kind, text)
        return cls(_sorted(positions), bucket=bucket.name, bucket_uuid=bucket.uuid)

    def to_foreign(self, kind: str) -> str:
        """As another consumer would have written it. What its format has no place for is left out."""
        return foreign.write(kind, foreign.Bucket(self.bucket, self.bucket_uuid), self.positions)

    def earliest(self, other: Checkpoint) -> Checkpoint:
        """The position of each vbucket from which neither of the two misses anything."""
        mine, its = self.by_vbucket(), other.by_vbucket()
        return self._merged(other, (_earlier(mine[vbucket], its[vbucket]) for vbucket in mine.keys() & its.keys()))

    def latest(self, other: Checkpoint) -> Checkpoint:
        """The further of the two positions of each vbucket; where their histories disagree, as `earliest`."""
        mine, its = self.by_vbucket(), other.by_vbucket()
        both = (_later(mine[vbucket], its[vbucket]) for vbucket in mine.keys() & its.keys())
        alone = (mine.get(vbucket) or its[vbucket] for vbucket in mine.keys() ^ its.keys())
        return self._merged(other, (*both, *alone))

    def diff(self, after: Checkpoint) -> tuple[Difference, ...]:
        """Which vbuckets stand elsewhere in `after`, in order."""
        mine, its = self.by_vbucket(), after.by_vbucket()
        return tuple(
            _difference(vbucket, mine.get(vbucket), its.get(vbucket))
            for vbucket in sorted(mine.keys() | its.keys())
            if mine.get(vbucket) != its.get(vbucket)
        )

    def lag(self, high_seqnos: Mapping[int, int]) -> dict[int, int]:
        """How many seqnos each vbucket is behind."""
        mine = self.by_vbucket()
        return {
            vbucket: max(0, high - (mine[vbucket].seqno if vbucket in mine else 0))
            for vbucket, high in sorted(high_seqnos.items())
        }

    def _merged(self, other: Checkpoint, positions: Any) -> Checkpoint:
        self.check(replace(other, positions=()))
        other.check(replace(self, positions=()))
        known = {
            name: getattr(self, name) or getattr(other, name) for name in ("bucket", "bucket_uuid", "num_vbuckets")
        }
        return replace(self, positions=_sorted(positions), **known)


def filter_of(checkpoint: Checkpoint) -> str:
    """What it speaks of, for people: nodes know collections by these ids."""
    if checkpoint.collections:
        return f"collections {', '.join(f'0x{collection:x}' for collection in checkpoint.collections)}"
    return "the whole bucket" if checkpoint.scope is None else f"scope 0x{checkpoint.scope:x}"


def _sorted(positions: Any) -> tuple[StreamPosition, ...]:
    return tuple(sorted(positions, key=lambda position: position.vbucket))


def _earlier(one: StreamPosition, other: StreamPosition) -> StreamPosition:
    low, high = sorted((one, other), key=lambda position: position.seqno)
    if low.seqno == 0:
        return low
    if low.seqno == high.seqno:
        # The older name of the same place is known to more nodes.
        low, high = (low, high) if high.history.end_of(low.vbuuid, 0) is not None else (high, low)
        window = min(low.snapshot_start, high.snapshot_start), max(low.snapshot_end, high.snapshot_end)
        low = replace(low, snapshot_start=window[0], snapshot_end=window[1])
    return low.within(low.history.common(high.history))


def _later(one: StreamPosition, other: StreamPosition) -> StreamPosition:
    low, high = sorted((one, other), key=lambda position: position.seqno)
    agree = low.seqno < high.seqno and _same_history(low, high)
    return high if agree else _earlier(one, other)


def _same_history(low: StreamPosition, high: StreamPosition) -> bool:
    """Whether all of the lower position, its snapshot included, is in the history of the higher one."""
    return low.seqno == 0 or low.snapshot_end <= low.history.common(high.history)


def _difference(vbucket: int, before: StreamPosition | None, after: StreamPosition | None) -> Difference:
    one, other = before or StreamPosition(vbucket), after or StreamPosition(vbucket)
    low, high = sorted((one, other), key=lambda position: position.seqno)
    return Difference(vbucket, before, after, other.seqno - one.seqno, _same_history(low, high))


def _to_tree(position: StreamPosition) -> dict[str, Any]:
    return {
        "seqno": str(position.seqno),
        "snapshot": [str(position.snapshot_start), str(position.snapshot_end)],
        "vbuuid": str(position.vbuuid),
        "manifest_uid": str(position.manifest_uid),
        "purge_seqno": str(position.purge_seqno),
        "failover_log": [[str(branch.vbuuid), str(branch.seqno)] for branch in position.failover_log],
        "marks": [str(mark) for mark in position.marks],
    }


def _from_tree(vbucket: int, row: JsonReader) -> StreamPosition:
    row.members("seqno", "snapshot", "vbuuid", "manifest_uid", "purge_seqno", "failover_log", "marks")
    start, end = _pair(row["snapshot"])
    log = FailoverLog.of(_pair(entry) for entry in row["failover_log"])
    numbers = {name: row[name].number() for name in ("seqno", "vbuuid", "manifest_uid", "purge_seqno")}
    marks = tuple(mark.number() for mark in row["marks"])
    try:
        return StreamPosition(vbucket, snapshot_start=start, snapshot_end=end, failover_log=log, marks=marks, **numbers)
    except LocalProtocolError as wrong:
        raise CheckpointError(f"{row.path}: {wrong}") from None


def _pair(node: JsonReader) -> tuple[int, int]:
    numbers = [number.number() for number in node]
    if len(numbers) != 2:
        node.refuse("two numbers")
    return numbers[0], numbers[1]


def _vbucket(name: str, row: JsonReader) -> int:
    return replace(row, value=name).number(_MOST_VBUCKETS - 1)


_HEAD: dict[str, Callable[[JsonReader], Any]] = {
    "bucket": JsonReader.text,
    "bucket_uuid": JsonReader.text,
    "num_vbuckets": lambda node: node.number(_MOST_VBUCKETS),
    "scope": lambda node: node.number(_MOST_ID),
    "collections": lambda node: tuple(collection.number(_MOST_ID) for collection in node),
}
