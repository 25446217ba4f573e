"""How long to wait before something is tried again."""

from __future__ import annotations

FIRST, LONGEST = 0.03, 4.0


def longer(pause: float) -> float:
    """What comes after this pause, if that was not enough."""
    return min(LONGEST, max(FIRST, 2 * pause))
