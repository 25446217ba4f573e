"""Rollback test: whether a consumer may resume from its position, or how far it has to roll back.

The test is that of servers since 5.5 (FailoverTable::needsRollback in kv_engine). `RollbackRules` has the differences
of older releases.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcp.position import FailoverLog


@dataclass(frozen=True, slots=True)
class Resume:
    """Position in a stream request, and the seqnos of the vbucket that bear on it.

    `filtered_high` is the highest seqno of the requested collections; None for an unfiltered stream. `purge_seqno` is
    the one that the consumer knows, 0 if it knows none.
    """

    start: int
    vbuuid: int
    snapshot_start: int
    snapshot_end: int
    strict: bool = False
    ignore_purged: bool = False
    purge_seqno: int = 0
    filtered_high: int | None = None


@dataclass(frozen=True, slots=True)
class RollbackRules:
    """Comparisons of one release.

    `purge`: whether purged tombstones matter (since 4.0). `purge_window`: whether the purge seqno is compared with the
    collapsed start of the snapshot (up to 5.1) instead of the start seqno. `collapse`: whether a snapshot counts as
    far as it was received (since 4.0); 3.x compares it as it was announced.
    """

    purge: bool = True
    purge_window: bool = False
    collapse: bool = True


def rollback_point(
    request: Resume, log: FailoverLog, high_seqno: int, purge_seqno: int, rules: RollbackRules = RollbackRules()
) -> int | None:
    """Return the seqno to roll back to, or None if the consumer may resume."""
    # At 0 there is nothing to lose, whatever the uuid, unless the consumer insists on the uuid.
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


def _misses_tombstones(request: Resume, purge_seqno: int, rules: RollbackRules) -> bool:
    """Return whether deletions after the start seqno may have been purged before the consumer received them."""
    start = request.start
    if rules.purge_window and start != request.snapshot_end:
        return request.snapshot_start < purge_seqno
    if not 0 < start < purge_seqno or request.purge_seqno == purge_seqno:
        return False
    # A filter whose collections have no seqnos after the start cannot have missed any.
    high = request.filtered_high
    return high is None or start < high
