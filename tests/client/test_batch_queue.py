"""The queue between links and consumer: order of positions, rows that wait for disks, errors, wakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

import dcp
from dcp._codec import LazyPosition
from dcp.client.follow.batch_queue import BatchQueue
from dcp.client.follow.persistence import Persistence
from dcp.embedded import Cluster
from dcp.position import FailoverLog, Progress, StreamPosition
from dcp.session.session import Delivery
from tests.client.consumer import PATIENCE
from tests.client.hostile import mutation
from tests.client.links import ended_link
from tests.waiting import wakes

# A stream whose first snapshot was announced.
BEGUN = Progress(StreamPosition(0)).accepted(FailoverLog.of([(0xA, 0)])).marker(0, 9)


def delivery(position: int, *seqnos: int) -> Delivery:
    """Return rows with these seqnos, and the position after them."""
    decoder = dcp.Decoder()
    for seqno in seqnos:
        decoder.feed(mutation(1, seqno))
    return Delivery(decoder.take(), {(0, None): LazyPosition(BEGUN, position)}, 0, 0)


def queue_of(persistence: Persistence | None = None) -> BatchQueue:
    return BatchQueue(threading.RLock(), {0: LazyPosition(BEGUN, 0)}, persistence, lambda: False)


def deliver(queue: BatchQueue, position: int, *seqnos: int) -> None:
    with queue.changed:
        queue.deliver(ended_link(), delivery(position, *seqnos))


def position(queue: BatchQueue) -> int:
    return queue.positions[0].position.seqno


def test_a_position_without_rows_does_not_overtake_rows_that_are_queued() -> None:
    queue = queue_of()
    deliver(queue, 3, 3)
    deliver(queue, 5)
    assert position(queue) == 0
    assert queue.next(PATIENCE) is not None
    assert position(queue) == 5


def test_a_wait_lasts_as_long_as_it_may() -> None:
    queue, begun = queue_of(), time.monotonic()
    with pytest.raises(dcp.TimeoutError, match=r"no changes within 0\.3 s"):
        queue.next(0.3)
    assert time.monotonic() - begun >= 0.3


def test_a_position_without_rows_waits_to_be_persisted_too() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        # It never polls, so nothing is known to be on any disk.
        queue = queue_of(Persistence(client._agent, 60))
        deliver(queue, 5)
        with pytest.raises(dcp.TimeoutError):
            queue.next(0)
        assert position(queue) == 0


def test_the_first_error_counts_and_comes_after_the_rows_before_it() -> None:
    queue = queue_of()
    deliver(queue, 3, 3)
    with queue.changed:
        for text in ("first", "second"):
            queue.fail(dcp.TransportError(text))
    assert queue.next(PATIENCE) is not None
    with pytest.raises(dcp.TransportError, match="first"):
        queue.next(PATIENCE)


@pytest.mark.parametrize("seqnos", [(), (5,)], ids=["without rows", "with rows"])
def test_nothing_that_arrives_after_an_error_moves_a_position(seqnos: tuple[int, ...]) -> None:
    queue = queue_of()
    deliver(queue, 3, 3)
    with queue.changed:
        queue.fail(dcp.RollbackError(0, 3, 0))
    deliver(queue, 5, *seqnos)
    assert queue.next(PATIENCE) is not None
    with pytest.raises(dcp.RollbackError):
        queue.next(PATIENCE)
    assert position(queue) == 3


NEWS: dict[str, Callable[[BatchQueue], None]] = {
    "rows": lambda queue: deliver(queue, 3, 3),
    "an error": lambda queue: queue.fail(dcp.TransportError("lost")),
    "an error of the persistence thread": lambda queue: queue.on_bug(ValueError()),
    "rows on every disk": lambda queue: queue.on_persisted(),
    "the end": lambda queue: queue.close(),
}


@pytest.mark.parametrize("news", NEWS)
def test_a_waiting_consumer_is_woken_by(news: str) -> None:
    queue = queue_of()
    assert wakes(queue.changed, lambda: NEWS[news](queue), PATIENCE)


def test_rows_that_wait_for_disks_are_kept_when_another_vbucket_rolls_back() -> None:
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        start = {vbucket: LazyPosition(BEGUN, 0) for vbucket in (0, 1)}
        queue = BatchQueue(threading.RLock(), start, Persistence(client._agent, 60), lambda: False)
        for vbucket, seqno in ((1, 3), (0, 3), (1, 5)):
            rows = delivery(seqno, seqno)
            with queue.changed:
                queue.deliver(ended_link(), replace(rows, positions={(vbucket, None): LazyPosition(BEGUN, seqno)}))
        # What follows the first batch of the vbucket is dropped with it, whatever it is of.
        assert queue.drop_from(0) == {0, 1}
        assert queue.position_after_queued(1).seqno == 3
        assert queue.drop_from(0) == set()
