"""Offsets: positions as the JSON that Spark keeps, and which of them a stream can resume from."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.checkpoint import Checkpoint
from dcp.embedded import Cluster
from dcp.errors import CheckpointError, LocalProtocolError
from dcp.position import UNKNOWN_END, FailoverLog, StreamPosition
from dcp.spark.offsets import (
    Floor,
    LoggedPosition,
    Offset,
    Selection,
    check_not_wider,
    check_resumable,
    from_offset,
    to_offset,
)
from dcp.spark.resume import ObservedVbucket, position_after, start_at
from tests.spark.query import fresh_query
from tests.spark.rows import truth
from tests.strategies import checkpoints

IDENTITY = Checkpoint((), 4, "travel", "aa")
HERE = Offset(IDENTITY, (LoggedPosition(1, 0xAB, 70, UNKNOWN_END, (Floor(60, 65), Floor(50, 50))),), Selection())
# As version 1 of the format wrote it.
OLD: dict[str, Any] = {
    "version": 1,
    "bucket": "travel",
    "uuid": "aa",
    "vbuckets": 4,
    "scope": None,
    "collections": [],
    "positions": {"1": f"70 ab 60 {UNKNOWN_END} 50,20", "10": "7 ab 7 7 ", "2": "0 0 0 0 "},
}


@st.composite
def offsets(draw: st.DrawFn) -> Offset:
    here = draw(checkpoints())
    names = st.none() | st.lists(st.text(min_size=1), min_size=1).map(tuple)
    selection = st.builds(Selection, names, names, st.none() | st.text(min_size=1))
    return replace(Offset.of(here, Selection()), selection=draw(st.none() | selection))


@given(offsets())
def test_an_offset_survives_the_json_of_any_reader(here: Offset) -> None:
    # A JSON parser that reads numbers as doubles rounds those of more than 53 bits.
    text = json.dumps(to_offset(here), sort_keys=True)
    there = from_offset(json.loads(text, parse_int=lambda digits: int(float(digits))))
    assert there == here
    assert json.dumps(to_offset(there), sort_keys=True) == text


def test_an_offset_names_the_first_vbucket_of_each_run() -> None:
    positions = (LoggedPosition(0), *HERE, LoggedPosition(7, 0xC, 5, 5), LoggedPosition(8, 0xC, 5, 8, (Floor(2, 2),)))
    offset = to_offset(replace(HERE, identity=replace(IDENTITY, num_vbuckets=64), positions=positions))
    assert offset["version"] == 2
    assert offset["positions"] == {"0": ["0 0", "70+ ab 10+5,20"], "7": ["5 c", "5+3 c 3"]}
    assert from_offset(offset).positions == positions


@pytest.mark.parametrize(
    ("until", "floors", "start", "marks"),
    [
        (70, (), 70, ()),
        (70, (Floor(60, 60), Floor(50, 55), Floor(40, 40)), 70, (60, 40)),
        (75, (Floor(60, 60), Floor(50, 55), Floor(40, 40)), 60, (60, 40)),
        # A batch that read nothing begins where it ends.
        (UNKNOWN_END, (Floor(70, 70), Floor(60, 60)), 60, (60,)),
        (UNKNOWN_END, (Floor(70, 75),), 0, ()),
    ],
)
def test_the_checkpoint_of_an_offset_begins_at_the_last_floor_that_is_whole(
    until: int, floors: tuple[Floor, ...], start: int, marks: tuple[int, ...]
) -> None:
    here = replace(HERE, positions=(LoggedPosition(1, 0xAB, 70, until, floors),))
    assert [*here.checkpoint()] == [StreamPosition(1, 0xAB, 70, start, until, marks=marks)]


def test_an_offset_of_the_first_version_is_read() -> None:
    found = from_offset(OLD | {"vbuckets": 64})
    assert found.selection is None
    assert found.positions == (
        LoggedPosition(1, 0xAB, 70, UNKNOWN_END, (Floor(60, 60), Floor(50, 50), Floor(20, 20))),
        LoggedPosition(2),
        LoggedPosition(10, 0xAB, 7, 7),
    )


def test_a_query_goes_on_from_an_offset_of_the_first_version() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1, seed=1) as cluster:
        cluster.load(100)
        with fresh_query(cluster.url) as query:
            query.batch()
            new = dict(query.offset)
            rows = {str(here.vbucket): f"{here.seqno} {here.vbuuid:x} 0 {UNKNOWN_END} " for here in from_offset(new)}
            del new["rows"]
            query.offset = new | {"version": 1, "positions": rows}
            cluster.load(150)
            # Its batch was logged by the first version, too, and is repeated after a failover.
            end = from_offset(query.log_end())
            rows = {
                str(here.vbucket): f"{here.seqno} {here.vbuuid:x} {floor} {UNKNOWN_END} {floor}"
                for here in end
                for floor in [here.floors[0].seqno]
            }
            query.end = new | {"version": 1, "positions": rows}
            query.restart()
            cluster.failover(0, lose=0)
            query.batch()
            assert query.reader.documents == truth(cluster)
            assert query.next_end()["version"] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"version": None},
        {"positions": None},
        {"positions": {"one": ["7 ab"]}},
        {"positions": {"1": "7 ab"}},
        {"positions": {"1": ["7"]}},
        {"positions": {"1": ["7 xy"]}},
        {"positions": {"1": ["7 ab 8"]}},
        {"positions": {"1": ["7 ab 1,1"]}},
        {"positions": {"1": ["7 ab 1,"]}},
        {"positions": {"1": ["7 ab", "7 ab"], "2": ["7 ab"]}},
        {"positions": {"4": ["7 ab"]}},
        {"collections": 3},
        {"rows": {"wheree": "x"}},
    ],
)
def test_a_damaged_offset_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError, match="expected"):
        from_offset(to_offset(HERE) | change)


@pytest.mark.parametrize(
    "positions", [{"1": "7 ab 5 9"}, {"1": "7 xy 5 9 "}, {"1": "7 ab 8 9 "}, {"one": "7 ab 5 9 "}, {"1": ["7 ab"]}]
)
def test_a_damaged_offset_of_the_first_version_is_refused(positions: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="expected"):
        from_offset(OLD | {"positions": positions})


@pytest.mark.parametrize(
    "wrong",
    [
        # The seqno is negative, or above what it is known up to.
        (-1, 5, ()),
        (5, 4, ()),
        (5, UNKNOWN_END + 1, ()),
        # So are floors, or they are not in order.
        (5, 5, (Floor(0, 3),)),
        (5, 5, (Floor(3, 2),)),
        (5, 5, (Floor(6, 6),)),
        (5, 5, (Floor(3, 3), Floor(3, 4))),
    ],
)
def test_a_position_is_below_what_it_is_known_up_to(wrong: tuple[int, int, tuple[Floor, ...]]) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        LoggedPosition(1, 0xAB, *wrong)
    assert LoggedPosition(1, 0xAB, 5, 5, (Floor(5, 5), Floor(1, 1))).seqno == 5


@given(st.sampled_from(sorted({*to_offset(HERE)} - {"rows"})))
def test_an_offset_that_lacks_something_is_refused(name: str) -> None:
    offset = to_offset(HERE)
    del offset[name]
    with pytest.raises(CheckpointError, match="offset: expected one that this source wrote"):
        from_offset(offset)


def test_offsets_of_1024_vbuckets_stay_below_60_kb_after_1000_batches() -> None:
    random, positions = Random(1), []
    # Their texts are independent of each other: an eighth of them has an eighth of the size.
    for vbucket in range(1024 - 128, 1024):
        log, high = FailoverLog.of([(random.getrandbits(63), 0)]), random.randrange(1_000_000, 1_000_000_000)
        here = LoggedPosition(vbucket)
        for _ in range(1000):
            # Others write between the plan of a batch and the next observation.
            start = start_at(here, ObservedVbucket(high + random.choice((0, 3, 90)), log))
            high += random.choice((0, 7, 150, 4000))
            here = position_after(start, high, ObservedVbucket(high, log), 0)
        positions.append(here)
    identity = replace(IDENTITY, num_vbuckets=1024)
    assert 8 * len(json.dumps(to_offset(Offset(identity, tuple(positions), Selection())))) <= 60_000


def test_a_stream_resumes_only_with_the_bucket_and_collections_that_it_started_with() -> None:
    check_resumable(HERE, IDENTITY, ())
    recreated = (
        "expected one of bucket 'travel' with the uuid bb, which the query reads, found one of bucket 'travel' with "
        "the uuid aa: bucket 'travel' was deleted and recreated, or the url leads to another cluster; start with"
    )
    with pytest.raises(CheckpointError, match=recreated):
        check_resumable(HERE, replace(IDENTITY, bucket_uuid="bb"), ())
    another = (
        "expected one of bucket 'hotels' with the uuid bb, which the query reads, found one of bucket 'travel' with "
        "the uuid aa: the checkpoint belongs to another query; start with"
    )
    with pytest.raises(CheckpointError, match=another):
        check_resumable(HERE, replace(IDENTITY, bucket="hotels", bucket_uuid="bb"), ())
    whole = IDENTITY
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
        check_resumable(replace(HERE, identity=logged), logged, ())
        with pytest.raises(CheckpointError, match=problem):
            check_resumable(replace(HERE, identity=logged), current, ())


@pytest.mark.parametrize(
    ("before", "now", "accepted"),
    [
        (Selection(), Selection(("mutation",), ("a*",), "x = 1"), True),
        (Selection(("mutation", "deletion")), Selection(("deletion",)), True),
        (Selection(("deletion",)), Selection(("mutation", "deletion")), False),
        (Selection(("deletion",)), Selection(), False),
        (Selection(("mutation", "deletion")), Selection(("deletion", "mutation")), True),
        (Selection(None, ("order::*",)), Selection(None, ("order::1*", "order::7")), True),
        (Selection(None, ("order::*",)), Selection(None, ("order:*",)), False),
        (Selection(None, ("order::*",)), Selection(None, ("*",)), False),
        (Selection(None, ("order::*", "user::7")), Selection(None, ("user::7", "order::*")), True),
        (Selection(None, ("order::7",)), Selection(None, ("order::7", "order::8")), False),
        (Selection(None, ("*a*",)), Selection(None, ("ba*", "*ab")), True),
        (Selection(None, ("a\\*",)), Selection(None, ("a*",)), False),
        (Selection(None, ("a*",)), Selection(None, ("a\\*",)), True),
        (Selection(None, None, "x = 1"), Selection(None, None, "x = 1"), True),
        (Selection(None, None, "x = 1"), Selection(None, None, "x = 2"), False),
        (Selection(None, None, "x = 1"), Selection(), False),
    ],
)
def test_a_query_cannot_be_restarted_with_options_that_select_more_rows(
    before: Selection, now: Selection, accepted: bool
) -> None:
    if accepted:
        check_not_wider(before, now)
    else:
        with pytest.raises(CheckpointError, match="expected only what the query selected so far"):
            check_not_wider(before, now)


def test_a_restarted_query_with_more_keys_is_refused_unless_losses_are_allowed() -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.upsert("a1", b"1")
        with fresh_query(cluster.url, keys="a*") as query:
            query.batch()
            offset = query.offset
        cluster.upsert("a2", b"2")
        with fresh_query(cluster.url, keys="a*,b*") as query, pytest.raises(CheckpointError, match="option keys"):
            query.driver.latestOffset(offset)
        with fresh_query(cluster.url, keys="a*,b*", failOnDataLoss="false") as query:
            assert query.driver.latestOffset(offset)["rows"] == {"keys": ["a*", "b*"]}
        with fresh_query(cluster.url, keys="a2") as query:
            assert query.driver.latestOffset(offset)["rows"] == {"keys": ["a2"]}


def test_the_checkpoint_of_an_offset_has_the_floors_that_any_client_can_go_back_to() -> None:
    assert HERE.checkpoint() == replace(
        IDENTITY, positions=(StreamPosition(1, 0xAB, 70, 50, UNKNOWN_END, marks=(50,)),)
    )
