"""Threads that were told to end are waited for, but not those that wait for a node.

They end by themselves, as soon as the node answers or is given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

# So many seconds, all of them together.
MOMENT = 0.5


def wait_for(threads: Iterable[threading.Thread]) -> None:
    deadline = time.monotonic() + MOMENT
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
