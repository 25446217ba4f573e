"""The connections that commands go over: one to each node that was asked something, kept for the next question."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

from dcp.client.commands import Caller
from dcp.errors import TransportError

T = TypeVar("T")

# So many seconds without a word, and a connection is not used again. Firewalls have patience for minutes.
_IDLE = 30.0

# Host and port.
Place = tuple[str, int]


class Callers:
    """open_caller: makes one to a place. Any thread may ask: two that do at once have a connection each."""

    def __init__(self, open_caller: Callable[[str, int], Caller]) -> None:
        self._open = open_caller
        self._kept: dict[Place, Caller] = {}
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, place: Place, question: Callable[[Caller], T]) -> T:
        """Over what is there, or over a new connection where that was lost meanwhile."""
        with self._lock:
            kept = self._kept.pop(place, None)
        if kept is not None:
            if time.monotonic() - kept.last_heard > _IDLE:
                # A firewall may have forgotten it, and then says nothing.
                kept.close()
            else:
                # Nobody looks at it between two questions.
                with suppress(TransportError):
                    return self._ask(kept, question)
        return self._ask(self._open(*place), question)

    def _ask(self, caller: Caller, question: Callable[[Caller], T]) -> T:
        try:
            answer = question(caller)
        except BaseException:
            # Whoever comes next would get the rest of its answers.
            caller.close()
            raise
        with self._lock:
            if self._closed or self._kept.setdefault((caller.host, caller.port), caller) is not caller:
                caller.close()
        return answer

    def keep(self, places: Collection[Place]) -> None:
        """Hang up with all but these."""
        with self._lock:
            left = [self._kept.pop(place) for place in self._kept.keys() - set(places)]
        for caller in left:
            caller.close()

    def close(self) -> None:
        """Who waits for an answer now hangs up himself."""
        self._closed = True
        self.keep(())
