"""Offsets: checkpoints as the JSON that Spark keeps, and which of them a stream can resume from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.checkpoint import Checkpoint
from dcp.errors import CheckpointError, LocalProtocolError
from dcp.position import NO_LOG, StreamPosition
from dcp.spark.offsets import check_resumable, from_offset, to_offset
from tests.strategies import checkpoints

HERE = Checkpoint((StreamPosition(1, 0xAB, 7, 5, 9, marks=(4, 2)),), 4, "travel", "aa")


def kept(position: StreamPosition) -> StreamPosition:
    """Return a position without what a node reports again."""
    return replace(position, manifest_uid=0, purge_seqno=0, failover_log=NO_LOG)


@given(checkpoints())
def test_an_offset_survives_the_json_of_any_reader(here: Checkpoint) -> None:
    # A JSON parser that reads numbers as doubles rounds those of more than 53 bits.
    text = json.dumps(to_offset(here), sort_keys=True)
    there = from_offset(json.loads(text, parse_int=lambda digits: int(float(digits))))
    assert there == replace(here, positions=tuple(map(kept, here)))
    assert json.dumps(to_offset(there), sort_keys=True) == text


def test_an_offset_has_its_version() -> None:
    assert to_offset(HERE)["version"] == 1
    assert to_offset(HERE)["positions"] == {"1": "7 ab 5 9 4,2"}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": None},
        {"positions": None},
        {"positions": {"one": "7 ab 5 9 "}},
        {"positions": {"1": "7 ab 5 9"}},
        {"positions": {"1": "7 xy 5 9 "}},
        {"positions": {"1": "7 ab 8 9 "}},
        {"collections": 3},
    ],
)
def test_a_damaged_offset_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="expected"):
        from_offset(to_offset(HERE) | change)


@given(st.sampled_from(sorted(to_offset(HERE))))
def test_an_offset_that_lacks_something_is_refused(name: str) -> None:
    offset = to_offset(HERE)
    del offset[name]
    with pytest.raises(CheckpointError, match="offset: expected one that this source wrote"):
        from_offset(offset)


def test_a_stream_resumes_only_with_the_bucket_and_collections_that_it_started_with() -> None:
    check_resumable(HERE, replace(HERE, positions=()), ())
    with pytest.raises(CheckpointError, match="bucket 'travel' was deleted and recreated"):
        check_resumable(HERE, replace(HERE, positions=(), bucket_uuid="bb"), ())
    whole = replace(HERE, positions=())
    scope, some = replace(whole, scope=0x10), replace(whole, collections=(8, 0x1F))
    for logged, current, problem in (
        (whole, scope, "started with, the whole bucket, found scope 0x10: one was dropped"),
        (scope, some, "started with, scope 0x10, found collections 0x8, 0x1f: one was dropped"),
        (
            some,
            replace(some, collections=(8,)),
            "started with, collections 0x8, 0x1f, found collections 0x8: one was dropped",
        ),
    ):
        check_resumable(logged, logged, ())
        with pytest.raises(CheckpointError, match=problem):
            check_resumable(logged, current, ())
