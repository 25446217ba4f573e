"""Progress of positions: each row of the protocol's table, and its traps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from dcp.embedded.rollback import Resume, rollback_point
from dcp.errors import LocalProtocolError, RemoteProtocolError
from dcp.position import UNKNOWN_END, FailoverLog, Progress, ResumePoint, StreamPosition

LOG = FailoverLog.of([(0xC, 300), (0xB, 100), (0xA, 0)])
COMPLETE = StreamPosition(7, 0xC, 200, 200, 200, failover_log=LOG)
INSIDE = StreamPosition(7, 0xC, 200, 150, 250, failover_log=LOG, marks=(150, 90))


def window(progress: Progress) -> tuple[int, int, int]:
    return progress.position.seqno, progress.position.snapshot_start, progress.position.snapshot_end


def test_a_marker_alone_moves_nothing() -> None:
    assert Progress(COMPLETE).marker(201, 240).position == COMPLETE
    assert Progress(COMPLETE).marker(201, 240).marker(241, 260).position == COMPLETE


def test_a_marker_may_end_where_the_position_is() -> None:
    assert Progress(COMPLETE).marker(150, 200).position == COMPLETE
    assert Progress(COMPLETE).marker(200, 200).position == COMPLETE


def test_rows_take_the_window_of_their_marker_and_its_end_closes_it() -> None:
    begun = Progress(COMPLETE).marker(180, 240).seen(210)
    assert window(begun) == (210, 180, 240)
    assert window(begun.seen(230)) == (230, 180, 240)
    assert window(begun.seen(240)) == (240, 240, 240)


def test_a_window_starts_no_later_than_the_last_seqno() -> None:
    assert window(Progress(COMPLETE).marker(220, 240).seen(220)) == (220, 200, 240)
    # That of a complete position may begin earlier, in a checkpoint of another consumer.
    assert window(Progress(replace(COMPLETE, snapshot_start=150)).marker(220, 240).seen(220)) == (220, 200, 240)


def test_a_seqno_may_be_reported_again() -> None:
    assert window(Progress(COMPLETE).marker(180, 240).seen(200).seen(200)) == (200, 180, 240)


def test_a_stream_resumed_inside_a_snapshot_stays_inside_after_its_first_marker() -> None:
    resumed = Progress(INSIDE).accepted(LOG).marker(190, 260)
    assert resumed.position.resume_point() == ResumePoint(200, 0xC, 150, 250)
    assert window(resumed.seen(210)) == (210, 150, 260)


def test_a_first_marker_completes_nothing_wherever_it_starts() -> None:
    assert window(Progress(INSIDE).marker(251, 260)) == (200, 150, 250)


def test_the_next_marker_completes_a_snapshot_whose_tail_was_not_for_this_stream() -> None:
    next_ = Progress(INSIDE).marker(150, 250).seen(240).marker(251, 260)
    assert window(next_) == (240, 240, 240)
    assert window(next_.seen(255)) == (255, 240, 260)


@pytest.mark.parametrize("start", [150, 230, 250])
def test_a_marker_that_overlaps_continues_the_snapshot(start: int) -> None:
    begun = Progress(INSIDE).marker(150, 250).seen(240)
    assert window(begun.marker(start, 270)) == (240, 150, 250)
    assert window(begun.marker(start, 270).seen(260)) == (260, 150, 270)


def test_a_marker_continues_what_was_announced_too() -> None:
    assert window(Progress(INSIDE).marker(150, 270).marker(260, 280)) == (200, 150, 250)


def test_the_purge_seqno_counts_from_the_first_row_on() -> None:
    announced = Progress(COMPLETE).marker(201, 240, purge_seqno=180)
    assert announced.position.purge_seqno == 0
    assert announced.seen(210).position.purge_seqno == 180
    assert announced.seen(240).marker(241, 250).seen(250).position.purge_seqno == 180


def test_disorder_counts_as_a_whole_or_not_at_all() -> None:
    begun = Progress(StreamPosition(7)).accepted(LOG).disorder_begins().seen(40).seen(12).seen(33)
    assert window(begun) == (0, 0, 0)
    assert window(begun.disorder_ends()) == (40, 40, 40)
    assert begun.disorder_ends().marker(41, 50).seen(45).position.resume_point() == ResumePoint(45, 0xC, 40, 50)


def test_disorder_without_rows_moves_nothing() -> None:
    begun = Progress(StreamPosition(7)).accepted(LOG).disorder_begins()
    assert begun.disorder_ends().position == begun.position


def test_a_new_stream_forgets_what_was_announced() -> None:
    accepted = Progress(COMPLETE).marker(201, 240).accepted(FailoverLog.of([(0xD, 310), *LOG]))
    assert (accepted.announced, accepted.first, accepted.position.vbuuid) == (None, True, 0xD)


def test_a_new_stream_keeps_all_that_is_known_of_the_position() -> None:
    position = replace(INSIDE, manifest_uid=28, purge_seqno=180)
    log = FailoverLog.of([(0xD, 310), *LOG])
    assert position.accepted(log) == replace(position, vbuuid=0xD, failover_log=log)


def test_at_the_beginning_no_history_is_named() -> None:
    """A node that has lost that history would ask for a rollback of a stream that has nothing."""
    assert Progress(StreamPosition(7)).accepted(LOG).position.resume_point() == ResumePoint(0, 0, 0, 0)


def test_the_newest_manifest_counts() -> None:
    assert Progress(COMPLETE).manifest(28).manifest(27).position.manifest_uid == 28


def test_marks_are_the_ends_of_snapshots_fewer_the_further_back() -> None:
    progress = Progress(StreamPosition(7))
    for end in range(1, 2000):
        progress = progress.marker(end, end).seen(end)
    marks = progress.position.marks
    assert marks[0] == 1998
    assert len(marks) <= 8
    assert all(1998 - older <= 16 * (1998 - newer) + 4 for newer, older in pairwise(marks))


def test_only_complete_snapshots_leave_marks_and_a_marker_that_goes_back_removes_them() -> None:
    begun = Progress(INSIDE).marker(150, 260).seen(210)
    assert begun.position.marks == (150, 90)
    assert Progress(replace(INSIDE, snapshot_start=200)).marker(200, 260).seen(210).position.marks == (150, 90)
    assert begun.marker(120, 270).seen(220).position.marks == (90,)
    # Between 149 and 150 it may have replaced versions.
    assert begun.marker(149, 270).seen(220).position.marks == (90,)
    assert begun.marker(150, 270).seen(220).position.marks == (150, 90)


def test_a_mark_may_be_the_first_seqno() -> None:
    assert Progress(StreamPosition(7)).marker(1, 1).seen(1).marker(2, 2).seen(2).position.marks == (1,)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Progress(COMPLETE).seen(210),
        lambda: Progress(COMPLETE).marker(201, 240).seen(241),
        lambda: Progress(COMPLETE).marker(201, 240).seen(199),
        lambda: Progress(COMPLETE).marker(150, 199),
        lambda: Progress(COMPLETE).marker(260, 250),
        lambda: Progress(COMPLETE).disorder_ends(),
        lambda: Progress(COMPLETE).disorder_begins().disorder_begins(),
        lambda: Progress(COMPLETE).disorder_begins().marker(201, 240),
        lambda: Progress(COMPLETE).accepted(FailoverLog(())),
    ],
)
def test_what_no_producer_may_send_is_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(RemoteProtocolError, match=r"vbucket 7: expected .* found"):
        wrong()


# Rollbacks: requested seqno, then the new seqno and vbuuid.
ROLLBACKS = [(199, 150, 0xB), (150, 150, 0xB), (149, 90, 0xA), (89, 0, 0), (0, 0, 0), (200, 0, 0), (900, 0, 0)]


@pytest.mark.parametrize(("asked", "seqno", "vbuuid"), ROLLBACKS)
def test_a_rollback_goes_to_the_end_of_a_snapshot_under_the_uuid_of_that_time(
    asked: int, seqno: int, vbuuid: int
) -> None:
    back = INSIDE.rolled_back(asked)
    assert back.resume_point() == ResumePoint(seqno, vbuuid, seqno, seqno)
    assert back.purge_seqno == 0
    assert all(branch.seqno <= seqno for branch in back.failover_log)


def test_a_rollback_to_the_beginning_of_a_history_is_a_position_of_that_history() -> None:
    back = replace(INSIDE, marks=(150, 100, 90)).rolled_back(120)
    assert (back.seqno, back.vbuuid, back.failover_log.newest.vbuuid) == (100, 0xB, 0xB)
    # Of a checkpoint without a log, no other history is known.
    assert replace(INSIDE, failover_log=FailoverLog(())).rolled_back(150).vbuuid == 0xC


def test_where_a_history_began_right_here_the_one_before_may_be_tried() -> None:
    here = StreamPosition(7, 0xC, 300, 300, 300, failover_log=LOG)
    older = here.under_older_uuid()
    assert older == replace(here, vbuuid=0xB, failover_log=FailoverLog(LOG.branches[1:]))
    # Purge seqnos of two histories cannot be compared.
    assert replace(here, purge_seqno=180).under_older_uuid() == older
    assert older.under_older_uuid() is None
    assert INSIDE.under_older_uuid() is None
    two, one = (replace(here, failover_log=FailoverLog(LOG.branches[:count])) for count in (2, 1))
    assert two.under_older_uuid() is not None
    assert one.under_older_uuid() is None
    # Inside of a snapshot, and at the end of one that began with the history.
    assert replace(here, snapshot_end=310).under_older_uuid() is None
    assert replace(here, seqno=310, snapshot_end=310).under_older_uuid() is None


def test_an_unknown_window_sends_back_to_the_beginning() -> None:
    unknown = StreamPosition(7, 0xC, 200, 0, UNKNOWN_END)
    assert unknown.resume_point() == ResumePoint(200, 0xC, 0, UNKNOWN_END)
    assert rollback_point(Resume(200, 0xC, 0, UNKNOWN_END), LOG, 350, 0) == 0


@pytest.mark.parametrize("numbers", [(5, 6, 7), (5, 3, 4), (-1, -1, -1), (1 << 64, 0, 1 << 64)])
def test_a_seqno_outside_its_snapshot_is_no_position(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(LocalProtocolError, match="vbucket 7: expected a seqno inside its snapshot"):
        StreamPosition(7, 0xC, *numbers)


@pytest.mark.parametrize("marks", [(3, 5), (5, 5), (10,), (10, 5)])
def test_marks_are_in_order_and_not_above_the_seqno(marks: tuple[int, ...]) -> None:
    with pytest.raises(LocalProtocolError, match="newest first"):
        StreamPosition(7, 0xC, 9, 9, 9, marks=marks)
    assert StreamPosition(7, 0xC, 9, 9, 9, marks=(9, 5)).marks == (9, 5)
