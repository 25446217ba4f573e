"""What a task knows of the worker that it runs in, and does for it."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator

import pytest

from dcp.spark import worker as host


@pytest.fixture
def collected() -> Iterator[None]:
    """The garbage collector as it is in a fresh worker, and afterwards as it was."""
    host._settle.cache_clear()
    yield
    gc.unfreeze()
    host._settle.cache_clear()


@pytest.mark.usefixtures("collected")
def test_a_task_notices_that_spark_hung_up() -> None:
    spark, outfile = socket.socketpair()
    with outfile, host.hosted() as gone:
        assert not gone()
        spark.close()
        assert gone()


@pytest.mark.usefixtures("collected")
def test_what_the_first_task_leaves_behind_is_not_looked_at_again() -> None:
    spark, outfile = socket.socketpair()
    with spark, outfile:
        with host.hosted():
            assert gc.get_freeze_count() == 0
        frozen = gc.get_freeze_count()
        assert frozen > 0
        there = [[number] for number in range(10_000)]
        with host.hosted():
            pass
        assert gc.get_freeze_count() <= frozen
        assert there


@pytest.mark.usefixtures("collected")
def test_outside_of_a_worker_nothing_is_gone_and_nothing_changes() -> None:
    with host.hosted() as gone:
        assert not gone()
    assert gc.get_freeze_count() == 0
