"""Follows the vbuckets of a bucket over all nodes: what links hear, and the thread that mends what is broken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from dcp.client.ending import wait_for
from dcp.client.follow.assigner import Duty
from dcp.client.follow.batch_queue import Item, Queue
from dcp.client.follow.node_link import Link
from dcp.client.follow.node_pool import Connections
from dcp.client.follow.persistence import Persistence
from dcp.client.follow.settings import Terms
from dcp.client.follow.transitions import Outcome
from dcp.client.follow.vbucket import Vbucket
from dcp.client.maps import Maps
from dcp.client.opener import Opener
from dcp.client.sight import position, see
from dcp.client.stats import Counters, Window
from dcp.client.watch import Seen
from dcp.errors import DcpError, SnapshotError, TransportError
from dcp.position import Progress
from dcp.session.events import (
    DeletionsPurged,
    Event,
    MapChanged,
    SessionReady,
    StreamAccepted,
    StreamEnded,
    StreamRefused,
    StreamRolledBack,
)
from dcp.session.session import Delivery
from dcp.session.stream import LazyPosition
from dcp.wire.memcached import Feature

log = logging.getLogger("dcp.client")


class Follower:
    """One stream. All its parts are under one lock.

    Links call `happened`, `delivered` and `lost`; the consumer calls `next`.
    """

    def __init__(self, opener: Opener, vbuckets: Iterable[Vbucket], terms: Terms) -> None:
        self.counters = Counters()
        self._access, self._terms = opener.access, terms
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._vbuckets = {vbucket.number: vbucket for vbucket in vbuckets}
        within = terms.persisted_within
        self._persistence = None if within is None else Persistence(self._access, within)
        marks = {number: LazyPosition(Progress(vbucket.position), 0) for number, vbucket in self._vbuckets.items()}
        self._queue = Queue(self._lock, marks, self._persistence, self._all_done)
        self._maps = Maps(self._access)
        self._connections = Connections(lambda node: opener.open_link(node, self))
        self._duty = Duty(self._lock, opener, self._vbuckets.values(), self._connections, self._maps, terms)
        self._outcome = Outcome(
            self._vbuckets, self._connections, self._queue, self._maps, opener.manner, terms, self.counters
        )
        with self._lock:
            self._begin()
        supervisor = threading.Thread(target=self._supervise, name="dcp supervisor", daemon=True)
        supervisor.start()
        self._threads = [supervisor]
        if self._persistence is not None:
            self._threads.append(self._persistence.start(self._queue))

    def _begin(self) -> None:
        for vbucket in self._vbuckets.values():
            vbucket.done = vbucket.end == 0 == vbucket.position.seqno
            if vbucket.purged:
                self._outcome.purged(vbucket.number, 0, vbucket.purged)

    def _all_done(self) -> bool:
        return all(vbucket.done for vbucket in self._vbuckets.values())

    # For the consumer.

    @property
    def marks(self) -> dict[int, LazyPosition]:
        """Where the consumer stands with each vbucket."""
        return self._queue.marks

    @property
    def stopped(self) -> set[int]:
        """Vbuckets that are done because they were to go back."""
        return self._outcome.stopped

    def next(self, timeout: float | None = None) -> Item | None:
        """What came next; None when all is done. TimeoutError after so many seconds without anything."""
        return self._queue.next(timeout)

    def processed(self, item: Item) -> None:
        """The consumer is done with it: the server may send more."""
        self._queue.processed(item)

    def stop(self) -> None:
        """Let all threads end."""
        with self._lock:
            self._queue.close()
            self._work.notify_all()
            self._connections.stop()
        if self._persistence is not None:
            self._persistence.stop()

    def close(self) -> None:
        self.stop()
        wait_for([link.thread for link in self._connections] + self._threads)

    # For the links.

    def happened(self, link: Link, event: Event) -> None:
        with self._lock:
            if self._queue.closed or link.closing:
                return
            self._judge(link, event)
            self._work.notify_all()
            self._queue.changed.notify_all()

    def _judge(self, link: Link, event: Event) -> None:
        if isinstance(event, SessionReady):
            log.info("%s: ready", link.name)
            self._connections.ready(link)
            self._maps.polls |= Feature.CLUSTERMAP_CHANGE_NOTIFICATION not in event.agreement.features
            self._access.learn(event.agreement.config, link.name)
        elif isinstance(event, MapChanged):
            self._maps.told(event.config, link.name)
        elif isinstance(event, StreamAccepted):
            self._outcome.accepted(event.stream)
        elif isinstance(event, DeletionsPurged):
            if self._terms.ignore_purged:
                self._outcome.purged(event.stream.vbucket, event.start, event.seqno)
        elif isinstance(event, StreamRolledBack):
            self._outcome.rolled_back(event.stream, event.seqno)
        elif isinstance(event, StreamRefused):
            self._outcome.refused(event, link.name)
        elif isinstance(event, StreamEnded):
            self._outcome.ended(event.stream, event.reason)

    def delivered(self, link: Link, delivery: Delivery) -> None:
        with self._lock:
            if self._queue.closed or link.closing:
                return
            self.counters.rows += len(delivery.batch)
            self.counters.bytes += delivery.flow_bytes
            self.counters.batches += 1
            self._queue.deliver(link, delivery)

    def lost(self, link: Link, error: DcpError) -> None:
        with self._lock:
            if self._queue.closed:
                return
            self._connections.lose(link, error)
            for vbucket in self._vbuckets.values():
                if vbucket.link is link:
                    self._outcome.cut_off(vbucket)
            if isinstance(error, TransportError) or error.retriable:
                log.warning("%s; trying again", error)
                self.counters.reconnects += 1
                self._maps.want(0.0)
                if isinstance(error, SnapshotError):
                    self._duty.lacked(error.vbucket, error.seqno)
            else:
                self._queue.fail(error)
            self._work.notify_all()

    def broken(self, bug: Exception) -> None:
        """Something that no code foresaw."""
        with self._lock:
            self._queue.fail(bug)

    # For what watches.

    def seen(self) -> list[Seen]:
        """Where each vbucket stands that is not at its end."""
        with self._lock:
            owner = self._access.map.owner
            links, troubles = self._connections.by_node(), self._connections.troubles
            there = [vbucket for vbucket in self._vbuckets.values() if not vbucket.done]
            return [see(vbucket, owner(vbucket.number), links, troubles) for vbucket in there]

    def done(self) -> dict[int, int]:
        """How far the consumer is with each vbucket."""
        with self._lock:
            return {number: position(mark) for number, mark in self.marks.items()}

    def volume(self) -> tuple[int, int]:
        """Changes and bytes that came so far."""
        return self.counters.rows, self.counters.bytes

    def windows(self) -> dict[str, Window]:
        """The connections that are of use, by node."""
        with self._lock:
            return self._connections.windows()

    # The supervisor.

    def _supervise(self) -> None:
        try:
            while True:
                with self._lock:
                    # Nobody would close what is opened from then on.
                    if self._queue.closed:
                        return
                    self._work.wait(self._duty.assign())
                self._maps.refresh()
        except Exception as error:
            self.broken(error)
