"""Waiting for a change that another thread or process makes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T | None]) -> T:
    """Call `condition` until it returns something true, and return that.

    There is no timeout of its own: the time limit of all tests ends one that waits in vain, and shows where.
    """
    never_set = threading.Event()
    while not (result := condition()):
        never_set.wait(0.01)
    return result
