"""Whether Spark still waits for what a task makes."""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

# Linux says it as soon as the other end closes.
_CLOSED = getattr(select, "POLLRDHUP", 0)


def gone_of() -> Callable[[], bool]:
    """What says whether Spark has closed the connection over which the rows of this task go.

    Spark tells a worker only when that writes: one that waits for a node would wait for ever after a LIMIT
    is reached. Outside of a worker nothing is ever gone.
    """
    socket = _socket()
    if socket is None or not _CLOSED:
        return lambda: False
    poll = select.poll()
    poll.register(socket, _CLOSED | select.POLLHUP | select.POLLERR)
    return lambda: bool(poll.poll(0))


def _socket() -> int | None:
    """The worker's loop has it as `outfile`, somewhere among our callers."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        out: Any = frame.f_locals.get("outfile")
        if hasattr(out, "fileno"):
            return int(out.fileno())
        frame = frame.f_back
    return None
