"""What becomes of a vbucket when its stream has ended, was refused, has to go back, or is cut off."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dcp.client.dialects import Manner
from dcp.client.follow.batch_queue import Item, Queue
from dcp.client.follow.node_pool import Connections
from dcp.client.follow.settings import Terms
from dcp.client.follow.vbucket import Vbucket
from dcp.client.maps import Maps
from dcp.client.rollback import EVENT, PURGED
from dcp.client.stats import Counters
from dcp.errors import RemoteProtocolError, RollbackError, ServerError, TransportError
from dcp.position import Progress
from dcp.session.events import StreamRefused
from dcp.session.handshake import CHECK_DIALECT, WRONG_DIALECT
from dcp.session.states import REQUESTED
from dcp.session.stream import ConsumerStream, LazyPosition
from dcp.wire.dcp import StreamEnd
from dcp.wire.memcached import Status

log = logging.getLogger("dcp.client")

_TEMPORARY = frozenset({Status.ETMPFAIL, Status.EBUSY, Status.ENOMEM, Status.NOT_MY_VBUCKET, Status.KEY_EEXISTS})


class Outcome:
    """Of the streams of vbuckets, under the lock that they share."""

    def __init__(
        self,
        vbuckets: Mapping[int, Vbucket],
        connections: Connections,
        queue: Queue,
        maps: Maps,
        manner: Manner,
        terms: Terms,
        counters: Counters,
    ) -> None:
        self._vbuckets, self._connections, self._queue, self._maps = vbuckets, connections, queue, maps
        self._manner, self._terms, self._counters = manner, terms, counters
        # Vbuckets that are done because they were to go back.
        self.stopped: set[int] = set()

    def accepted(self, stream: ConsumerStream) -> None:
        vbucket = self._vbuckets[stream.vbucket]
        vbucket.pause = 0.0
        log.debug("vbucket %d: a stream comes from seqno %d on", vbucket.number, vbucket.position.seqno)

    def ended(self, stream: ConsumerStream, reason: int) -> None:
        vbucket = self._vbuckets[stream.vbucket]
        name = StreamEnd(reason).name.lower() if reason in list(StreamEnd) else str(reason)
        self._counters.stream_ends[name] = self._counters.stream_ends.get(name, 0) + 1
        self._release(vbucket)
        if reason in (StreamEnd.OK, StreamEnd.FILTER_EMPTY):
            vbucket.done = True
        elif reason == StreamEnd.LOST_PRIVILEGES:
            self._queue.fail(ServerError(f"vbucket {vbucket.number}: the user lost the right to stream it"))
        else:
            seqno = vbucket.position.seqno
            log.info("vbucket %d: the stream ended (%s); going on from seqno %d", vbucket.number, name, seqno)
            vbucket.retry(f"the stream ended, {name}")
            if reason == StreamEnd.STATE_CHANGED:
                self._maps.want()

    def refused(self, event: StreamRefused, node: str) -> None:
        vbucket = self._vbuckets[event.stream.vbucket]
        self._release(vbucket)
        if event.status == Status.ERANGE:
            # Whatever is stored leads nowhere: only the beginning is safe.
            self.rolled_back(event.stream, 0)
            return
        if event.status not in _TEMPORARY:
            self._queue.fail(self._refusal(vbucket, event.status))
            return
        if event.status == Status.NOT_MY_VBUCKET:
            if isinstance(event.body, dict):
                self._maps.told(event.body, node)
            self._maps.want()
        vbucket.retry(f"refused, {Status(event.status).name}")
        log.debug("vbucket %d: %s at %s; asking again", vbucket.number, vbucket.trouble, node)

    def _refusal(self, vbucket: Vbucket, status: int) -> ServerError:
        name = Status(status).name if status in list(Status) else "unknown"
        if status == Status.EINVAL and self._terms.ignore_purged:
            name += "; ignore_purged takes servers of 7.2 or newer"
        elif status in WRONG_DIALECT and not self._manner.closes:
            # Where it is DCP, the node has taken its open.
            name += f"; {CHECK_DIALECT}"
        return ServerError(f"vbucket {vbucket.number}: the stream was refused: {name}", status)

    def cut_off(self, vbucket: Vbucket) -> None:
        """The connection of its stream is lost. Without positions, what came of it comes again, or is not whole."""
        asked = vbucket.stream is not None and vbucket.stream.state != REQUESTED
        if asked and not self._manner.resumes:
            self._begin_again(vbucket)
        self._release(vbucket)

    def _begin_again(self, vbucket: Vbucket) -> None:
        if self._manner.replays:
            log.warning("vbucket %d: begins again", vbucket.number)
            self._go_back(vbucket, 0, 0)
            return
        self._queue.fail(
            TransportError(
                f"vbucket {vbucket.number}: the connection is lost, and nothing says where to go on without a gap; "
                "stream again, from the beginning"
            )
        )

    def _release(self, vbucket: Vbucket) -> None:
        """The vbucket has no stream any more. If it broke out of order, rows came that no position speaks of.

        After a failover no node would say that they are lost.
        """
        stream = vbucket.release()
        if stream is None or stream.progress.disorder is None:
            return
        seqno = vbucket.position.seqno
        log.warning(
            "vbucket %d: the stream broke in a snapshot out of order: its rows come again from seqno %d",
            vbucket.number,
            seqno,
        )
        if stream.last_seqno > seqno:
            self._go_back(vbucket, stream.last_seqno, seqno)

    # Going back.

    def rolled_back(self, stream: ConsumerStream, seqno: int) -> None:
        vbucket = self._vbuckets[stream.vbucket]
        before = stream.position
        self._release(vbucket)
        if before.seqno == 0:
            problem = f"vbucket {vbucket.number}: asked to go back although it begins at 0"
            self._queue.fail(RemoteProtocolError(problem))
        elif self._forget(vbucket.number):
            return
        elif seqno == 0 and (older := before.under_older_uuid()) is not None:
            vbucket.position = older
        elif self._terms.on_rollback == "stop":
            vbucket.done = True
            self.stopped.add(vbucket.number)
        else:
            vbucket.position = before.rolled_back(seqno)
            after = vbucket.position.seqno
            log.warning("vbucket %d: rolled back from seqno %d to %d", vbucket.number, before.seqno, after)
            self._go_back(vbucket, before.seqno, seqno)

    def _go_back(self, vbucket: Vbucket, before: int, asked: int) -> None:
        """All above its position, which is not above what was asked for, is undone, up to where it was before."""
        if self._terms.on_rollback == "fail":
            self._queue.fail(RollbackError(vbucket.number, before, asked))
            return
        self._counters.rollbacks += 1
        mark = LazyPosition(Progress(vbucket.position), 0)
        row = self._terms.rollback_row(vbucket.number, before, vbucket.position.seqno, EVENT)
        self._queue.put(Item(row, {vbucket.number: mark}))

    def _forget(self, number: int) -> bool:
        """Nobody has seen what still waits for disks: all from the first batch of a vbucket on comes again.

        Says whether there was any.
        """
        dropped = self._queue.forget(number)
        links = {link for other in dropped if (link := self._vbuckets[other].link) is not None}
        self._connections.close(links)
        for vbucket in self._vbuckets.values():
            if vbucket.number in dropped or vbucket.link in links:
                vbucket.stream = vbucket.link = None
                vbucket.position, vbucket.done = self._queue.kept(vbucket.number), False
        return bool(dropped)

    def purged(self, number: int, start: int, seqno: int) -> None:
        log.warning(
            "vbucket %d: the cluster has forgotten deletions up to seqno %d, and the stream began at %d: "
            "some may never come",
            number,
            seqno,
            start,
        )
        self._queue.put(Item(self._terms.rollback_row(number, seqno, start, PURGED), {}))
