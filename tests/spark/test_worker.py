"""Spark's Python worker, as a task sees it."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator

import pytest

from dcp.spark import worker


@pytest.fixture
def collected() -> Iterator[None]:
    """Put the garbage collector into the state of a fresh worker, and afterwards back."""
    worker._freeze_garbage_collector.cache_clear()
    yield
    gc.unfreeze()
    worker._freeze_garbage_collector.cache_clear()


@pytest.mark.usefixtures("collected")
def test_a_task_notices_that_spark_closed_the_connection() -> None:
    spark, outfile = socket.socketpair()
    with outfile, worker.task_in_worker() as is_closed:
        assert not is_closed()
        spark.close()
        assert is_closed()


@pytest.mark.usefixtures("collected")
def test_objects_of_the_first_task_are_not_garbage_collected_again() -> None:
    spark, outfile = socket.socketpair()
    with spark, outfile:
        with worker.task_in_worker():
            assert gc.get_freeze_count() == 0
        frozen = gc.get_freeze_count()
        assert frozen > 0
        objects = [[number] for number in range(10_000)]
        with worker.task_in_worker():
            pass
        assert gc.get_freeze_count() <= frozen
        assert objects


@pytest.mark.usefixtures("collected")
def test_outside_of_a_worker_nothing_is_closed_and_nothing_changes() -> None:
    with worker.task_in_worker() as is_closed:
        assert not is_closed()
    assert gc.get_freeze_count() == 0
