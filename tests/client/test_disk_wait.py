"""The wait for the disk before a TAP stream with an end, with statistics of servers from 1.8 to 4.6."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

import pytest

import dcp
from dcp.client.follow.disk_wait import DiskWait
from dcp.client.queries import DiskBacklog, disk_backlogs
from dcp.cluster_map import Node, NodeAddress

ONE, TWO = (Node(NodeAddress(host, 11210, None)) for host in ("one", "two"))

Answer = Mapping[int, DiskBacklog] | dcp.DcpError


def answering(answers: Iterable[Answer]) -> Callable[[Node, Collection[int]], Mapping[int, DiskBacklog]]:
    """Return a node that gives these answers, one at each poll."""
    left = iter(answers)

    def ask(node: Node, vbuckets: Collection[int]) -> Mapping[int, DiskBacklog]:
        answer = next(left)
        if isinstance(answer, dcp.DcpError):
            raise answer
        return answer

    return ask


def covers(wait: DiskWait, *vbuckets: int) -> bool:
    """Return True if all of these vbuckets of the first node may be requested. Asks for each of them."""
    found = [wait.covers(vbucket, ONE) for vbucket in vbuckets]
    return all(found)


def polls_until_covered(wait: DiskWait, *vbuckets: int) -> int:
    """Poll until the vbuckets of the first node may be requested, and return the number of polls."""
    polls = 0
    while not covers(wait, *vbuckets):
        wait.poll_if_due()
        polls += 1
    return polls


def test_writes_that_never_pause_do_not_prolong_the_wait() -> None:
    growing = ({0: DiskBacklog(1000 + 50 * n, 900 + 50 * n)} for n in range(100))
    assert polls_until_covered(DiskWait(answering(growing), 60, interval=0), 0) == 3


def test_a_queue_without_seqnos_has_to_be_empty_once() -> None:
    sizes = [9, 12, 3, 7, 0]
    assert polls_until_covered(DiskWait(answering({0: DiskBacklog(n, 0)} for n in sizes), 60, interval=0), 0) == 5


def test_vbuckets_of_a_node_are_covered_one_by_one_and_requested_together() -> None:
    wait = DiskWait(
        answering([{0: DiskBacklog(5, 5), 1: DiskBacklog(5, 0)}, {0: DiskBacklog(9, 5), 1: DiskBacklog(5, 5)}]),
        60,
        interval=0,
    )
    assert polls_until_covered(wait, 0, 1) == 2
    assert wait.due is None


def test_changes_that_a_crash_took_back_are_not_waited_for() -> None:
    answers = [{0: DiskBacklog(100, 40)}, {0: DiskBacklog(60, 60)}]
    assert polls_until_covered(DiskWait(answering(answers), 60, interval=0), 0) == 2


def test_a_request_that_is_repeated_waits_again() -> None:
    wait = DiskWait(answering([{0: DiskBacklog(1, 1)}, {0: DiskBacklog(2, 1)}, {0: DiskBacklog(2, 2)}]), 60, interval=0)
    assert polls_until_covered(wait, 0) == 1
    wait.forget(0)
    assert polls_until_covered(wait, 0) == 2


def test_a_vbucket_that_moved_waits_for_its_new_owner_alone() -> None:
    asked: list[Node] = []

    def ask(node: Node, vbuckets: Collection[int]) -> Mapping[int, DiskBacklog]:
        asked.append(node)
        return {0: DiskBacklog(1, 0 if node is ONE else 1)}

    wait = DiskWait(ask, 60, interval=0)
    assert not wait.covers(0, ONE)
    wait.poll_if_due()
    assert not wait.covers(0, TWO)
    wait.poll_if_due()
    assert wait.covers(0, TWO)
    assert asked == [ONE, TWO]
    assert wait.due is None


def test_a_vbucket_that_the_node_does_not_have_is_requested() -> None:
    assert polls_until_covered(DiskWait(answering([{}]), 60, interval=0), 0) == 1


def test_the_time_in_which_a_node_is_down_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    down = dcp.TransportError("one:11210: connection lost")
    wait = DiskWait(answering([down, down, {0: DiskBacklog(1, 0)}]), 3600, interval=0)
    assert not wait.covers(0, ONE)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            wait.poll_if_due()
    assert [record.getMessage() for record in caplog.records] == [f"{down}; asking again what is on disk"]


def test_the_limit_names_node_and_vbuckets() -> None:
    wait = DiskWait(answering([{0: DiskBacklog(1, 1), 1: DiskBacklog(7, 3)}]), 0, interval=0)
    assert not covers(wait, 0, 1)
    with pytest.raises(dcp.TransportError, match=r"^one:11210: changes of vbuckets 1 are not on disk after 0 s, "):
        wait.poll_if_due()


@pytest.mark.parametrize("written", [True, False])
def test_the_limit_counts_from_when_the_first_of_these_vbuckets_began_to_wait(written: bool) -> None:
    """One whose changes are on disk waits no longer, nor does one that moved to another node."""
    now = 0.0
    answers = answering([{0: DiskBacklog(1, int(written))}, *[{0: DiskBacklog(1, 1), 1: DiskBacklog(1, 0)}] * 2])
    wait = DiskWait(answers, 10, interval=0, clock=lambda: now)
    assert not wait.covers(0, ONE)
    wait.poll_if_due()
    if not written:
        wait.forget(0)
    now = 100.0
    assert not wait.covers(1, ONE)
    wait.poll_if_due()
    now = 110.0
    with pytest.raises(dcp.TransportError, match="vbuckets 1 are not on disk after 10 s"):
        wait.poll_if_due()


def test_a_node_is_asked_once_in_an_interval_and_only_for_what_waits() -> None:
    now, asked = 0.0, list[float]()

    def ask(node: Node, vbuckets: Collection[int]) -> Mapping[int, DiskBacklog]:
        asked.append(now)
        return {0: DiskBacklog(1, int(now > 2))}

    wait = DiskWait(ask, 60, interval=1, clock=lambda: now)
    wait.poll_if_due()
    assert not wait.covers(0, ONE)
    for moment in (0.5, 0.6, 1.4, 1.6, 2.5, 2.7, 9.0):
        now = moment
        wait.poll_if_due()
    assert wait.covers(0, ONE)
    assert asked == [0.5, 1.6, 2.7]


def test_a_vbucket_that_joins_others_does_not_prolong_their_wait() -> None:
    now = 0.0
    backlogs = {0: DiskBacklog(1, 0), 1: DiskBacklog(1, 0)}
    wait = DiskWait(answering([backlogs, backlogs]), 10, interval=0, clock=lambda: now)
    assert not wait.covers(0, ONE)
    wait.poll_if_due()
    now = 10.0
    assert not wait.covers(1, ONE)
    with pytest.raises(dcp.TransportError, match="vbuckets 0, 1 are not on disk after 10 s"):
        wait.poll_if_due()


# ------------------------------------------------------------------------------------- statistics of servers

Groups = Mapping[str, Mapping[str, str]]


class Statistics:
    """A node with these groups of statistics, which keeps the names of the groups that were asked for."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.asked: list[str] = []

    def stats_of(self, node: Node, group: str) -> dict[str, str]:
        self.asked.append(group)
        return dict(self.groups.get(group, {}))


BUSY = {"ep_queue_size": "12", "ep_flusher_todo": "3"}


@pytest.mark.parametrize(
    ("groups", "found", "last_group"),
    [
        ({"": {"ep_queue_size": "0", "ep_flusher_todo": "0"}}, {0: (0, 0), 1: (0, 0)}, ""),
        (
            {"": BUSY, "vbucket-seqno": {"vb_0:high_seqno": "9", "vb_0:last_persisted_seqno": "4"}},
            {0: (9, 4)},
            "vbucket-seqno",
        ),
        (
            {
                "": BUSY,
                "vbucket-seqno": {"vb_0:high_seqno": "9", "vb_1:high_seqno": "9"},
                "vbucket-details": {"vb_0": "active", "vb_0:queue_size": "5", "vb_1:queue_size": "0"},
            },
            {0: (5, 0), 1: (0, 0)},
            "vbucket-details",
        ),
        ({"": BUSY}, {0: (15, 0), 1: (15, 0)}, "vbucket-details"),
    ],
    ids=["nothing to write", "4.5", "2.0 to 4.1", "1.8"],
)
def test_the_best_statistics_of_a_server_are_read(
    groups: Groups, found: dict[int, tuple[int, int]], last_group: str
) -> None:
    node = Statistics(groups)
    assert disk_backlogs(node, ONE, [0, 1]) == found
    assert node.asked[-1] == last_group


def test_a_server_without_statistics_is_an_error() -> None:
    with pytest.raises(dcp.ServerError, match="the node does not report what is on disk; stream without an end"):
        disk_backlogs(Statistics({}), ONE, [0, 1])
