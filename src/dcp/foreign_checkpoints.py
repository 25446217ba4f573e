"""Readers and writers for the checkpoint formats of other DCP consumers.

Their numbers are plain JSON. Java and Scala have no unsigned numbers, and write 2^64 - 1 as -1.

Such a position may lack its snapshot window, or contradict it: an old offset has a seqno only, a seqno may lie outside
its window because the two were saved one after the other, and the Spark connector invents a window of the one seqno.
Then the window counts as unknown, from 0 to UNKNOWN_END, and the node answers with a rollback to 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from dcp.errors import CheckpointError
from dcp.json_reader import MAX_U64, JsonReader
from dcp.position import NO_LOG, UNKNOWN_END, FailoverLog, StreamPosition

_MOST_VBUCKETS = 1 << 16


class BucketId(NamedTuple):
    """Name and UUID of the bucket that a checkpoint belongs to; empty where the format has no field for it."""

    name: str = ""
    uuid: str = ""


Found = tuple[BucketId, list[StreamPosition]]


class CheckpointFormat(NamedTuple):
    """Reader and writer of one format."""

    read: Callable[[JsonReader], Found]
    write: Callable[[BucketId, Iterable[StreamPosition]], Any]


def read(kind: str, text: str | bytes) -> Found:
    """Return the bucket and the positions in a file of another consumer. Raises CheckpointError if it is malformed."""
    return _format(kind).read(JsonReader.parse(text, kind, CheckpointError))


def write(kind: str, bucket: BucketId, positions: Iterable[StreamPosition]) -> str:
    """Return the positions as text in the format of another consumer."""
    return json.dumps(_format(kind).write(bucket, positions))


def _format(kind: str) -> CheckpointFormat:
    if kind not in FORMATS:
        raise CheckpointError(f"kind: expected {', '.join(sorted(FORMATS))}, found {kind!r}")
    return FORMATS[kind]


def _position(
    vbucket: int,
    seqno: int,
    vbuuid: int,
    window: tuple[int, int] | None,
    manifest_uid: int = 0,
    log: FailoverLog = NO_LOG,
) -> StreamPosition:
    """Return a position; its window is unknown if it is missing or does not contain the seqno."""
    start, end = window if window and window[0] <= seqno <= window[1] else (0, UNKNOWN_END)
    if seqno == 0:
        start, end = 0, 0
    return StreamPosition(vbucket, vbuuid, seqno, start, end, manifest_uid, failover_log=log)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _java(node: JsonReader, name: str) -> int:
    """Return a signed member, or 0 if it is absent."""
    found = node.get(name)
    return 0 if found is None else found.number(signed=True)


def _window(node: JsonReader, start: str, end: str) -> tuple[int, int] | None:
    first, last = node.get(start), node.get(end)
    return None if first is None or last is None else (first.number(signed=True), last.number(signed=True))


def _vbuckets(node: JsonReader) -> Iterator[tuple[int, JsonReader]]:
    """Yield the members of an object by vbucket number.

    Names are numbers, or keys of checkpoint documents, which may end in a salt that put them into their vbucket.
    """
    for name, member in node.members().items():
        number = re.fullmatch(r"(?:.*:checkpoint:)?([0-9]{1,5})(?:#.*)?", name, re.DOTALL)
        if number is None or int(number[1]) >= _MOST_VBUCKETS:
            raise CheckpointError(f"{member.path}: expected the number of a vbucket, or the key of its document")
        yield int(number[1]), member


# Kafka Connect: offsets of a source connector, as its REST interface returns them.


def _read_kafka(root: JsonReader) -> Found:
    bucket = BucketId()
    positions = []
    for entry in root["offsets"]:
        partition, offset = entry["partition"], entry["offset"]
        name = partition["bucket"]
        if bucket.name not in ("", name.text()):
            name.refuse(f"one bucket, {bucket.name!r}")
        bucket = BucketId(name.text())
        positions.append(
            _position(
                partition["partition"].number(_MOST_VBUCKETS - 1),
                offset["bySeqno"].number(signed=True),
                _java(offset, "vbuuid"),
                _window(offset, "snapshotStartSeqno", "snapshotEndSeqno"),
                _java(offset, "collectionsManifestUid"),
            )
        )
    return bucket, positions


def _write_kafka(bucket: BucketId, positions: Iterable[StreamPosition]) -> Any:
    if not bucket.name:
        raise CheckpointError("kafka-connect: expected the bucket's name in the checkpoint, found none")
    return {
        "offsets": [
            {
                "partition": {"bucket": bucket.name, "partition": str(position.vbucket)},
                "offset": {
                    "bySeqno": _signed(position.seqno),
                    "vbuuid": _signed(position.vbuuid),
                    "snapshotStartSeqno": _signed(position.snapshot_start),
                    "snapshotEndSeqno": _signed(position.snapshot_end),
                    "collectionsManifestUid": _signed(position.manifest_uid),
                },
            }
            for position in positions
        ]
    }


# The Elasticsearch connector and go-dcp: one document per vbucket, or the file of cbes-checkpoint-backup.


def _read_state(vbucket: int, state: JsonReader) -> StreamPosition:
    return _position(
        vbucket,
        state["seqno"].number(signed=True),
        _java(state, "vbuuid"),
        _window(state["snapshot"], "startSeqno", "endSeqno"),
    )


def _write_state(position: StreamPosition, number: Callable[[int], int]) -> Any:
    return {
        "vbuuid": number(position.vbuuid),
        "seqno": number(position.seqno),
        "snapshot": {"startSeqno": number(position.snapshot_start), "endSeqno": number(position.snapshot_end)},
    }


def _read_documents(root: JsonReader) -> Found:
    bucket = BucketId()
    positions = []
    for vbucket, document in _vbuckets(root):
        uuid = document.get("bucketUuid")
        if uuid is not None and uuid.text():
            if bucket.uuid not in ("", uuid.text()):
                uuid.refuse(f"one bucket, {bucket.uuid!r}")
            bucket = BucketId(uuid=uuid.text())
        positions.append(_read_state(vbucket, document["checkpoint"]))
    return bucket, positions


def _documents(number: Callable[[int], int]) -> CheckpointFormat:
    def write(bucket: BucketId, positions: Iterable[StreamPosition]) -> Any:
        return {
            str(position.vbucket): {"checkpoint": _write_state(position, number), "bucketUuid": bucket.uuid}
            for position in positions
        }

    return CheckpointFormat(_read_documents, write)


def _read_backup(root: JsonReader) -> Found:
    version = root["formatVersion"]
    if version.value != 1:
        version.refuse("version 1")
    uuid = root.get("bucketUuid")
    positions = [_read_state(vbucket, state) for vbucket, state in _vbuckets(root["vbuckets"])]
    return BucketId(uuid="" if uuid is None else uuid.text()), positions


def _write_backup(bucket: BucketId, positions: Iterable[StreamPosition]) -> Any:
    states = {str(position.vbucket): _write_state(position, _signed) for position in positions}
    return {"formatVersion": 1, "bucketUuid": bucket.uuid, "vbuckets": states}


# cbdatasource: metadata of a receiver. The last seqno is kept by the receiver itself, and may be added as `lastSeq`.


def _read_cbdatasource(root: JsonReader) -> Found:
    return BucketId(), [_read_metadata(vbucket, metadata) for vbucket, metadata in _vbuckets(root)]


def _read_metadata(vbucket: int, metadata: JsonReader) -> StreamPosition:
    """Return a position. Without the last seqno, only what lies before the last snapshot is known to have arrived."""
    log = _log((_entry(pair) for pair in metadata.get("failOverLog") or ()), metadata)
    first, last = metadata["snapStart"].number(), metadata["snapEnd"].number()
    seqno = metadata.get("lastSeq")
    if seqno is None:
        return _position(vbucket, max(first - 1, 0), _newest(log), None, log=log)
    return _position(vbucket, seqno.number(), _newest(log), (first, last), log=log)


def _entry(pair: JsonReader) -> tuple[int, int]:
    numbers = [number.number() for number in pair]
    if len(numbers) != 2:
        pair.refuse("a vbuuid and a seqno")
    return numbers[0], numbers[1]


def _write_cbdatasource(bucket: BucketId, positions: Iterable[StreamPosition]) -> Any:
    return {
        str(position.vbucket): {
            "seqStart": position.seqno,
            "seqEnd": MAX_U64,
            "snapStart": position.snapshot_start,
            "snapEnd": position.snapshot_end,
            "failOverLog": [list(branch) for branch in position.history],
            "lastSeq": position.seqno,
        }
        for position in positions
    }


# The Spark connector: offsets in the checkpoint of a query, one group of vbuckets per partition.


def _read_spark(root: JsonReader) -> Found:
    """Return the start of each range: whether the batch up to its end was written is unknown."""
    starts = [start for group in root for start in _vbuckets(group["start"])]
    return BucketId(), [_read_spark_offset(vbucket, offset) for vbucket, offset in starts]


def _read_spark_offset(vbucket: int, offset: JsonReader) -> StreamPosition:
    window = _window(offset, "snapshotStartSeqno", "snapshotEndSeqno")
    if window is not None and window[0] == window[1]:
        window = None
    seqno, vbuuid = offset["seqno"].number(signed=True), _java(offset, "vbuuid")
    return _position(vbucket, seqno, vbuuid, window, _java(offset, "collectionsManifestUid"))


def _write_spark(bucket: BucketId, positions: Iterable[StreamPosition]) -> Any:
    offsets = {
        str(position.vbucket): {
            "vbuuid": _signed(position.vbuuid),
            "seqno": _signed(position.seqno),
            "snapshotStartSeqno": _signed(position.snapshot_start),
            "snapshotEndSeqno": _signed(position.snapshot_end),
            "collectionsManifestUid": _signed(position.manifest_uid),
        }
        for position in positions
    }
    return [{"start": offsets}]


# The Java client: a list with one state for each vbucket.


def _read_java(root: JsonReader) -> Found:
    return BucketId(), [_read_partition(vbucket, state) for vbucket, state in enumerate(root["ps"])]


def _read_partition(vbucket: int, state: JsonReader) -> StreamPosition:
    entries = ((_java(entry, "uuid"), _java(entry, "seqno")) for entry in state.get("flog") or ())
    log = _log(entries, state)
    seqno = state["ss"].number(signed=True)
    return _position(vbucket, seqno, _newest(log), _window(state, "sss", "ses"), _java(state, "cm"), log)


def _write_java(bucket: BucketId, positions: Iterable[StreamPosition]) -> Any:
    states = []
    for number, position in enumerate(positions):
        if number != position.vbucket:
            raise CheckpointError(f"java-dcp-client: expected a position of every vbucket, found none of {number}")
        states.append(
            {
                "flog": [{"seqno": _signed(seqno), "uuid": _signed(vbuuid)} for vbuuid, seqno in position.history],
                "ss": _signed(position.seqno),
                "es": _signed(MAX_U64),
                "sss": _signed(position.snapshot_start),
                "ses": _signed(position.snapshot_end),
                "cm": _signed(position.manifest_uid),
            }
        )
    return {"v": 1, "ps": states}


def _log(entries: Iterable[tuple[int, int]], node: JsonReader) -> FailoverLog:
    log = FailoverLog.of(entries)
    seqnos = [branch.seqno for branch in log]
    if seqnos != sorted(seqnos, reverse=True):
        raise CheckpointError(f"{node.path}: expected a failover log, newest first, found the seqnos {seqnos[:25]}")
    return log


def _newest(log: FailoverLog) -> int:
    return log.newest.vbuuid if log.branches else 0


FORMATS = {
    "cbdatasource": CheckpointFormat(_read_cbdatasource, _write_cbdatasource),
    "cbes": _documents(_signed),
    "cbes-backup": CheckpointFormat(_read_backup, _write_backup),
    "go-dcp": _documents(int),
    "java-dcp-client": CheckpointFormat(_read_java, _write_java),
    "kafka-connect": CheckpointFormat(_read_kafka, _write_kafka),
    "spark-3": CheckpointFormat(_read_spark, _write_spark),
}
