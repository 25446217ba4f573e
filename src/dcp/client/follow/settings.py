"""What is asked for of every vbucket of a stream, and what is done when one has to go back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dcp.columns.batch import Batch
from dcp.wire.dcp import StreamFlag
from dcp.wire.dcp_body import StreamFilter


@dataclass(frozen=True, slots=True)
class Terms:
    """rollback_row: makes the row that says so. on_rollback: `replay`, `fail`, or `stop` to be done there.

    ignore_purged: whether to go on where deletions may be forgotten. persisted_within: for how many seconds rows may
    wait for disks; None if they need not.
    """

    chosen: StreamFilter | None
    rollback_row: Callable[[int, int, int, str], Batch]
    on_rollback: str
    ignore_purged: bool = False
    persisted_within: float | None = None

    @property
    def flags(self) -> StreamFlag:
        flags = StreamFlag.ACTIVE_VB_ONLY
        return flags | StreamFlag.IGNORE_PURGED_TOMBSTONES if self.ignore_purged else flags
