"""Failover logs of vbuckets."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dcp.json_reader import MAX_U64
from dcp.position import MOST_BRANCHES, Branch, FailoverLog, StreamPosition

LOG = FailoverLog.of([(3, 300), (2, 100), (1, 0)])


def test_a_new_history_comes_first_and_abandons_those_that_began_later() -> None:
    assert LOG.begin(4, 200).branches == (Branch(4, 200), Branch(2, 100), Branch(1, 0))
    assert LOG.begin(4, 300).newest == Branch(4, 300)


def test_a_history_ends_where_the_next_newer_one_began() -> None:
    assert [LOG.end_of(vbuuid, 350) for vbuuid in (3, 2, 1, 9)] == [350, 300, 100, None]


def test_a_rollback_forgets_what_began_above_it() -> None:
    assert LOG.cut(99).branches == (Branch(1, 0),)
    assert LOG.cut(100).newest == Branch(2, 100)


def test_logs_have_in_common_what_came_before_the_first_difference() -> None:
    assert LOG.common(LOG) == MAX_U64
    for theirs, seqno in (
        ([(4, 320), (3, 300), (2, 100)], 320),
        ([(4, 320), (2, 100), (1, 0)], 300),
        ([(4, 250), (2, 100), (1, 0)], 250),
        # Both abandoned the history at its beginning.
        ([(4, 0), (1, 0)], 0),
        ([(4, 0)], 0),
    ):
        assert LOG.common(FailoverLog.of(theirs)) == FailoverLog.of(theirs).common(LOG) == seqno


def test_a_log_keeps_the_newest_of_its_histories() -> None:
    log = FailoverLog.of([(7, 0)])
    for n in range(1, MOST_BRANCHES + 5):
        log = log.begin(100 + n, n)
    assert [branch.seqno for branch in log] == list(range(MOST_BRANCHES + 4, 4, -1))


def test_the_history_of_a_position_has_its_vbuuid() -> None:
    def history(vbuuid: int, *log: tuple[int, int]) -> list[tuple[int, int]]:
        return [*StreamPosition(1, vbuuid, 10, 10, 10, failover_log=FailoverLog.of(log)).history]

    assert history(2, (3, 300), (2, 100)) == [(3, 300), (2, 100)]
    assert history(3, (3, 300)) == [(3, 300)]
    # The log of a checkpoint that somebody else wrote may be of another history, or missing.
    assert history(9, (3, 300)) == history(9) == [(9, 0)]
    assert history(0, (3, 300)) == [(3, 300)]
    assert history(0) == []


def test_a_purge_of_the_history_that_was_lost_is_not_known_of_the_one_before() -> None:
    """The same purge seqno would stand for other deletions there, and a marker with it would be no news."""
    position = StreamPosition(1, 3, 350, 350, 350, purge_seqno=310, failover_log=LOG, marks=(290,))
    assert (position.rolled_back(320).seqno, position.rolled_back(320).purge_seqno) == (290, 0)


@given(st.lists(st.tuples(st.integers(1, 1 << 48), st.integers(0, 100)), max_size=60))
def test_a_log_is_ordered_and_bounded_whatever_happened(events: list[tuple[int, int]]) -> None:
    log = FailoverLog.of([(7, 0)])
    for vbuuid, seqno in events:
        log = log.begin(vbuuid, seqno)
    starts = [branch.seqno for branch in log]
    assert starts == sorted(starts, reverse=True)
    assert len(log) <= MOST_BRANCHES


@given(st.sets(st.integers(1, 50)), st.integers(0, 60), st.integers(0, 9), st.integers(0, 60))
def test_who_took_less_goes_back_to_a_snapshot_below_that(ends: set[int], seqno: int, rest: int, kept: int) -> None:
    """Whatever part of the window a failover loses, the position to resume from has no replaced versions below it."""
    marks = tuple(sorted((end for end in ends if end < seqno), reverse=True))
    start = max(marks, default=0) if rest else seqno
    position = StreamPosition(1, 7, seqno, start, seqno + rest, marks=marks)
    for most in range(seqno):
        less = position.short_of(most)
        assert (less.seqno, less.snapshot_end) == (most, position.snapshot_end)
        assert less.snapshot_start == max((mark for mark in marks if mark <= most), default=0)
        back = less.within(kept)
        assert back == less if kept >= position.snapshot_end else back.seqno in {0, *marks}
        assert back.seqno <= max(most, kept)
    assert position.short_of(seqno) == position


def test_of_a_whole_position_the_ends_of_snapshots_in_its_window_remain() -> None:
    whole = StreamPosition(1, 7, 9, 1, 9, marks=(5,))
    assert whole.within(7).seqno == 5
    assert replace(whole, snapshot_end=12).within(7).seqno == 0


def test_the_start_of_a_window_is_kept_although_no_snapshot_ended_there() -> None:
    position = StreamPosition(1, 7, 100, 90, 120, marks=(80, 50))
    assert position.short_of(100) is position
    for most, start, marks in (
        (99, 90, (80, 50)),
        (90, 90, (80, 50)),
        (89, 80, (80, 50)),
        (60, 50, (50,)),
        (49, 0, ()),
    ):
        less = position.short_of(most)
        assert (less.seqno, less.snapshot_start, less.snapshot_end, less.marks) == (most, start, 120, marks)
