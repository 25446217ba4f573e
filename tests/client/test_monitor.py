"""Lag and stalled vbuckets: the clock is an argument, and a model of the consumer gives the expected values."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.client.filters import resolve_filter
from dcp.client.follow.vbucket import FollowedVbucket, observe
from dcp.client.monitor import (
    CONSUMER,
    NO_ANSWER,
    NO_OWNER,
    RETRYING,
    SILENT,
    UNANSWERED,
    Backlog,
    Monitor,
    MonitoredStream,
    Observation,
    StallDetector,
)
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


def test_of_many_moments_every_second_one_is_remembered() -> None:
    backlog = Backlog()
    for now in range(65):
        backlog.add(now, {7: now})
    # It has what was there at 1, and the next one that is remembered is that of 2.
    assert backlog.lag(64, {7: 1}) == Lag(63, 62)


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


class Standing(NamedTuple):
    """A stream of the vbuckets of a cluster that stands still at these seqnos."""

    seqnos: dict[int, int]
    reason: str = SILENT
    received: tuple[int, int] = (0, 0)

    def observations(self) -> list[Observation]:
        return [Observation(vbucket, seqno, ENDLESS, self.reason, "words") for vbucket, seqno in self.seqnos.items()]

    def consumed(self) -> dict[int, int]:
        return self.seqnos

    def volume(self) -> tuple[int, int]:
        return self.received


@contextlib.contextmanager
def shop() -> Iterator[tuple[Cluster, dcp.Client]]:
    """Two nodes with two vbuckets each, of which every one has changes in each of three collections."""
    with Cluster(nodes=2, vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.create_scope("shop")
        for name in ("orders", "customers"):
            cluster.create_collection("shop", name)
        for path in ("_default._default", "shop.orders", "shop.customers", "_default._default"):
            cluster.load(40, collection=path)
        client.refresh_map()
        yield cluster, client


def monitor_of(client: dcp.Client, stream: MonitoredStream, scope: str | None = None, *names: str) -> Monitor:
    """Return a monitor whose thread is not started, and that takes each vbucket that does not move for stuck."""
    return Monitor(client._agent, stream, 0.0, resolve_filter(client._agent, scope, names or None))


def ids(client: dcp.Client) -> dict[str, int]:
    return {path: number for number, path in client.collections().items()}


def test_the_lag_is_that_of_the_whole_bucket_and_of_each_collection() -> None:
    with shop() as (_, client):
        consumed = dict.fromkeys(range(4), 5)
        monitor = monitor_of(client, Standing(consumed))
        assert monitor.lags() == {}
        monitor._poll()
        lags = monitor.lags()
        assert lags.keys() == {None, *ids(client)}
        expected = {None: client.high_seqnos()} | {path: client.high_seqnos(n) for path, n in ids(client).items()}
        for path, highs in expected.items():
            assert lags[path].items == sum(max(0, high - 5) for high in highs.values()) > 0
            assert lags[path].seconds > 0


@pytest.mark.parametrize("names", [(), ("orders",), ("orders", "customers")])
def test_the_lag_of_a_filter_is_that_of_its_collections(names: tuple[str, ...]) -> None:
    with shop() as (_, client):
        monitor = monitor_of(client, Standing(dict.fromkeys(range(4), 0)), "shop", *names)
        monitor._poll()
        chosen = [f"shop.{name}" for name in names or ("orders", "customers")]
        of_each = [client.high_seqnos(ids(client)[path]) for path in chosen]
        assert monitor.lags().keys() == {None, *chosen}
        # Changes of other collections are none that it waits for.
        assert monitor.lags()[None].items == sum(max(highs[vbucket] for highs in of_each) for vbucket in range(4))


def test_a_collection_that_was_dropped_since_has_no_lag() -> None:
    with shop() as (_, client):
        monitor = monitor_of(client, Standing(dict.fromkeys(range(4), 0)))
        known = {1_000_000: "gone.gone", ids(client)["shop.orders"]: "shop.orders"}
        [node] = {client.map.owner(0)}
        assert node is not None
        found = monitor._ask(node, known)
        assert (found["gone.gone"], found["shop.orders"].keys()) == ({}, found[None].keys())
        highs = client.high_seqnos()
        assert found[None] == {vbucket: highs[vbucket] for vbucket in client.map.vbuckets_of(node)}


def test_no_more_than_32_collections_are_asked_for() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        for number in range(40):
            cluster.create_collection("_default", f"c{number:02}")
        monitor = monitor_of(client, Standing({0: 0}))
        monitor._poll()
        by_id = [path for _, path in sorted(client.collections().items())]
        assert monitor.lags().keys() == {None, *by_id[:32]}


def test_without_the_collections_of_a_filter_nothing_is_known_of_it() -> None:
    with shop() as (_, client):
        for scope, known in ((None, True), ("shop", False)):
            monitor = monitor_of(client, Standing({0: 0}), scope)
            node = client.map.owner(0)
            assert node is not None
            if known:
                assert monitor._ask(node, None).keys() == {None}
            else:
                with pytest.raises(dcp.ServerError, match="not known yet"):
                    monitor._ask(node, None)


@pytest.mark.parametrize("reason", [SILENT, UNANSWERED, RETRYING, CONSUMER])
def test_a_node_that_does_not_answer_leaves_the_lag_of_its_vbuckets_unknown(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with shop() as (cluster, client):
        gone = cluster.addresses[1]
        theirs = {vbucket for vbucket in range(4) if str(client.map.owner(vbucket)) == gone}
        ours = {*range(4)} - theirs
        cluster.crash(1)
        monitor = monitor_of(client, Standing(dict.fromkeys(range(4), 0), reason))
        monitor._poll()
        monitor._poll()
        logged = caplog.messages
        # It may have changes, or none.
        assert monitor.lags() == {}
        others = monitor_of(client, Standing(dict.fromkeys(ours, 0)))
        others._poll()
        assert others.lags()[None].items > 0
        found = {vbucket: stuck.reason for vbucket, stuck in monitor.stuck.items()}
        if reason == CONSUMER:
            assert (found, logged) == ({}, [])
        elif reason == RETRYING:
            # What the stream knows says more.
            assert found == dict.fromkeys(ours, RETRYING)
        else:
            assert found == dict.fromkeys(ours, reason) | dict.fromkeys(theirs, NO_ANSWER)
            names = ", ".join(map(str, sorted(theirs)))
            told = f"no progress on vbuckets {names} for 0 s: {gone} does not answer, and sends nothing"
            assert logged.count(told) == 1


def test_what_is_stuck_is_logged_once_for_each_reason_and_when_it_moves_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with shop() as (_, client), caplog.at_level(logging.INFO, "dcp.client.watch"):
        monitor = monitor_of(client, stream := Standing({0: 0, 1: 0}))
        for each in (stream, stream, stream._replace(reason=RETRYING), Standing(client.high_seqnos())):
            monitor._stream = each
            monitor._poll()
        assert [line.partition(" for ")[0] for line in caplog.messages] == [
            *["no progress on vbuckets 0, 1"] * 2,
            "vbuckets 0, 1 progressing again",
        ]
        assert monitor.stuck == {}


def test_the_rates_are_those_since_the_last_poll() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        monitor = monitor_of(client, Standing({0: 0}))
        monitor._previous = time.monotonic() - 100, (1000, 20_000)
        monitor._stream = Standing({0: 0}, received=(2000, 50_000))
        monitor._poll()
        changes, size = monitor.rates
        assert 1 < changes <= 10
        assert size == pytest.approx(30 * changes)
        monitor._poll()
        assert monitor.rates == (0, 0)


def test_of_a_stream_that_is_closed_nothing_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with shop() as (_, client):
        monitor = monitor_of(client, Standing({0: 0}))
        monitor.stop()
        monitor._poll()
        assert (monitor.stuck, monitor.lags(), caplog.messages) == ({}, {}, [])


def test_a_node_with_a_question_that_it_has_not_answered_gets_no_other() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        monitor = monitor_of(client, Standing({0: 0}))
        with cluster.fault("partition") as partition:
            monitor._poll()
            [question] = monitor._questions.values()
            assert question.pending
            # A process does not wait for its end.
            assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("dcp monitor"))
            monitor._poll()
            assert [*monitor._questions.values()] == [question]
            partition.clear()
            until(lambda: not question.pending)
        monitor._poll()
        assert monitor.lags()[None].items == 0
