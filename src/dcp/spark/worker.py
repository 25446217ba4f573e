"""Spark's Python worker process, as the task that runs in it sees it."""

from __future__ import annotations

import gc
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

# Event that the other end closed the connection. Only Linux has it; elsewhere a closed connection is not noticed.
_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)


@contextmanager
def task_in_worker() -> Iterator[Callable[[], bool]]:
    """Yield, for the duration of a task, a function that is true once Spark has closed the connection for its rows.

    A worker notices that only when it writes: one that waits for a node would wait for ever after a LIMIT is reached.
    Outside of a worker the function is always false.
    """
    socket = _row_socket()
    if socket is None:
        yield lambda: False
        return
    try:
        yield _closed_check(socket)
    finally:
        _freeze_garbage_collector()


def _closed_check(socket: int) -> Callable[[], bool]:
    """Return a function that is true once the other end of a socket has closed it."""
    if not _PEER_CLOSED:
        return lambda: False
    # poll(), and not a read: the other direction of this socket belongs to Spark.
    poll = select.poll()
    poll.register(socket, _PEER_CLOSED | select.POLLHUP | select.POLLERR)
    return lambda: bool(poll.poll(0))


@cache
def _freeze_garbage_collector() -> None:
    """Exclude all that is loaded now from garbage collection, once for each worker.

    Spark collects garbage after each task. Traversing every imported module takes longer than starting a task.
    """
    gc.collect()
    gc.freeze()


def _row_socket() -> int | None:
    """Return the file descriptor that rows are written to: a local `outfile` of a caller, in pyspark.worker's loop."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        out: Any = frame.f_locals.get("outfile")
        if hasattr(out, "fileno"):
            return int(out.fileno())
        frame = frame.f_back
    return None
