"""Checkpoints of other consumers, as their own code writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.checkpoint import Checkpoint
from dcp.errors import CheckpointError
from dcp.foreign_checkpoints import FORMATS
from dcp.position import UNKNOWN_END, FailoverLog, StreamPosition

KINDS = sorted(FORMATS)
UUID = 0xA1B2C3D4E5F6

# A position inside a snapshot in each format, with the names of members from the consumers' sources.
STATE = {"vbuuid": UUID, "seqno": 1500, "snapshot": {"startSeqno": 1450, "endSeqno": 1600}}
OFFSET = {"vbuuid": UUID, "snapshotStartSeqno": 1450, "snapshotEndSeqno": 1600, "collectionsManifestUid": 28}
METADATA = {"seqStart": 0, "seqEnd": 0, "snapStart": 1450, "snapEnd": 1600, "failOverLog": [[UUID, 1200], [9, 0]]}
PARTITION = {
    "flog": [{"seqno": 1200, "uuid": UUID}, {"seqno": 0, "uuid": 9}],
    **{"ss": 1500, "es": -1, "sss": 1450, "ses": 1600, "cm": 28},
}
KAFKA_KEY = {"bucket": "travel", "partition": "0"}

WRITTEN: dict[str, Any] = {
    "cbdatasource": {"0": {**METADATA, "lastSeq": 1500}},
    "cbes": {"_connector:cbes:group:checkpoint:0#17": {"checkpoint": STATE, "bucketUuid": "8d35"}},
    "cbes-backup": {"formatVersion": 1, "bucketUuid": "8d35", "vbuckets": {"0": STATE}},
    "go-dcp": {"0": {"checkpoint": STATE, "bucketUuid": "8d35"}},
    "java-dcp-client": {"v": 1, "ps": [PARTITION]},
    "kafka-connect": {"offsets": [{"partition": KAFKA_KEY, "offset": {"bySeqno": 1500, **OFFSET}}]},
    "spark-3": [{"start": {"0": {"seqno": 1500, **OFFSET}}, "end": {"0": {"seqno": 9999, **OFFSET}}}],
}


def read(kind: str, tree: Any) -> Checkpoint:
    return Checkpoint.from_foreign(kind, json.dumps(tree))


def test_the_partitions_of_kafka_are_vbuckets() -> None:
    entry = {"partition": {"bucket": "travel", "partition": "65536"}, "offset": {"bySeqno": 1500, **OFFSET}}
    with pytest.raises(CheckpointError, match="a whole number from 0 to 65535, found '65536'"):
        read("kafka-connect", {"offsets": [entry]})


def test_a_backup_without_the_uuid_of_its_bucket_is_of_any() -> None:
    assert read("cbes-backup", {"formatVersion": 1, "vbuckets": {"0": STATE}}).bucket_uuid == ""
    assert read("cbes-backup", WRITTEN["cbes-backup"]).bucket_uuid == "8d35"


def window(checkpoint: Checkpoint) -> tuple[int, int, int]:
    (position,) = checkpoint
    return position.seqno, position.snapshot_start, position.snapshot_end


def test_every_format_is_tried() -> None:
    assert sorted(WRITTEN) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_peer_wrote_resumes_where_the_peer_was(kind: str) -> None:
    checkpoint = read(kind, WRITTEN[kind])
    (position,) = checkpoint
    assert position.resume_point() == (1500, UUID, 1450, 1600)
    knows_uuid = kind in ("cbes", "cbes-backup", "go-dcp")
    assert checkpoint.bucket_uuid == ("8d35" if knows_uuid else "")
    assert checkpoint.bucket == ("travel" if kind == "kafka-connect" else "")
    assert position.manifest_uid == (28 if kind in ("java-dcp-client", "kafka-connect", "spark-3") else 0)
    if kind in ("cbdatasource", "java-dcp-client"):
        assert position.failover_log == FailoverLog.of([(UUID, 1200), (9, 0)])


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_has_the_members_that_the_peer_reads(kind: str) -> None:
    checkpoint = read(kind, WRITTEN[kind])
    again = json.loads(Checkpoint(checkpoint.positions, 64, "travel", "8d35").to_foreign(kind))
    expected = json.loads(json.dumps(WRITTEN[kind]))
    if kind == "cbes":
        expected = {"0": next(iter(expected.values()))}
    if kind == "cbdatasource":
        expected["0"] |= {"seqStart": 1500, "seqEnd": (1 << 64) - 1}
    if kind == "spark-3":
        del expected[0]["end"]
    assert again == expected


numbers = st.integers(1, (1 << 64) - 1)


@st.composite
def positions(draw: st.DrawFn) -> StreamPosition:
    start, seqno, end = sorted(draw(st.lists(numbers, min_size=3, max_size=3, unique=True)))
    return StreamPosition(0, draw(numbers), seqno, start, end)


@pytest.mark.parametrize("kind", KINDS)
@given(position=positions())
def test_what_is_exported_is_imported_again(kind: str, position: StreamPosition) -> None:
    exported = Checkpoint((position,), bucket="travel").to_foreign(kind)
    (again,) = Checkpoint.from_foreign(kind, exported)
    assert again.resume_point() == position.resume_point()


@pytest.mark.parametrize("seqno", [1500, UNKNOWN_END])
@pytest.mark.parametrize("kind", ["cbes", "cbes-backup", "java-dcp-client", "kafka-connect", "spark-3"])
def test_java_has_no_unsigned_numbers(kind: str, seqno: int) -> None:
    unknown = Checkpoint((StreamPosition(0, UUID, seqno, 0, UNKNOWN_END),), bucket="travel")
    text = unknown.to_foreign(kind)
    assert "-1" in text
    assert str(UNKNOWN_END) not in text
    assert window(Checkpoint.from_foreign(kind, text)) == (seqno, 0, UNKNOWN_END)


OLD_KAFKA = {"offsets": [{"partition": KAFKA_KEY, "offset": {"bySeqno": 1500}}]}
LATE_METADATA = {"0": {**METADATA, "lastSeq": 1400}}
INVENTED = [{"start": {"0": {"seqno": 1500, "vbuuid": UUID, "snapshotStartSeqno": 1500, "snapshotEndSeqno": 1500}}}]


@pytest.mark.parametrize(
    ("kind", "tree", "seqno"),
    [
        ("kafka-connect", OLD_KAFKA, 1500),
        ("cbdatasource", LATE_METADATA, 1400),
        ("cbdatasource", {"0": METADATA}, 1449),
        ("spark-3", INVENTED, 1500),
    ],
)
def test_a_snapshot_that_is_not_known_is_taken_to_be_anything(kind: str, tree: Any, seqno: int) -> None:
    assert window(read(kind, tree)) == (seqno, 0, UNKNOWN_END)


@pytest.mark.parametrize("seqno", [1450, 1600])
def test_a_seqno_at_either_end_of_its_snapshot_is_in_it(seqno: int) -> None:
    offset = {"bySeqno": seqno, **OFFSET, "snapshotStartSeqno": 1450, "snapshotEndSeqno": 1600}
    found = read("kafka-connect", {"offsets": [{"partition": KAFKA_KEY, "offset": offset}]})
    assert window(found) == (seqno, 1450, 1600)


def test_a_vbucket_that_has_nothing_yet_begins_at_its_beginning() -> None:
    nothing = {"ss": 0, "es": -1, "sss": 0, "ses": 0, "flog": []}
    assert read("java-dcp-client", {"v": 1, "ps": [nothing]}).positions == (StreamPosition(0),)
    assert read("cbdatasource", {"0": {"snapStart": 0, "snapEnd": 9}}).positions == (StreamPosition(0),)


@pytest.mark.parametrize(
    ("kind", "tree", "problem"),
    [
        (
            "kafka",
            {},
            "kind: expected cbdatasource, cbes, cbes-backup, go-dcp, java-dcp-client, kafka-connect, spark-3",
        ),
        ("kafka-connect", {}, "kafka-connect: expected a member 'offsets', found none"),
        ("kafka-connect", {"offsets": {}}, "kafka-connect.offsets: expected a list, found an object"),
        ("go-dcp", {"x": {}}, "go-dcp.x: expected the number of a vbucket"),
        ("go-dcp", {"0": {"checkpoint": {**STATE, "seqno": 1.8e19}}}, "go-dcp.0.checkpoint.seqno: expected a whole"),
        ("cbes-backup", {"formatVersion": 2}, "cbes-backup.formatVersion: expected version 1, found 2"),
        ("cbdatasource", {"0": {**METADATA, "failOverLog": [[1]]}}, "failOverLog[0]: expected a vbuuid and a seqno"),
        ("cbdatasource", {"0": {**METADATA, "failOverLog": [[1, 0], [2, 5]]}}, "newest first, found the seqnos [0, 5]"),
        ("spark-3", [{"start": {"0": {"seqno": 1}}}, {"start": {"0": {"seqno": 2}}}], "each once, found [0, 0]"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(kind: str, tree: Any, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(kind, tree)
    assert problem in str(caught.value)


def test_two_buckets_make_no_checkpoint() -> None:
    other = {"partition": {"bucket": "beer", "partition": "1"}, "offset": {"bySeqno": 0}}
    with pytest.raises(CheckpointError, match="expected one bucket, 'travel', found 'beer'"):
        read("kafka-connect", {"offsets": [*OLD_KAFKA["offsets"], other]})
    with pytest.raises(CheckpointError, match="expected one bucket, 'a', found 'b'"):
        read("go-dcp", {vb: {"checkpoint": STATE, "bucketUuid": uuid} for vb, uuid in [("0", "a"), ("1", "b")]})


def test_what_a_format_cannot_do_without_is_asked_for() -> None:
    with pytest.raises(CheckpointError, match="expected the bucket's name"):
        Checkpoint((StreamPosition(0),)).to_foreign("kafka-connect")
    with pytest.raises(CheckpointError, match="found none of 0"):
        Checkpoint((StreamPosition(5),)).to_foreign("java-dcp-client")
