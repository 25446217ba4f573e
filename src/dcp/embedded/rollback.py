"""Whether a consumer may go on from where it says it is, or how far back it has to go.

The test is that of servers since 5.5; what older ones do otherwise is in `Rules`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcp.position import FailoverLog


@dataclass(frozen=True, slots=True)
class Resume:
    """What a stream request says of the past, and what the vbucket knows of its own."""

    start: int
    vbuuid: int
    snapshot_start: int
    snapshot_end: int
    strict: bool = False
    ignore_purged: bool = False
    purge_seqno: int = 0
    filtered_high: int | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """What a generation of servers tests.

    `purge`: whether tombstones that were purged matter at all. `purge_window`: whether it is the
    collapsed start of the snapshot that is compared, as up to 5.1, and not the start seqno. `collapse`:
    whether a snapshot counts as what was received of it; 3.x compares it as it was announced.
    """

    purge: bool = True
    purge_window: bool = False
    collapse: bool = True


def rollback_point(
    request: Resume, log: FailoverLog, high_seqno: int, purge_seqno: int, rules: Rules = Rules()
) -> int | None:
    """The seqno to go back to, or None to go on."""
    if request.start == 0 and not (request.strict and request.vbuuid):
        return None
    if rules.purge and not request.ignore_purged and _misses_tombstones(request, purge_seqno, rules):
        return 0
    upper = log.end_of(request.vbuuid, high_seqno)
    if upper is None:
        return 0
    window_start, window_end = request.snapshot_start, request.snapshot_end
    if not rules.collapse:
        fits = window_end <= upper or (request.start == window_start < upper)
        return None if fits else min(upper, window_start)
    if request.start == window_start:
        # Nothing of the snapshot was received.
        window_end = request.start
    if window_end <= upper:
        return None
    if request.start == window_end:
        # All of the snapshot was received.
        window_start = request.start
    return min(upper, window_start)


def _misses_tombstones(request: Resume, purge_seqno: int, rules: Rules) -> bool:
    """Whether deletions after the start may have been forgotten before the consumer saw them."""
    start = request.start
    if rules.purge_window and start != request.snapshot_end:
        return request.snapshot_start < purge_seqno
    if not 0 < start < purge_seqno or request.purge_seqno == purge_seqno:
        return False
    # A filter whose collections have nothing beyond the start has nothing to miss.
    high = request.filtered_high
    return not (high is not None and start >= high and high <= purge_seqno)
