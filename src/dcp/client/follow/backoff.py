"""Backoff: the delay before something is tried again, doubled after each failure, with jitter."""

from __future__ import annotations

import random

FIRST_DELAY, LONGEST_DELAY = 0.03, 4.0


def next_delay(delay: float) -> float:
    """Return the delay in seconds after one that was not enough; 0 for none so far."""
    return min(LONGEST_DELAY, max(FIRST_DELAY, 2 * delay))


def jittered(delay: float) -> float:
    """Return a random delay around this one, so that clients that failed together do not retry together."""
    return delay * random.uniform(0.75, 1.25)
