"""Waiting for what another thread or process does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(question: Callable[[], T | None]) -> T:
    """Ask until there is an answer. The time limit of all tests ends what has none, and says where."""
    pause = threading.Event()
    while not (answer := question()):
        pause.wait(0.01)
    return answer
