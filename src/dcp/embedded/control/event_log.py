"""The last changes of a cluster, for those who watch it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import NamedTuple

_KEPT = 200
# Longest text of an argument.
_LONGEST = 60


class LoggedEvent(NamedTuple):
    """Change of a cluster: its number from 1 on, its time in Unix seconds, and the call that made it."""

    number: int
    time: float
    text: str


class EventLog:
    """The last changes of a cluster, the newest one last. `clock` returns Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._events: deque[LoggedEvent] = deque(maxlen=_KEPT)
        self._count = 0

    def add(self, name: str, arguments: Mapping[str, object]) -> None:
        """Add the call of a method."""
        shown = ", ".join(f"{key}={_shown(value)}" for key, value in arguments.items())
        self._count += 1
        self._events.append(LoggedEvent(self._count, round(self._clock(), 3), f"{name}({shown})"))

    def since(self, number: int) -> list[LoggedEvent]:
        """Return the events after the one of this number, as far as they are kept."""
        newest_first = takewhile(lambda event: event.number > number, reversed(self._events))
        return list(newest_first)[::-1]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
