"""Checkpoints: their JSON, refusals, comparisons, and the file that keeps one."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dcp.checkpoint import Checkpoint, CheckpointFile
from dcp.errors import CheckpointError
from dcp.position import FailoverLog, StreamPosition
from tests.strategies import checkpoints


def at(
    seqno: int,
    vbuuid: int = 0xA,
    log: FailoverLog | None = None,
    window: tuple[int, int] | None = None,
    marks: tuple[int, ...] = (),
) -> StreamPosition:
    start, end = window or (seqno, seqno)
    return StreamPosition(3, vbuuid, seqno, start, end, 0, 0, log or FailoverLog.of([(vbuuid, 0)]), marks)


def of(*those: StreamPosition, **more: Any) -> Checkpoint:
    return Checkpoint(those, **more)


@given(checkpoints())
def test_what_is_written_is_read_again(checkpoint: Checkpoint) -> None:
    text = checkpoint.to_json()
    assert Checkpoint.from_json(text) == checkpoint
    assert Checkpoint.from_json(text.encode()) == checkpoint


def test_a_person_reads_a_line_for_each_vbucket_and_no_number_above_53_bits() -> None:
    lines = of(at(1500, 0xA1B2, window=(1450, 1600)), StreamPosition(10), num_vbuckets=64).to_json().splitlines()
    assert lines[9] == (
        '    "3": {"seqno": "1500", "snapshot": ["1450", "1600"], "vbuuid": "41394", "manifest_uid": "0", '
        '"purge_seqno": "0", "failover_log": [["41394", "0"]], "marks": []},'
    )
    assert lines[10].startswith('    "10": {"seqno": "0", ')
    assert json.loads("".join(lines))["num_vbuckets"] == 64


@given(checkpoints(), st.data())
def test_a_torn_checkpoint_is_refused(checkpoint: Checkpoint, data: st.DataObject) -> None:
    text = checkpoint.to_json().rstrip()
    with pytest.raises(CheckpointError, match=r"^checkpoint: line \d+, column \d+: "):
        Checkpoint.from_json(text[: data.draw(st.integers(0, len(text) - 1))])


@given(st.binary(max_size=30) | st.recursive(st.none() | st.text(), st.lists).map(json.dumps).map(str.encode))
@example(b"[" * 100_000)
@example(b'{"format": NaN}')
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"^checkpoint"):
        Checkpoint.from_json(text)


SOUND = json.loads(of(at(5, window=(3, 9)), num_vbuckets=64).to_json())

WRONG: list[tuple[list[str], Any, str]] = [
    (["format"], "other", "checkpoint.format: expected 'dcp checkpoint', found 'other'"),
    (["version"], 2, "checkpoint.version: expected 1, found 2"),
    (["extra"], 1, "found a member 'extra'"),
    (["num_vbuckets"], 3, "positions: expected vbuckets below 3 in order, each once, found [3]"),
    (["bucket"], 5, "checkpoint.bucket: expected text, found 5"),
    (["positions"], None, "checkpoint: expected a member 'positions', found none"),
    (["positions", "x"], {}, "checkpoint.positions.x: expected a whole number from 0 to 65535, found 'x'"),
    (["positions", "70000"], {}, "expected a whole number from 0 to 65535"),
    (["positions", "3", "seqno"], 1.5, "checkpoint.positions.3.seqno: expected a whole number from 0 to"),
    (["positions", "3", "seqno"], True, "found True"),
    (["positions", "3", "seqno"], str(1 << 64), "found '18446744073709551616'"),
    (["positions", "3", "seqno"], "10", "expected a seqno inside its snapshot, found 10 and 3 to 9"),
    (["positions", "3", "snapshot"], ["3"], "checkpoint.positions.3.snapshot: expected two numbers, found a list"),
    (["positions", "3", "failover_log"], [["1"]], "checkpoint.positions.3.failover_log[0]: expected two numbers"),
    (["positions", "3", "marks"], None, "expected a member 'marks', found none"),
    (["positions", "3", "typo"], "1", "checkpoint.positions.3: expected seqno, snapshot"),
]


@pytest.mark.parametrize(("path", "value", "problem"), WRONG)
def test_what_is_wrong_is_said_with_its_place(path: list[str], value: Any, problem: str) -> None:
    tree = json.loads(json.dumps(SOUND))
    inner = tree
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_json(json.dumps(tree))
    assert problem in str(caught.value)


def test_a_vbucket_twice_is_refused() -> None:
    text = of(at(5)).to_json().replace('"positions": {', '"positions": {"3": {},')
    with pytest.raises(CheckpointError, match="member '3' is there twice"):
        Checkpoint.from_json(text)


@pytest.mark.parametrize(
    ("checkpoint", "stream", "problem"),
    [
        (of(bucket_uuid="a"), of(bucket_uuid="b"), "bucket_uuid: expected 'b', found 'a'"),
        (of(num_vbuckets=64), of(num_vbuckets=1024), "num_vbuckets: expected 1024, found 64"),
        (of(collections=(8, 9)), of(), "expected one of the whole bucket, found one of collections 0x8, 0x9"),
        (of(collections=(8, 9)), of(collections=(9, 10)), "expected one of collections 0x9, 0xa or"),
        (of(scope=8), of(scope=9), "found one of scope 0x8"),
        (of(scope=8), of(collections=(8,)), "found one of scope 0x8"),
    ],
)
def test_a_foreign_checkpoint_is_refused(checkpoint: Checkpoint, stream: Checkpoint, problem: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        checkpoint.check(stream)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("checkpoint", "stream"),
    [
        (of(), of(bucket_uuid="b", num_vbuckets=64, scope=8)),
        (of(), of(collections=(8,))),
        (of(collections=(8, 9)), of(collections=(9,))),
        (of(scope=8, bucket_uuid="b"), of(scope=8, bucket_uuid="b")),
    ],
)
def test_a_stream_of_the_same_or_less_may_go_on(checkpoint: Checkpoint, stream: Checkpoint) -> None:
    checkpoint.check(stream)


B = FailoverLog.of([(0xB, 50), (0xA, 0)])

# Two positions, the one from which neither consumer misses anything, and the higher one.
MERGES = [
    (at(10), at(20), at(10), at(20)),
    (at(10), at(20, 0xB, FailoverLog.of([(0xB, 15), (0xA, 0)])), at(10), "second"),
    (at(100, marks=(40, 20)), at(200, 0xB, B), at(40, marks=(20,)), at(40, marks=(20,))),
    (at(100, window=(30, 120), marks=(40, 20)), at(200, 0xB, B), at(20, marks=()), at(20, marks=())),
    (at(100), at(200, 0xB, B), StreamPosition(3), StreamPosition(3)),
    (at(10, 0xA), at(20, 0xC), StreamPosition(3), StreamPosition(3)),
    (at(10, window=(5, 70), marks=(3,)), at(90, 0xB, B), at(3), at(3)),
    (at(10, window=(5, 12)), at(10, window=(7, 15)), at(10, window=(5, 15)), at(10, window=(5, 15))),
    (StreamPosition(3), at(20), StreamPosition(3), at(20)),
    # Checkpoints of other consumers have no failover log: the vbuuid is a history of its own.
    (StreamPosition(3, 0xA, 10, 10, 10), at(20), StreamPosition(3, 0xA, 10, 10, 10), at(20)),
    (StreamPosition(3, 0xA, 10, 10, 10), at(20, 0xB), StreamPosition(3), StreamPosition(3)),
]


@pytest.mark.parametrize(("one", "other", "earliest", "latest"), MERGES)
def test_two_checkpoints_become_one(
    one: StreamPosition, other: StreamPosition, earliest: StreamPosition, latest: StreamPosition | str
) -> None:
    for mine, its in [(one, other), (other, one)]:
        assert of(mine).earliest(of(its)).positions == (earliest,)
        assert of(mine).latest(of(its)).positions == (other if latest == "second" else latest,)


def test_a_vbucket_that_only_one_has_is_at_its_beginning_in_the_other() -> None:
    one, other = of(at(5), bucket="b"), of(StreamPosition(4, 1, 9, 9, 9), bucket_uuid="u")
    assert one.earliest(other) == of(bucket="b", bucket_uuid="u")
    assert [position.vbucket for position in other.latest(one)] == [3, 4]


def test_checkpoints_of_different_buckets_do_not_merge() -> None:
    with pytest.raises(CheckpointError, match="bucket_uuid"):
        of(bucket_uuid="a").latest(of(bucket_uuid="b"))


def test_a_difference_says_how_far_and_whether_it_is_the_same_history() -> None:
    before, after = of(at(100), StreamPosition(4, 1, 9, 9, 9)), of(at(200, 0xB, B))
    moved, gone = before.diff(after)
    assert (moved.vbucket, moved.items, moved.same_history) == (3, 100, False)
    assert (gone.vbucket, gone.items, gone.after, gone.same_history) == (4, -9, None, True)
    assert before.diff(before) == ()


def test_the_lag_is_what_lies_above_and_never_negative() -> None:
    assert of(at(100)).lag({4: 7, 3: 130}) == {3: 30, 4: 7}
    assert of(at(100)).lag({3: 90}) == {3: 0}


@pytest.mark.parametrize("merge", [Checkpoint.earliest, Checkpoint.latest])
def test_only_checkpoints_of_one_selection_are_merged(merge: Callable[[Checkpoint, Checkpoint], Checkpoint]) -> None:
    """A checkpoint of the whole bucket may be resumed with less, so both ways are tried."""
    whole, part = of(at(5)), of(at(6), collections=(8,))
    for one, other in ((whole, part), (part, whole)):
        with pytest.raises(CheckpointError):
            merge(one, other)


def test_a_file_keeps_the_last_checkpoint_and_nothing_else(tmp_path: Any) -> None:
    file = CheckpointFile(tmp_path / "position.json")
    assert file.load() is None
    for checkpoint in (of(at(5)), of(at(6))):
        file.save(checkpoint)
        assert file.load() == checkpoint
    assert [path.name for path in tmp_path.iterdir()] == ["position.json"]


def test_a_save_lasts_the_content_first_and_then_the_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "position.json"
    synced = []

    def fsync(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((is_directory, os.fstat(descriptor).st_size > 0, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    CheckpointFile(path).save(of(at(5)))
    name = [] if os.name == "nt" else [(True, True, True)]
    assert synced == [(False, True, False), *name]


def test_a_save_that_was_cut_leaves_the_old_checkpoint(tmp_path: Any) -> None:
    file = CheckpointFile(tmp_path / "position.json")
    file.save(of(at(5)))
    (tmp_path / ".position.json.new").write_text(of(at(6)).to_json()[:40])
    assert file.load() == of(at(5))
    file.save(of(at(7)))
    assert file.load() == of(at(7))


def test_a_file_that_is_no_checkpoint_is_named(tmp_path: Any) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"other\.json: checkpoint: expected a member 'format'"):
        CheckpointFile(path).load()


@pytest.mark.parametrize("text", [{}, None, 1])
def test_what_is_no_text_is_no_checkpoint(text: object) -> None:
    with pytest.raises(CheckpointError, match="checkpoint: expected JSON as text or bytes, found a"):
        Checkpoint.from_json(text)  # type: ignore[arg-type]


def test_a_mark_of_the_byte_order_does_not_matter() -> None:
    text = "\ufeff" + of().to_json()
    assert Checkpoint.from_json(text) == Checkpoint.from_json(text.encode()) == of()
