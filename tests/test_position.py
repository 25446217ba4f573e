"""Histories of vbuckets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dcp.position import MOST_BRANCHES, Branch, FailoverLog

LOG = FailoverLog.of([(3, 300), (2, 100), (1, 0)])


def test_a_new_history_comes_first_and_abandons_those_that_began_later() -> None:
    assert LOG.begin(4, 200).branches == (Branch(4, 200), Branch(2, 100), Branch(1, 0))
    assert LOG.begin(4, 300).newest == Branch(4, 300)


def test_a_history_ends_where_the_next_newer_one_began() -> None:
    assert [LOG.end_of(vbuuid, 350) for vbuuid in (3, 2, 1, 9)] == [350, 300, 100, None]


def test_a_rollback_forgets_what_began_above_it() -> None:
    assert LOG.cut(99).branches == (Branch(1, 0),)
    assert LOG.cut(100).newest == Branch(2, 100)


@given(st.lists(st.tuples(st.integers(1, 1 << 48), st.integers(0, 100)), max_size=60))
def test_a_log_is_ordered_and_bounded_whatever_happened(events: list[tuple[int, int]]) -> None:
    log = FailoverLog.of([(7, 0)])
    for vbuuid, seqno in events:
        log = log.begin(vbuuid, seqno)
    starts = [branch.seqno for branch in log]
    assert starts == sorted(starts, reverse=True)
    assert len(log) <= MOST_BRANCHES
