"""Checkpoints: a position for each vbucket of a bucket, its JSON, comparison of two, and the file that keeps one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from dcp import foreign_checkpoints as foreign
from dcp.errors import CheckpointError, LocalProtocolError
from dcp.json_reader import JsonReader
from dcp.position import FailoverLog, StreamPosition

_FORMAT, _VERSION = "dcp checkpoint", 1
_MOST_VBUCKETS = 1 << 16
_MOST_ID = (1 << 32) - 1


class Difference(NamedTuple):
    """Difference between the positions of one vbucket in two checkpoints.

    before, after: the two positions; None where the checkpoint has none for this vbucket.
    items: number of seqnos that the position moved; negative if it moved back.
    same_history: True if the lower position lies in the history of the higher one.
    """

    vbucket: int
    before: StreamPosition | None
    after: StreamPosition | None
    items: int
    same_history: bool


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Positions of the vbuckets of one bucket. Immutable; a stream that starts from it resumes where it was taken.

    positions: one StreamPosition per vbucket, in order. A vbucket without one is at its beginning.
    num_vbuckets: number of vbuckets of the bucket; None if unknown.
    bucket, bucket_uuid: name and UUID of the bucket; empty if unknown.
    scope: id of the scope that the stream was limited to; None for all.
    collections: ids of the collections that the stream was limited to; empty for all.

    The last five keep the checkpoint from being used for another bucket or filter, see `check`.

    Raises CheckpointError if the positions are not in order, or a vbucket is out of range or there twice.
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
        """Return the positions by number of their vbucket."""
        return {position.vbucket: position for position in self.positions}

    def check(self, stream: Checkpoint) -> None:
        """Raise CheckpointError unless a stream can resume from this checkpoint.

        stream: an empty checkpoint with the bucket and filter of the stream.

        The filter has to be the same, or narrower: a collection that the checkpoint does not cover would begin
        in the middle.
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

    def check_bucket(self, stream: Checkpoint, *, holder: str = "checkpoint", remedy: str = "start without it") -> None:
        """Raise CheckpointError unless name, UUID and number of vbuckets agree. The filter may be another one.

        holder, remedy: name of the file or table with the checkpoint, and advice, for the message.
        """
        for name in ("bucket", "bucket_uuid", "num_vbuckets"):
            mine, its = getattr(self, name), getattr(stream, name)
            if mine and its and mine != its:
                raise CheckpointError(
                    f"{holder}: {name}: expected {its!r}, found {mine!r}: it belongs to another bucket, or to one "
                    f"that was deleted and recreated; {remedy}"
                )

    def to_json(self) -> str:
        """Return the checkpoint as JSON for `from_json`: one line per vbucket.

        64-bit numbers are strings, since most JSON readers would round them.
        """
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
        """Return the checkpoint that `to_json` wrote. Raises CheckpointError if the text is anything else."""
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
        """Return a checkpoint from the state that another DCP consumer keeps.

        kind: cbdatasource, cbes, cbes-backup, go-dcp, java-dcp-client, kafka-connect or spark-3.
        text: content of the file or document that the consumer wrote.

        A position whose snapshot window is missing or contradictory gets the window 0 to UNKNOWN_END: nothing is
        lost, but the node answers with a rollback to 0 and the vbucket is read again. For cbdatasource, which
        keeps no last seqno, the start of the snapshot counts. Of a Spark offset the start counts, since the batch
        up to its end may not have been written.

        Raises CheckpointError if the text is not of this kind.
        """
        bucket, positions = foreign.read(kind, text)
        return cls(_sorted(positions), bucket=bucket.name, bucket_uuid=bucket.uuid)

    def to_foreign(self, kind: str) -> str:
        """Return the checkpoint as another consumer would have written it, for the kinds of `from_foreign`.

        What its format has no field for is left out. Raises CheckpointError if the format cannot express it.
        """
        return foreign.write(kind, foreign.BucketId(self.bucket, self.bucket_uuid), self.positions)

    def earliest(self, other: Checkpoint) -> Checkpoint:
        """Return, for each vbucket in both, a position from which neither of the two consumers misses a change.

        Raises CheckpointError if the two are of different buckets or filters.
        """
        mine, its = self.by_vbucket(), other.by_vbucket()
        return self._merged(other, (_earlier(mine[vbucket], its[vbucket]) for vbucket in mine.keys() & its.keys()))

    def latest(self, other: Checkpoint) -> Checkpoint:
        """Return the higher position of each vbucket; where the two histories disagree, that of `earliest`.

        Raises CheckpointError if the two are of different buckets or filters.
        """
        mine, its = self.by_vbucket(), other.by_vbucket()
        both = (_later(mine[vbucket], its[vbucket]) for vbucket in mine.keys() & its.keys())
        alone = (mine.get(vbucket) or its[vbucket] for vbucket in mine.keys() ^ its.keys())
        return self._merged(other, (*both, *alone))

    def diff(self, after: Checkpoint) -> tuple[Difference, ...]:
        """Return the vbuckets whose position differs in `after`, in order."""
        mine, its = self.by_vbucket(), after.by_vbucket()
        return tuple(
            _difference(vbucket, mine.get(vbucket), its.get(vbucket))
            for vbucket in sorted(mine.keys() | its.keys())
            if mine.get(vbucket) != its.get(vbucket)
        )

    def lag(self, high_seqnos: Mapping[int, int]) -> dict[int, int]:
        """Return the lag of each vbucket: the number of seqnos up to its high seqno.

        high_seqnos: high seqno by vbucket; the result has the same vbuckets.
        """
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
    """Return the filter of a checkpoint for messages. Ids are hexadecimal, as nodes log them."""
    if checkpoint.collections:
        return f"collections {', '.join(f'0x{collection:x}' for collection in checkpoint.collections)}"
    return "the whole bucket" if checkpoint.scope is None else f"scope 0x{checkpoint.scope:x}"


def _sorted(positions: Any) -> tuple[StreamPosition, ...]:
    return tuple(sorted(positions, key=lambda position: position.vbucket))


def _earlier(one: StreamPosition, other: StreamPosition) -> StreamPosition:
    low, high = sorted((one, other), key=lambda position: position.seqno)
    # At the beginning nothing can be missed, and there is no history to compare.
    if low.seqno == 0:
        return low
    if low.seqno == high.seqno:
        # Same seqno under two vbuuids: more nodes know the older one.
        low, high = (low, high) if high.history.end_of(low.vbuuid, 0) is not None else (high, low)
        window = min(low.snapshot_start, high.snapshot_start), max(low.snapshot_end, high.snapshot_end)
        low = replace(low, snapshot_start=window[0], snapshot_end=window[1])
    return low.within(low.history.common(high.history))


def _later(one: StreamPosition, other: StreamPosition) -> StreamPosition:
    low, high = sorted((one, other), key=lambda position: position.seqno)
    agree = low.seqno < high.seqno and _same_history(low, high)
    return high if agree else _earlier(one, other)


def _same_history(low: StreamPosition, high: StreamPosition) -> bool:
    """Return whether the lower position, with its whole snapshot, lies in the history of the higher one."""
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


class CheckpointFile:
    """File that keeps the checkpoint of one consumer, readable at any moment, also after a crash.

    path: file to read and replace. A save first writes `.<name>.new` beside it.

    Only one process at a time may save.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self) -> Checkpoint | None:
        """Return the checkpoint saved last, or None if the file does not exist.

        Raises CheckpointError if the file holds anything else; OSError as Python's own functions do.
        """
        try:
            return Checkpoint.from_json(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except CheckpointError as wrong:
            raise CheckpointError(f"{self.path}: {wrong}") from None

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the file. Readers see the old checkpoint or the new one, also after a power loss.

        Raises OSError with the path of the file. Nothing but the old checkpoint is left then.
        """
        replace_file(self.path, checkpoint.to_json())


def replace_file(path: Path, text: str) -> None:
    """Write a file. Readers see the old content or the new one, also after a power loss.

    Raises OSError with the path of the file. Nothing but the old content is left then.
    """
    new = path.with_name(f".{path.name}.new")
    try:
        with naming(path):
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                # The data has to be on disk before the name points to it.
                os.fsync(file.fileno())
            new.replace(path)
            sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Give an OSError the path of the file that it is about: the error of a write, such as a full disk, has none."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def sync_directory(directory: Path) -> None:
    """Flush a directory, so that a rename in it survives a power loss. Windows has no such call, and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
