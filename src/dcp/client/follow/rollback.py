"""Rollback of a vbucket: new position, rollback row, rows that are taken back before anybody saw them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dcp._codec import LazyPosition
from dcp.client.follow.batch_queue import BatchQueue, QueuedBatch
from dcp.client.follow.node_pool import NodePool
from dcp.client.follow.settings import StreamSettings
from dcp.client.follow.vbucket import FollowedVbucket
from dcp.client.row_format import PURGED, ROLLBACK
from dcp.client.stats import Counters
from dcp.errors import RemoteProtocolError, RollbackError
from dcp.position import Progress, StreamPosition

log = logging.getLogger("dcp.client")


class Rollbacks:
    """Reactions of a stream to lost and purged changes. Guarded by the stream's lock.

    rolled_back: vbuckets that ended because they were to roll back. Only the probes of a time search stop there
    (`on_rollback="stop"`).
    """

    def __init__(
        self,
        vbuckets: Mapping[int, FollowedVbucket],
        pool: NodePool,
        queue: BatchQueue,
        settings: StreamSettings,
        counters: Counters,
    ) -> None:
        self.rolled_back: set[int] = set()
        self._vbuckets, self._pool, self._queue = vbuckets, pool, queue
        self._settings, self._counters = settings, counters

    def roll_back(self, vbucket: FollowedVbucket, before: StreamPosition, seqno: int) -> None:
        """Act on a ROLLBACK answer to a request from `before`: go back to `seqno` or below."""
        if before.seqno == 0:
            problem = f"vbucket {vbucket.number}: rollback requested although the stream begins at seqno 0"
            self._queue.fail(RemoteProtocolError(problem))
        elif self.drop_undelivered(vbucket.number):
            # The consumer saw nothing of what was lost: its position may be fine, and is tried before anything else.
            return
        elif seqno == 0 and (older := before.under_older_uuid()) is not None:
            # A node that was never told of the newest history may still have the one before it.
            vbucket.position = older
        elif self._settings.on_rollback == "stop":
            vbucket.done = True
            self.rolled_back.add(vbucket.number)
        else:
            vbucket.position = before.rolled_back(seqno)
            after = vbucket.position.seqno
            log.warning("vbucket %d: rolled back from seqno %d to %d", vbucket.number, before.seqno, after)
            self.emit_rollback(vbucket, before.seqno, seqno)

    def emit_rollback(self, vbucket: FollowedVbucket, reached: int, requested: int) -> None:
        """Emit a rollback row: undo everything of this vbucket after its new position, up to `reached`.

        requested: seqno that the node asked to go back to; the new position may be lower.
        """
        if self._settings.on_rollback == "fail":
            self._queue.fail(RollbackError(vbucket.number, reached, requested))
            return
        self._counters.rollbacks += 1
        # No row has arrived since the new position.
        after = LazyPosition(Progress(vbucket.position), 0)
        number, seqno = vbucket.number, vbucket.position.seqno
        row = self._settings.report_row(number, reached, seqno, ROLLBACK)
        self._queue.append(QueuedBatch(row, {number: after}, rolled_back={number: seqno}))

    def report_purge(self, vbucket: int, start: int, seqno: int) -> None:
        """Emit a purge row: deletions above `start`, up to `seqno`, may be missing."""
        log.warning(
            "vbucket %d: deletions up to seqno %d were purged, and the stream began at %d: some may be missing",
            vbucket,
            seqno,
            start,
        )
        # The position does not move. It is named so that the vbucket is streamed again if the row is dropped.
        here = LazyPosition(Progress(self._queue.position_after_queued(vbucket)), 0)
        self._queue.append(QueuedBatch(self._settings.report_row(vbucket, seqno, start, PURGED), {vbucket: here}))

    def drop_undelivered(self, number: int) -> bool:
        """Drop the batches in which a vbucket waits to be persisted, and those after them. Return True if any.

        Batches have rows of many vbuckets, so all of these restart from their position before the dropped ones. Their
        connections are closed: rows of the dropped range may be in flight, and would be taken for new ones.
        """
        dropped = self._queue.drop_from(number)
        links = {link for other in dropped if (link := self._vbuckets[other].link) is not None}
        self._pool.close(links)
        for vbucket in self._vbuckets.values():
            if vbucket.number in dropped or vbucket.link in links:
                vbucket.stream = vbucket.link = None
                vbucket.position, vbucket.done = self._queue.position_after_queued(vbucket.number), False
        return bool(dropped)
