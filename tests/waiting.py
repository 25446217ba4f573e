"""Waiting for a change that another thread or process makes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wakes(condition: threading.Condition, act: Callable[[], object], within: float) -> bool:
    """Return whether a thread that waits for a condition is woken by an act, before it wakes up after `within` seconds.

    The lock of the condition is held while `act` is called.
    """
    waits, woken = threading.Event(), list[bool]()

    def wait() -> None:
        with condition:
            waits.set()
            woken.append(condition.wait(within))

    waiting = threading.Thread(target=wait)
    waiting.start()
    waits.wait()
    # The lock is free once the thread waits.
    with condition:
        act()
    waiting.join()
    return woken[0]


def until(condition: Callable[[], T | None]) -> T:
    """Call `condition` until it returns something true, and return that.

    There is no timeout of its own: the time limit of all tests ends one that waits in vain, and shows where.
    """
    never_set = threading.Event()
    while not (result := condition()):
        never_set.wait(0.01)
    return result
