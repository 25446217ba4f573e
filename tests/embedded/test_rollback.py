"""The rollback test: case by case, and properties of all requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.embedded.rollback import Resume, RollbackRules, rollback_point
from dcp.position import FailoverLog

A, B, C, UNKNOWN = 0xA, 0xB, 0xC, 0xF
LOG = FailoverLog.of([(C, 300), (B, 100), (A, 0)])
HIGH = 350

# (start, uuid, snapshot start, snapshot end, other arguments), purge seqno, seqno to roll back to, reason.
CASES = [
    ((0, UNKNOWN, 0, 0, {}), 0, None, "nothing to check without the strict flag"),
    ((0, UNKNOWN, 0, 0, {"strict": True}), 0, 0, "unknown uuid"),
    ((0, 0, 0, 0, {"strict": True}), 0, None, "uuid 0 never rolls back at 0"),
    ((350, C, 350, 350, {}), 0, None, "caught up"),
    ((200, C, 150, 250, {}), 0, None, "inside a snapshot, latest branch"),
    ((200, B, 150, 250, {}), 0, None, "older branch, the snapshot ends before it did"),
    ((320, B, 310, 330, {}), 0, 300, "beyond the end of its branch"),
    ((320, B, 250, 330, {}), 0, 250, "the snapshot straddles the end: back to its start"),
    ((320, B, 250, 320, {}), 0, 300, "complete snapshot, but past the end"),
    ((250, B, 250, 330, {}), 0, None, "marker seen, no item of it"),
    ((100, A, 100, 100, {}), 0, None, "exactly at the end of its branch"),
    ((120, A, 120, 120, {}), 0, 100, "past the end of its branch"),
    ((50, UNKNOWN, 50, 50, {}), 0, 0, "no common history"),
    ((360, C, 360, 360, {}), 0, 350, "ahead of the latest branch"),
    ((345, C, 340, 400, {}), 0, 340, "the snapshot's end was lost"),
    ((340, C, 340, 400, {}), 0, None, "marker only; an end beyond high is tolerated"),
    ((150, C, 150, 150, {}), 180, 0, "purged past the start"),
    ((1, A, 1, 1, {}), 180, 0, "purged past the first seqno"),
    ((150, C, 150, 150, {"ignore_purged": True}), 180, None, "asked to ignore it"),
    ((150, C, 150, 150, {"purge_seqno": 180}), 180, None, "no purge since"),
    ((150, C, 150, 150, {"purge_seqno": 170}), 180, 0, "purged again since"),
    ((150, C, 150, 150, {"filtered_high": 140}), 180, None, "nothing of the collection lies beyond"),
    ((150, C, 150, 150, {"filtered_high": 150}), 180, None, "the collection ends where the consumer is"),
    ((150, C, 150, 150, {"filtered_high": 160}), 180, 0, "160 may have been purged"),
    ((150, C, 150, 150, {"filtered_high": 320}), 180, 0, "there is more of the collection"),
    ((180, C, 150, 200, {}), 180, None, "start equals purge"),
    ((0, C, 0, 0, {}), 180, None, "from the beginning"),
]


def resume(start: int, vbuuid: int, snapshot_start: int, snapshot_end: int, more: dict[str, int]) -> Resume:
    return Resume(start, vbuuid, snapshot_start, snapshot_end, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "purge", "point", "why"), CASES, ids=lambda case: case if isinstance(case, str) else ""
)
def test_a_request_resumes_or_rolls_back_to_the_expected_seqno(
    request_: tuple[int, int, int, int, dict[str, int]], purge: int, point: int | None, why: str
) -> None:
    assert rollback_point(resume(*request_), LOG, HIGH, purge) == point


def test_servers_up_to_5_1_roll_back_where_the_start_equals_the_purge_seqno() -> None:
    assert rollback_point(resume(180, C, 150, 200, {}), LOG, HIGH, 180, RollbackRules(purge_window=True)) == 0


@pytest.mark.parametrize(
    ("window", "vbuuid", "point"),
    [
        ((100, 100, 100), A, None),
        ((120, 120, 120), A, 100),
        ((120, 110, 120), A, 100),
        ((320, 310, 330), B, 300),
        ((320, 250, 320), B, 250),
        ((250, 250, 330), B, None),
        ((340, 340, 400), C, None),
        ((345, 340, 400), C, 340),
        ((360, 360, 360), C, 350),
        ((200, 150, 250), C, None),
    ],
)
def test_servers_of_3_0_compare_a_snapshot_as_it_was_announced(
    window: tuple[int, int, int], vbuuid: int, point: int | None
) -> None:
    # From protocol documents of that time. A position at the end of a branch is accepted. A snapshot beyond the end
    # rolls back to it. A snapshot without received items is accepted; any other rolls back to its own start.
    start, first, last = window
    assert rollback_point(resume(start, vbuuid, first, last, {}), LOG, HIGH, 0, RollbackRules(collapse=False)) == point


def test_servers_of_3_0_ignore_the_purge_seqno() -> None:
    assert rollback_point(resume(150, C, 150, 150, {}), LOG, HIGH, 180, RollbackRules(purge=False)) is None


seqnos = st.integers(0, 400)


@given(st.lists(seqnos, min_size=3, max_size=3).map(sorted), st.sampled_from([A, B, C, UNKNOWN, 0]), seqnos)
def test_a_rollback_never_goes_forward_and_its_point_is_accepted(window: list[int], vbuuid: int, purge: int) -> None:
    first, start, last = window
    point = rollback_point(resume(start, vbuuid, first, last, {}), LOG, HIGH, purge)
    if point is None:
        return
    assert point <= start
    newest = next((branch.vbuuid for branch in LOG.cut(point) if point), 0)
    again = rollback_point(resume(point, newest, point, point, {}), LOG, HIGH, purge)
    assert again in (None, 0)
