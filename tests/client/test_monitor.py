"""Lag and stalled vbuckets: the clock is an argument, and a model of the consumer gives the expected values."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.client.follow.vbucket import FollowedVbucket, observe
from dcp.client.monitor import CONSUMER, NO_OWNER, SILENT, Backlog, Observation, StallDetector
from dcp.client.stats import Lag
from dcp.embedded import Cluster
from dcp.position import StreamPosition
from dcp.wire.dcp import ENDLESS
from tests.client.consumer import hasty_threads
from tests.client.links import ended_link
from tests.waiting import until

LIMIT = 30.0


def observed(received: int, reason: str = SILENT, end: int = ENDLESS) -> list[Observation]:
    return [Observation(7, received, end, reason, "words")]


def test_who_stands_still_although_there_is_more_is_stuck_until_it_moves() -> None:
    stalls = StallDetector(LIMIT)
    assert stalls.check(0, observed(5), {7: 9}) == {}
    assert stalls.check(LIMIT - 1, observed(5), {7: 9}) == {}
    assert stalls.check(LIMIT, observed(5), {7: 12})[7].seconds == LIMIT
    assert stalls.check(2 * LIMIT, observed(6), {7: 12}) == {}
    assert stalls.check(3 * LIMIT, observed(6), {7: 12})[7].reason == SILENT


def test_a_vbucket_of_unknown_high_seqno_that_its_node_answers_for_is_not_stuck() -> None:
    stalls = StallDetector(LIMIT)
    for now in (0, 100, 200):
        assert stalls.check(now, observed(0), {}) == {}


def test_who_has_everything_is_not_stuck_nor_who_waits_for_its_consumer() -> None:
    stalls = StallDetector(LIMIT)
    for now in (0, 100, 200):
        assert stalls.check(now, observed(9), {7: 9}) == {}
        assert stalls.check(now, observed(5, CONSUMER), {7: 9}) == {}
        assert stalls.check(now, observed(5, end=5), {7: 9}) == {}


def test_who_cannot_be_asked_is_stuck_though_nobody_knows_whether_there_is_more() -> None:
    stalls = StallDetector(LIMIT)
    stalls.check(0, observed(9, NO_OWNER), {})
    assert stalls.check(LIMIT, observed(9, NO_OWNER), {})[7].reason == NO_OWNER


def test_the_time_of_waiting_for_a_consumer_does_not_count() -> None:
    stalls = StallDetector(LIMIT)
    stalls.check(0, observed(5), {7: 9})
    stalls.check(20, observed(5, CONSUMER), {7: 9})
    assert stalls.check(40, observed(5), {7: 9}) == {}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_lag_is_the_age_of_the_oldest_moment_that_the_consumer_has_not_reached(steps: list[tuple[int, int]]) -> None:
    backlog, moments, high, done = Backlog(), [], 0, 0
    for now, (written, read) in enumerate(steps):
        high += written
        done = min(high, done + read)
        backlog.add(float(now), {1: high})
        moments.append((now, high))
        unreached = [at for at, there in moments if there > done]
        expected = Lag(high - done, now - unreached[0] if unreached else 0.0)
        assert backlog.lag(float(now), {1: done}) == expected


def test_a_long_wait_is_remembered_from_its_beginning_in_bounded_memory() -> None:
    backlog = Backlog()
    for now in range(10_000):
        backlog.add(float(now), {1: now + 1})
    assert backlog.lag(10_000.0, {1: 0}) == Lag(10_000, 10_000.0)
    assert len(backlog._moments) <= 64


def test_what_is_not_followed_does_not_count() -> None:
    backlog = Backlog()
    backlog.add(0.0, {1: 5, 2: 70})
    assert backlog.lag(3.0, {1: 2}) == Lag(3, 3.0)


def test_several_may_ask_at_the_same_time() -> None:
    backlog, high, over = Backlog(), 0, threading.Event()

    def ask() -> None:
        while not over.is_set():
            backlog.lag(0.0, {1: high})

    with hasty_threads(), ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        for high in range(100_000):
            backlog.add(0.0, {1: high})
        over.set()
        for one in asked:
            one.result()


@pytest.mark.parametrize("full", [False, True])
def test_a_vbucket_whose_consumer_takes_nothing_waits_for_it_whatever_else_is_wrong(full: bool) -> None:
    link = ended_link()
    # A link holds no more than it may: 1 byte.
    link.held = int(full)
    vbucket = FollowedVbucket(7, StreamPosition(7), link=link)
    assert observe(vbucket, None, {}, {}).reason == (CONSUMER if full else NO_OWNER)


def test_the_thread_of_a_stream_that_is_closed_ends() -> None:
    """It would go on asking nodes, for as long as the process lasts."""
    before = {*threading.enumerate()}
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url, stats_interval=3600) as client:
        stream = client.stream()
        (monitor,) = (one for one in {*threading.enumerate()} - before if one.name == "dcp monitor")
        stream.close()
        monitor.join(10)
        assert not monitor.is_alive()


def test_the_rates_are_those_of_the_last_interval() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url, stats_interval=0.05) as client:
        stream = client.stream(linger=0)

        def rates() -> tuple[float, float]:
            stats = client.stats()
            return stats.changes_per_second, stats.bytes_per_second

        while min(rates()) <= 1:
            cluster.upsert("key", b"1")
            stream.next(10)
        until(lambda: rates() == (0, 0))
