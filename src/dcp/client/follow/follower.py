"""The engine of one change stream: entry points of links and consumer, the supervisor thread, and their one lock."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from dcp._codec import LazyPosition
from dcp.client import queries
from dcp.client.agent import Agent, MapRefresher
from dcp.client.filters import StreamSelection
from dcp.client.follow.assigner import Assigner
from dcp.client.follow.batch_queue import BatchQueue, QueuedBatch
from dcp.client.follow.disk_wait import DiskWait
from dcp.client.follow.node_link import NodeLink
from dcp.client.follow.node_pool import NodePool
from dcp.client.follow.patience import RefusalPatience
from dcp.client.follow.persistence import Persistence
from dcp.client.follow.rollback import Rollbacks
from dcp.client.follow.settings import StreamSettings
from dcp.client.follow.transitions import Transitions
from dcp.client.follow.vbucket import FollowedVbucket, consumed_seqno, observe
from dcp.client.monitor import FLOWING, Monitor, Observation
from dcp.client.own_process import OwnProcess
from dcp.client.queries import disk_backlogs
from dcp.client.stats import Counters, Stats, Window
from dcp.cluster_map import Node
from dcp.errors import DcpError, ServerError, SnapshotError, TransportError
from dcp.position import Progress
from dcp.session.events import (
    DeletionsPurged,
    Event,
    MapChanged,
    MessageIgnored,
    SessionReady,
    StreamAccepted,
    StreamEnded,
    StreamRefused,
    StreamRolledBack,
)
from dcp.session.session import MARKER_VERSION, Delivery
from dcp.wire.memcached import Feature

log = logging.getLogger("dcp.client")

# Seconds for which ignored messages of one node and opcode are not logged again.
_QUIET = 60.0
_is_done = attrgetter("done")


class Follower:
    """Follows vbuckets over all nodes until each has reached its end.

    The constructor starts the supervisor thread, which assigns vbuckets to nodes and refreshes the cluster map. Links
    call the `on_` methods from their threads. The consumer calls `next` and `processed`, from one thread at a time.
    See `dcp.client.follow` for the lock.
    """

    def __init__(self, agent: Agent, vbuckets: Iterable[FollowedVbucket], settings: StreamSettings) -> None:
        self.counters = Counters()
        self._agent, self._settings = agent, settings
        self._lock = threading.RLock()
        # Wakes the supervisor.
        self._work = threading.Condition(self._lock)
        self._vbuckets = {vbucket.number: vbucket for vbucket in vbuckets}
        within = settings.persisted_within
        self._persistence = None if within is None else Persistence(agent, within)
        positions = {number: LazyPosition(Progress(vbucket.position), 0) for number, vbucket in self._vbuckets.items()}
        self._queue = BatchQueue(self._lock, positions, self._persistence, self._all_done)
        self._maps = MapRefresher(agent)
        # Monotonic time from which ignored messages of a node and opcode are logged again.
        self._quiet_until: dict[tuple[str, int], float] = {}
        # Connected links on which no streams are requested until the purge seqnos of their node are known.
        self._links_to_check: list[NodeLink] = []
        self._pool = NodePool(self._open_link)
        limit = settings.on_disk_within
        self._disk = None if limit is None else DiskWait(partial(disk_backlogs, agent), limit)
        self._assigner = Assigner(
            self._lock, agent, self._vbuckets.values(), self._pool, self._maps, settings, self._disk
        )
        self._rollbacks = Rollbacks(self._vbuckets, self._pool, self._queue, settings, self.counters)
        self._patience = RefusalPatience(agent.options.refusal_timeout)
        self._transitions = Transitions(
            self._vbuckets, self._queue, self._maps, self._rollbacks, settings, self.counters, self._patience
        )
        with self._lock:
            self._begin()
        supervisor = threading.Thread(target=self._supervise, name="dcp supervisor", daemon=True)
        supervisor.start()
        self._threads = [supervisor]
        if self._persistence is not None:
            self._threads.append(self._persistence.start(self._queue, self._on_rows_lost))

    def _begin(self) -> None:
        for vbucket in self._vbuckets.values():
            # Nothing to read, and nothing that could have been lost.
            vbucket.done = vbucket.end == 0 == vbucket.position.seqno
            if vbucket.purged:
                self._rollbacks.report_purge(vbucket.number, 0, vbucket.purged)

    def _open_link(self, node: Node) -> NodeLink:
        requested = self._agent.connection_settings(**self._settings.requested)
        session = partial(self._settings.rules.session, requested, self._settings.decoder)
        return NodeLink(str(node), self._agent.dialer(node), session, self, self._settings.limits)

    def _all_done(self) -> bool:
        return all(map(_is_done, self._vbuckets.values()))

    # For the consumer.

    @property
    def positions(self) -> dict[int, LazyPosition]:
        """Position of each vbucket that the consumer has reached."""
        return self._queue.positions

    @property
    def rolled_back(self) -> set[int]:
        """Vbuckets that ended because they were to roll back (`on_rollback="stop"`)."""
        return self._rollbacks.rolled_back

    def next(self, timeout: float | None = None) -> QueuedBatch | None:
        """Return the next batch; None at the end. Raises TimeoutError after `timeout` seconds without one."""
        return self._queue.next(timeout)

    @contextlib.contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener`, on any thread, when `next` may have something else to say."""
        with self._queue.changed:
            self._queue.changed.listener = listener
        try:
            yield
        finally:
            with self._queue.changed:
                # A task that was cancelled may end after the next one has begun.
                if self._queue.changed.listener is listener:
                    self._queue.changed.listener = None

    @property
    def failed(self) -> bool:
        """True if an error ends the stream, after the batches that arrived before it."""
        return self._queue.error is not None

    def processed(self, item: QueuedBatch) -> None:
        """Acknowledge a batch: its node may send more."""
        self._queue.processed(item)

    def stop(self) -> None:
        """Tell all threads to end, without waiting for them."""
        with self._lock:
            self._queue.close()
            self._work.notify_all()
            self._pool.stop()
        if self._persistence is not None:
            self._persistence.stop()

    def close(self) -> None:
        """Stop, and join the threads."""
        self.stop()
        join_threads([link.thread for link in self._pool] + self._threads)

    # For the links.

    def on_events(self, link: NodeLink, events: Sequence[Event]) -> None:
        with self._lock:
            try:
                for event in events:
                    # A link that is closing may still deliver: its streams were requested again from an earlier
                    # position.
                    if self._queue.closed or link.closing:
                        return
                    self._dispatch(link, event)
            finally:
                # An accepted stream is no work for the supervisor, and no news for the consumer.
                if not all(isinstance(event, StreamAccepted) for event in events):
                    self._work.notify_all()
                    self._queue.changed.notify_all()

    def _dispatch(self, link: NodeLink, event: Event) -> None:
        # The most frequent ones first.
        if isinstance(event, StreamAccepted):
            self._transitions.accepted(event.stream)
        elif isinstance(event, StreamEnded):
            self._transitions.ended(event.stream, event.reason)
        elif isinstance(event, SessionReady):
            # First, as it refuses a node whose map does not serve the bucket.
            self._agent.learn_map(event.agreement.config, link.name)
            self._patience.ready(link.name)
            log.info("%s: ready", link.name)
            if self._settings.ignore_purged and MARKER_VERSION not in event.agreement.controls:
                # Nodes before 8.0 announce no purge seqno in their markers. The supervisor asks for it before streams
                # are resumed there.
                self._links_to_check.append(link)
            else:
                self._pool.mark_ready(link)
            self._maps.polls |= Feature.CLUSTERMAP_CHANGE_NOTIFICATION not in event.agreement.features
        elif isinstance(event, MessageIgnored):
            self._report_ignored(link.name, event)
        elif isinstance(event, MapChanged):
            self._maps.map_changed(event.config, link.name)
        elif isinstance(event, DeletionsPurged):
            if self._settings.ignore_purged:
                self._rollbacks.report_purge(event.stream.vbucket, event.start, event.seqno)
        elif isinstance(event, StreamRolledBack):
            self._transitions.rolled_back(event.stream, event.seqno)
        elif isinstance(event, StreamRefused):
            self._transitions.refused(event, link.name)

    def _report_ignored(self, node: str, event: MessageIgnored) -> None:
        """Log a message that was ignored, unless its like was logged in the last minute."""
        now = time.monotonic()
        if now < self._quiet_until.get((node, event.opcode), 0.0):
            return
        self._quiet_until[node, event.opcode] = now + _QUIET
        log.warning(
            "%s: vbucket %d: unexpected message %s (opcode 0x%02x) %s",
            node,
            event.vbucket,
            event.name,
            event.opcode,
            "ignored" if event.answer is None else f"refused with {event.answer.name}",
        )

    def on_delivery(self, link: NodeLink, delivery: Delivery) -> None:
        with self._lock:
            if self._queue.closed or link.closing:
                return
            self.counters.rows += len(delivery.batch)
            self.counters.bytes += delivery.flow_bytes
            self.counters.unselected_rows += delivery.batch.unselected_rows
            self.counters.bad_rows += delivery.batch.bad_rows
            self.counters.batches += 1
            self._queue.deliver(link, delivery)

    def on_lost(self, link: NodeLink, error: DcpError) -> None:
        with self._lock:
            if self._queue.closed:
                return
            # The link is forgotten first, so that the supervisor cannot assign a vbucket to it again.
            self._pool.remove_lost(link, error)
            for vbucket in self._vbuckets.values():
                if vbucket.link is link:
                    self._transitions.cut_off(vbucket)
            final = self._final(link, error)
            if final is None:
                log.warning("%s; reconnecting", error)
                self.counters.reconnects += 1
                self._maps.request(within=0.0)
                if isinstance(error, SnapshotError):
                    self._assigner.end_skipped(error.vbucket, error.seqno)
            else:
                self._queue.fail(final)
            self._work.notify_all()

    def _final(self, link: NodeLink, error: DcpError) -> DcpError | None:
        """Return the error that ends the stream; None to connect again."""
        if isinstance(error, TransportError):
            # Refusals count as long as they follow each other. A node that cannot be reached is waited for.
            self._patience.forget(link.name)
            return None
        # Anything but a refusal is a broken protocol, which a new connection would meet again.
        if not isinstance(error, ServerError):
            return error
        return self._patience.exhausted(link.name, link.name, error, time.monotonic())

    def on_bug(self, bug: Exception) -> None:
        with self._lock:
            self._queue.fail(bug)

    # For the persistence thread.

    def _on_rows_lost(self, vbucket: int) -> None:
        with self._lock:
            if not self._queue.closed and self._rollbacks.drop_undelivered(vbucket):
                log.warning("vbucket %d: rows that waited to be persisted were lost in a failover", vbucket)
                self._work.notify_all()

    # For the monitor.

    def observations(self) -> list[Observation]:
        """Return where each vbucket stands that has not reached its end."""
        with self._lock:
            owner = self._agent.map.owner
            links, last_errors = self._pool.by_node(), self._pool.last_errors
            active = [vbucket for vbucket in self._vbuckets.values() if not vbucket.done]
            return [observe(vbucket, owner(vbucket.number), links, last_errors) for vbucket in active]

    def consumed(self) -> dict[int, int]:
        """Return the seqno up to which the consumer has each vbucket."""
        with self._lock:
            return {number: consumed_seqno(reached) for number, reached in self.positions.items()}

    def volume(self) -> tuple[int, int]:
        """Return the numbers of changes and bytes received so far."""
        return self.counters.rows, self.counters.bytes

    def windows(self) -> dict[str, Window]:
        """Return the flow-control windows of ready connections, by name of the node."""
        with self._lock:
            return self._pool.windows()

    # The supervisor.

    def _supervise(self) -> None:
        try:
            while True:
                with self._lock:
                    # Checked under the lock: a link that is opened after `stop` would never be closed.
                    if self._queue.closed:
                        return
                    self._work.wait(min(self._assigner.assign(), self._transitions.report_unannounced()))
                # Outside of the lock: these wait for a node, and links must be able to deliver meanwhile.
                self._check_purges()
                self._maps.refresh_if_due()
                if self._disk is not None:
                    self._disk.poll_if_due()
        except Exception as error:
            self.on_bug(error)

    def _check_purges(self) -> None:
        """Report deletions that nodes have purged since the positions to resume from, then let their links be used.

        Runs on the supervisor thread without the lock, since it waits for the nodes.
        """
        with self._lock:
            links, self._links_to_check = self._links_to_check, []
        for link in links:
            if (node := self._pool.node_of(link)) is None:
                # The connection was lost meanwhile.
                continue
            try:
                found = queries.purge_seqnos_at(self._agent, node)
            except (TransportError, ServerError) as error:
                log.warning("%s: purge seqnos unknown: %s; purged deletions are not reported", link.name, error)
                found = {}
            with self._lock:
                for vbucket in (self._vbuckets[n] for n in self._agent.map.vbuckets_of(node) if n in self._vbuckets):
                    here, purged = vbucket.position, found.get(vbucket.number, 0)
                    if vbucket.link is None and 0 < here.seqno < purged != here.purge_seqno:
                        self._rollbacks.report_purge(vbucket.number, here.seqno, purged)
                        vbucket.position = replace(here, purge_seqno=purged)
                self._pool.mark_ready(link)
                self._work.notify_all()


class RunningStream:
    """Handle that the client keeps of one of its streams, for statistics and to close it.

    It must not reference the ChangeStream, so that an abandoned stream is collected and stops.
    """

    def __init__(self, bucket: str, follower: Follower, monitor: Monitor) -> None:
        self.closed = False
        self._process = OwnProcess()
        self._bucket, self._follower, self._monitor = bucket, follower, monitor

    @classmethod
    def start(cls, agent: Agent, follower: Follower, chosen: StreamSelection, *, monitored: bool) -> RunningStream:
        """Return the handle of a follower's stream. `monitored`: poll its lag every `stats_interval` seconds."""
        interval = agent.options.stats_interval
        monitor = Monitor(agent, follower, interval, chosen)
        if monitored and interval:
            monitor.start()
        return cls(agent.target.bucket, follower, monitor)

    def check_process(self) -> None:
        """Raise UsageError in a forked process."""
        self._process.check("stream")

    def stop(self) -> None:
        """Tell all threads to end. Waits for none: the garbage collector may call this from one of them."""
        self.closed = True
        if self._process.left:
            # The threads are those of the parent, and so are the connections: they stay as they are.
            return
        self._monitor.stop()
        self._follower.stop()

    def close(self) -> None:
        """Stop, and join the threads."""
        self.stop()
        if self._process.left:
            return
        self._monitor.join()
        self._follower.close()

    def stats(self) -> Stats:
        """Return counts so far and, while the stream runs, where it stands. Raises UsageError in a forked process."""
        self._process.check("client")
        counters = self._follower.counters
        counts = Stats(
            self._bucket,
            changes=counters.rows,
            bytes=counters.bytes,
            batches=counters.batches,
            unselected_rows=counters.unselected_rows,
            bad_rows=counters.bad_rows,
            rollbacks=counters.rollbacks,
            reconnects=counters.reconnects,
            stream_ends=dict(counters.stream_ends),
        )
        return counts if self.closed else self._with_state(counts)

    def _with_state(self, counts: Stats) -> Stats:
        observations, lags = self._follower.observations(), self._monitor.lags()
        changes, size = self._monitor.rates
        return replace(
            counts,
            changes_per_second=changes,
            bytes_per_second=size,
            vbuckets=len(observations),
            streams=sum(each.reason in FLOWING for each in observations),
            connections=self._follower.windows(),
            lag=lags.get(None),
            collections={path: lag for path, lag in lags.items() if path is not None},
            stuck=dict(self._monitor.stuck),
        )


def join_threads(threads: Iterable[threading.Thread], within: float = 0.5) -> None:
    """Join stopping threads for at most `within` seconds in all; one that is blocked on a node ends by itself."""
    deadline = time.monotonic() + within
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
