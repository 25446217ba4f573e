"""The worker of Spark's that a task runs in."""

from __future__ import annotations

import gc
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

# Linux says it as soon as the other end closes.
_CLOSED = getattr(select, "POLLRDHUP", 0)


@contextmanager
def hosted() -> Iterator[Callable[[], bool]]:
    """For as long as a task lasts: what says whether Spark has closed the connection over which its rows go.

    Spark tells a worker only when that writes: one that waits for a node would wait for ever after a LIMIT
    is reached. Outside of a worker nothing is ever gone.
    """
    socket = _socket()
    if socket is None:
        yield lambda: False
        return
    try:
        yield _gone_of(socket)
    finally:
        _settle()


def _gone_of(socket: int) -> Callable[[], bool]:
    if not _CLOSED:
        return lambda: False
    poll = select.poll()
    poll.register(socket, _CLOSED | select.POLLHUP | select.POLLERR)
    return lambda: bool(poll.poll(0))


@cache
def _settle() -> None:
    """Spark collects garbage behind each task. To look at all that was imported takes it longer than to start one, so
    what is left behind the first task of a worker is not looked at again.
    """
    gc.collect()
    gc.freeze()


def _socket() -> int | None:
    """The worker's loop has it as `outfile`, somewhere among our callers."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        out: Any = frame.f_locals.get("outfile")
        if hasattr(out, "fileno"):
            return int(out.fileno())
        frame = frame.f_back
    return None
