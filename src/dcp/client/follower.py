"""Follows the vbuckets of a bucket over all nodes: who has which, what to do when that changes, what came of it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from dcp.client.call import Caller
from dcp.client.dialects import Manner
from dcp.client.link import Link
from dcp.client.persistence import History, Persistence, needs_of
from dcp.client.rollback import EVENT, PURGED
from dcp.client.sight import position, see, window_of
from dcp.client.stats import Window
from dcp.client.watch import Seen
from dcp.cluster import ClusterMap, Node
from dcp.columns.batch import Batch
from dcp.errors import (
    DcpError,
    RemoteProtocolError,
    RollbackError,
    ServerError,
    SnapshotError,
    TimeoutError,
    TransportError,
)
from dcp.position import StreamPosition
from dcp.progress import Progress
from dcp.session.connection import Delivery, Session
from dcp.session.events import Accepted, Ended, Event, MapChanged, Purged, Ready, Refused, RolledBack
from dcp.session.states import REQUESTED
from dcp.session.stream import Mark, Stream
from dcp.wire.dcp import ENDLESS, StreamEnd, StreamFlag
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.memcached import Feature, Status

log = logging.getLogger("dcp.client")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.03, 4.0
_MAP_PAUSE = 0.2
_TEMPORARY = frozenset({Status.ETMPFAIL, Status.EBUSY, Status.ENOMEM, Status.NOT_MY_VBUCKET, Status.KEY_EEXISTS})


class Cluster(Protocol):
    """What the follower needs of the client."""

    @property
    def map(self) -> ClusterMap: ...

    @property
    def poll_interval(self) -> float: ...

    @property
    def manner(self) -> Manner: ...

    def refresh(self) -> ClusterMap: ...

    def learn(self, config: Any, host: str) -> None: ...

    def call(self, node: Node) -> Caller: ...

    def open_link(self, node: Node, owner: Follower) -> Link: ...


@dataclass(eq=False, slots=True)
class Vbucket:
    """One of those that are followed. `stream` is what was asked for, on `link`."""

    number: int
    position: StreamPosition
    end: int = ENDLESS
    # Up to where deletions may be lost for a stream that begins at the beginning to begin at a time.
    purged: int = 0
    done: bool = False
    link: Link | None = None
    stream: Stream | None = None
    # Whether the stream was asked to end, since another node has the active copy.
    leaving: bool = False
    pause: float = 0.0
    retry_at: float = 0.0
    # Why it has no stream, if it has none.
    trouble: str = ""


@dataclass(eq=False, slots=True)
class Item:
    """What the consumer gets next, and where streams stand then."""

    batch: Batch
    marks: dict[int, Mark]
    link: Link | None = None
    counted: int = 0
    # What has to be on disk before.
    needs: dict[History, int] = field(default_factory=dict)


@dataclass(slots=True)
class Counters:
    """What happened so far."""

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    rollbacks: int = 0
    reconnects: int = 0
    stream_ends: dict[str, int] = field(default_factory=dict)


class Follower:
    """The state that all links share, and the thread that mends it.

    Links call `happened`, `delivered` and `lost`; the consumer calls `next`.
    """

    def __init__(
        self,
        cluster: Cluster,
        vbuckets: Iterable[Vbucket],
        *,
        chosen: StreamFilter | None,
        rollback_row: Callable[[int, int, int, str], Batch],
        on_rollback: str,
        ignore_purged: bool = False,
        persisted_within: float | None = None,
    ) -> None:
        self.counters = Counters()
        self.marks: dict[int, Mark] = {}
        self._cluster = cluster
        self._chosen = chosen
        self._rollback_row = rollback_row
        self._on_rollback = on_rollback
        self._flags = StreamFlag.ACTIVE_VB_ONLY
        if ignore_purged:
            self._flags |= StreamFlag.IGNORE_PURGED_TOMBSTONES
        # Vbuckets that are done because they were to go back.
        self.stopped: set[int] = set()
        self._manner = cluster.manner
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)
        self._vbuckets = {vbucket.number: vbucket for vbucket in vbuckets}
        for vbucket in self._vbuckets.values():
            self.marks[vbucket.number] = Mark(Progress(vbucket.position), 0)
            vbucket.done = vbucket.end == 0 == vbucket.position.seqno
        self._links: dict[Node, Link] = {}
        # Those that take no more requests.
        self._full: dict[Link, Node] = {}
        self._link_pauses: dict[Node, tuple[float, float]] = {}
        # What went wrong last with a node, by its name.
        self._troubles: dict[str, str] = {}
        self._items: deque[Item] = deque()
        for vbucket in self._vbuckets.values():
            if vbucket.purged:
                self._purged(vbucket.number, 0, vbucket.purged)
        # Ends of snapshots that nodes left out, and whether that is still a reason to ask again.
        self._lacking: set[tuple[int, int]] = set()
        self._wants_tails = True
        self._error: Exception | None = None
        self._closed = False
        self._map_due: float | None = None
        self._persistence = None if persisted_within is None else Persistence(cluster, self, persisted_within)
        # Whether a node would not say that the map has changed.
        self._polls = False
        self._supervisor = threading.Thread(target=self._supervise, name="dcp supervisor", daemon=True)
        self._supervisor.start()
        if self._persistence is not None:
            self._persistence.start()

    # For the consumer.

    def next(self, timeout: float | None = None) -> Item | None:
        """What came next; None when all is done. TimeoutError after so many seconds without anything."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while not self._ready():
                if self._error is not None:
                    raise self._error
                if self._closed or (not self._items and all(vbucket.done for vbucket in self._vbuckets.values())):
                    return None
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"nothing came for {timeout:g} s; nothing may have changed: ask for more")
                # Ctrl-C does not end a wait without a time limit everywhere.
                self._changed.wait(min(1.0, 1.0 if left is None else left))
            item = self._items.popleft()
            self.marks.update(item.marks)
            return item

    def _ready(self) -> bool:
        """Whether there is something that the consumer may have. What has no rows it need not see."""
        while self._items and (self._persistence is None or self._persistence.covers(self._items[0].needs)):
            if len(self._items[0].batch):
                return True
            item = self._items.popleft()
            self.marks.update(item.marks)
            self.processed(item)
        return False

    def processed(self, item: Item) -> None:
        """The consumer is done with it: the server may send more."""
        if item.link is not None and item.counted:
            self._processed(item.link, item.counted)

    def _processed(self, link: Link, count: int) -> None:
        with self._lock:
            link.unprocessed -= count
        link.do(lambda session: session.processed(count))

    def stop(self) -> None:
        """Let all threads end."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
            self._work.notify_all()
            for link in (*self._links.values(), *self._full):
                link.close()
        if self._persistence is not None:
            self._persistence.stop()

    def close(self) -> None:
        self.stop()
        for link in (*self._links.values(), *self._full):
            link.join()
        if self._persistence is not None:
            self._persistence.close()
        if self._supervisor is not threading.current_thread():
            self._supervisor.join()

    # For the links.

    def happened(self, link: Link, event: Event) -> None:
        with self._lock:
            if self._closed or link.closing:
                return
            if isinstance(event, Ready):
                link.ready = True
                self._troubles.pop(link.name, None)
                log.info("%s: ready", link.name)
                self._polls |= Feature.CLUSTERMAP_CHANGE_NOTIFICATION not in event.agreement.features
                self._cluster.learn(event.agreement.config, link.name)
            elif isinstance(event, MapChanged):
                self._told_of_map(link, event)
            elif isinstance(event, Accepted):
                self._accepted(event.stream)
            elif isinstance(event, Purged):
                if StreamFlag.IGNORE_PURGED_TOMBSTONES in self._flags:
                    self._purged(event.stream.vbucket, event.start, event.seqno)
            elif isinstance(event, RolledBack):
                self._rolled_back(event.stream, event.seqno)
            elif isinstance(event, Refused):
                self._refused(link, event)
            elif isinstance(event, Ended):
                self._ended(event.stream, event.reason)
            self._work.notify_all()
            self._changed.notify_all()

    def delivered(self, link: Link, delivery: Delivery) -> None:
        batch = delivery.batch
        marks = {vbucket: mark for (vbucket, _), mark in delivery.marks.items()}
        needs = {} if self._persistence is None else needs_of(marks.values())
        with self._lock:
            if self._closed or link.closing:
                return
            self.counters.rows += len(batch)
            self.counters.bytes += delivery.counted
            link.unprocessed += delivery.counted
            self.counters.batches += 1
            if len(batch) or needs:
                self._items.append(Item(batch, marks, link, delivery.counted, needs))
                self._changed.notify_all()
                return
            # Nothing for the consumer to process: but it may still be at what came before.
            if self._items:
                last = self._items[-1]
                last.marks = last.marks | marks
            else:
                self.marks.update(marks)
        if delivery.counted:
            self._processed(link, delivery.counted)

    def lost(self, link: Link, error: DcpError) -> None:
        with self._lock:
            if self._closed:
                return
            self._links = {node: other for node, other in self._links.items() if other is not link}
            self._full.pop(link, None)
            for vbucket in self._vbuckets.values():
                if vbucket.link is link:
                    self._cut_off(vbucket)
                    self._release(vbucket)
            if not isinstance(error, TransportError) and not error.retriable:
                self._fail(error)
            else:
                log.warning("%s; trying again", error)
                self._troubles[link.name] = str(error)
                self.counters.reconnects += 1
                self._map_due = time.monotonic()
                if isinstance(error, SnapshotError):
                    self._lacked(error.vbucket, error.seqno)
            self._work.notify_all()

    def _lacked(self, vbucket: int, seqno: int) -> None:
        """What a node left out twice it does not have: some have no way to say where a snapshot ends."""
        if (vbucket, seqno) in self._lacking:
            log.warning(
                "vbucket %d: nothing comes behind seqno %d but another snapshot, again: taken for complete from now "
                "on, for all vbuckets; if the nodes are from 7.0 on, changes are missing",
                vbucket,
                seqno,
            )
            self._wants_tails = False
        self._lacking.add((vbucket, seqno))

    def broken(self, bug: Exception) -> None:
        """Something that no code foresaw."""
        with self._lock:
            self._fail(bug)

    # For what watches.

    def seen(self) -> list[Seen]:
        """Where each vbucket stands that is not at its end."""
        with self._lock:
            owner = self._cluster.map.owner
            there = [vbucket for vbucket in self._vbuckets.values() if not vbucket.done]
            links = self._links | {node: link for link, node in self._full.items()}
            return [see(vbucket, owner(vbucket.number), links, self._troubles) for vbucket in there]

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
            return {link.name: window_of(link) for link in [*self._links.values(), *self._full] if link.ready}

    # For what knows of disks.

    def held(self) -> list[Item]:
        with self._lock:
            return list(self._items)

    def told(self) -> None:
        with self._lock:
            self._changed.notify_all()

    # What happened to a stream.

    def _accepted(self, stream: Stream) -> None:
        vbucket = self._vbuckets[stream.vbucket]
        vbucket.pause = 0.0
        log.debug("vbucket %d: a stream comes from seqno %d on", vbucket.number, vbucket.position.seqno)

    def _ended(self, stream: Stream, reason: int) -> None:
        vbucket = self._vbuckets[stream.vbucket]
        name = StreamEnd(reason).name.lower() if reason in list(StreamEnd) else str(reason)
        self.counters.stream_ends[name] = self.counters.stream_ends.get(name, 0) + 1
        self._release(vbucket)
        if reason in (StreamEnd.OK, StreamEnd.FILTER_EMPTY):
            vbucket.done = True
        elif reason == StreamEnd.LOST_PRIVILEGES:
            self._fail(ServerError(f"vbucket {vbucket.number}: the user lost the right to stream it"))
        else:
            log.info(
                "vbucket %d: the stream ended (%s); going on from seqno %d",
                vbucket.number,
                name,
                vbucket.position.seqno,
            )
            vbucket.trouble = f"the stream ended, {name}"
            self._retry(vbucket)
            if reason == StreamEnd.STATE_CHANGED:
                self._want_map()

    def _rolled_back(self, stream: Stream, seqno: int) -> None:
        vbucket = self._vbuckets[stream.vbucket]
        before = stream.position
        self._release(vbucket)
        if before.seqno == 0:
            self._fail(RemoteProtocolError(f"vbucket {vbucket.number}: asked to go back although it begins at 0"))
            return
        if self._forget(vbucket.number):
            return
        older = before.under_older_uuid() if seqno == 0 else None
        if older is not None:
            vbucket.position = older
            return
        if self._on_rollback == "stop":
            vbucket.done = True
            self.stopped.add(vbucket.number)
            return
        vbucket.position = before.rolled_back(seqno)
        log.warning("vbucket %d: rolled back from seqno %d to %d", vbucket.number, before.seqno, vbucket.position.seqno)
        self._go_back(vbucket, before.seqno)

    def _cut_off(self, vbucket: Vbucket) -> None:
        """The connection of its stream is lost. Without positions, what came of it comes again, or is not whole."""
        if self._manner.resumes or vbucket.stream is None or vbucket.stream.state == REQUESTED:
            return
        if not self._manner.replays:
            self._fail(
                TransportError(
                    f"vbucket {vbucket.number}: the connection is lost, and nothing says where to go on without a gap; "
                    "stream again, from the beginning"
                )
            )
        else:
            log.warning("vbucket %d: begins again", vbucket.number)
            self._go_back(vbucket, 0)

    def _purged(self, number: int, start: int, seqno: int) -> None:
        log.warning(
            "vbucket %d: the cluster has forgotten deletions up to seqno %d, and the stream began at %d: "
            "some may never come",
            number,
            seqno,
            start,
        )
        self._items.append(Item(self._rollback_row(number, seqno, start, PURGED), {}))

    def _forget(self, number: int) -> bool:
        """Nobody has seen what still waits for disks: all from the first batch of a vbucket on comes again.

        Says whether there was any.
        """
        first = next((place for place, item in enumerate(self._items) if item.needs and number in item.marks), None)
        if first is None:
            return False
        dropped = {other for _ in range(len(self._items) - first) for other in self._items.pop().marks}
        links = {link for other in dropped if (link := self._vbuckets[other].link) is not None}
        for link in links:
            link.close()
        self._links = {node: link for node, link in self._links.items() if link not in links}
        for vbucket in self._vbuckets.values():
            if vbucket.number in dropped or vbucket.link in links:
                vbucket.stream = vbucket.link = None
                vbucket.position, vbucket.done = self._kept(vbucket.number), False
        return True

    def _kept(self, number: int) -> StreamPosition:
        """Where a vbucket stands behind all that waits."""
        marks = next((item.marks for item in reversed(self._items) if number in item.marks), self.marks)
        return marks[number].position

    def _refused(self, link: Link, event: Refused) -> None:
        vbucket = self._vbuckets[event.stream.vbucket]
        self._release(vbucket)
        if event.status == Status.NOT_MY_VBUCKET:
            if isinstance(event.body, dict):
                self._cluster.learn(event.body, link.name)
            self._want_map()
        elif event.status == Status.ERANGE:
            # Whatever is stored leads nowhere: only the beginning is safe.
            self._rolled_back(event.stream, 0)
            return
        elif event.status not in _TEMPORARY:
            name = Status(event.status).name if event.status in list(Status) else "unknown"
            if event.status == Status.EINVAL and StreamFlag.IGNORE_PURGED_TOMBSTONES in self._flags:
                name += "; ignore_purged takes servers of 7.2 or newer"
            self._fail(ServerError(f"vbucket {vbucket.number}: the stream was refused: {name}", event.status))
            return
        vbucket.trouble = f"refused, {Status(event.status).name}"
        log.debug("vbucket %d: %s at %s; asking again", vbucket.number, vbucket.trouble, link.name)
        self._retry(vbucket)

    def _release(self, vbucket: Vbucket) -> None:
        """The vbucket has no stream any more; its position is what came of it."""
        stream, vbucket.stream, vbucket.link = vbucket.stream, None, None
        if stream is None:
            return
        vbucket.position = stream.position
        if stream.progress.disorder is not None:
            self._broke_in_disorder(vbucket, stream.last)

    def _broke_in_disorder(self, vbucket: Vbucket, last: int) -> None:
        """Rows came that no position speaks of: after a failover no node would say that they are lost."""
        seqno = vbucket.position.seqno
        log.warning(
            "vbucket %d: the stream broke in a snapshot out of order: its rows come again from seqno %d",
            vbucket.number,
            seqno,
        )
        if last > seqno:
            self._go_back(vbucket, last)

    def _go_back(self, vbucket: Vbucket, before: int) -> None:
        """All above its position is undone, up to where it was before."""
        seqno = vbucket.position.seqno
        if self._on_rollback == "fail":
            self._fail(RollbackError(vbucket.number, before, seqno))
            return
        self.counters.rollbacks += 1
        mark = Mark(Progress(vbucket.position), 0)
        self._items.append(Item(self._rollback_row(vbucket.number, before, seqno, EVENT), {vbucket.number: mark}))

    def _retry(self, vbucket: Vbucket) -> None:
        vbucket.pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, vbucket.pause * 2))
        vbucket.retry_at = time.monotonic() + vbucket.pause * random.uniform(0.5, 1.0)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._changed.notify_all()

    def _told_of_map(self, link: Link, event: MapChanged) -> None:
        if event.config is not None:
            self._cluster.learn(event.config, link.name)
        else:
            self._want_map()

    def _want_map(self) -> None:
        self._map_within(_MAP_PAUSE)

    def _map_within(self, seconds: float) -> None:
        due = time.monotonic() + seconds
        self._map_due = due if self._map_due is None else min(due, self._map_due)

    # The supervisor.

    def _supervise(self) -> None:
        try:
            while True:
                with self._lock:
                    # Nobody would close what is opened from then on.
                    if self._closed:
                        return
                    self._work.wait(self._assign())
                self._refresh_map()
        except Exception as error:
            with self._lock:
                self._fail(error)

    def _refresh_map(self) -> None:
        if self._map_due is None or time.monotonic() < self._map_due:
            return
        self._map_due = None
        try:
            self._cluster.refresh()
        except TransportError as error:
            log.warning("no map: %s", error)
            self._map_due = time.monotonic() + _LONGEST_PAUSE / 4

    def _assign(self) -> float:
        """Ask for every stream that is missing and can be had; how long until that is to be tried again."""
        now = time.monotonic()
        wakes = [now + _LONGEST_PAUSE]
        cluster_map = self._cluster.map
        for node, link in self._links.items():
            if node not in cluster_map.nodes and link.ready:
                link.ready = False
                link.do(_abandon)
        self._close_idle()
        opening: dict[Link, list[Vbucket]] = {}
        for vbucket in self._vbuckets.values():
            if vbucket.done:
                continue
            owner = cluster_map.owner(vbucket.number)
            if vbucket.stream is not None:
                self._leave_replica(vbucket, owner)
                continue
            if owner is None:
                self._want_map()
                continue
            if vbucket.retry_at > now:
                wakes.append(vbucket.retry_at)
                continue
            at = self._link_of(owner, now, wakes)
            if at is not None and at.ready:
                opening.setdefault(at, []).append(vbucket)
        for at, vbuckets in opening.items():
            self._open(vbuckets, at)
        if self._polls:
            self._map_within(self._cluster.poll_interval)
        if self._map_due is not None:
            wakes.append(self._map_due)
        return max(0.0, min(wakes) - now)

    def _close_idle(self) -> None:
        """What takes no more requests and has no stream left is of no use."""
        busy = {vbucket.link for vbucket in self._vbuckets.values()} if self._full else set()
        for link in [link for link in self._full if link not in busy]:
            del self._full[link]
            link.close()

    def _link_of(self, node: Node, now: float, wakes: list[float]) -> Link | None:
        if node in self._links:
            return self._links[node]
        again, pause = self._link_pauses.get(node, (0.0, _FIRST_PAUSE))
        if again > now:
            wakes.append(again)
            return None
        self._link_pauses[node] = now + pause * random.uniform(0.75, 1.25), min(_LONGEST_PAUSE, 2 * pause)
        link = self._links[node] = self._cluster.open_link(node, self)
        link.start()
        return None

    def _open(self, vbuckets: list[Vbucket], link: Link) -> None:
        """All at once, as some dialects have it."""
        for vbucket in vbuckets:
            # An end that lies before the start is asked for all the same: only so a loss of changes is noticed.
            end = max(vbucket.end, vbucket.position.seqno)
            vbucket.link, vbucket.leaving = link, False
            vbucket.stream = Stream(0, Progress(vbucket.position), end)

        def command(session: Session) -> None:
            with self._lock:
                session.wants_tails = self._wants_tails
                for vbucket in vbuckets:
                    if vbucket.link is link and (asked := vbucket.stream) is not None:
                        vbucket.stream = session.open(
                            asked.progress, end=asked.end, chosen=self._chosen, flags=self._flags
                        )

        if self._manner.one_request:
            node = next(node for node, other in self._links.items() if other is link)
            self._full[self._links.pop(node)] = node
        link.do(command)

    def _leave_replica(self, vbucket: Vbucket, owner: Node | None) -> None:
        """Servers before 5.0 stream replicas to who asks them, and never say that these are no active copies."""
        link = vbucket.link
        if owner is None or link is None or vbucket.leaving:
            return
        if self._links.get(owner) is link or self._full.get(link) == owner:
            return

        def command(session: Session) -> None:
            stream = vbucket.stream
            if stream is not None and session.streams.get(stream.opaque) is stream:
                self._manner.leave(session, stream)

        vbucket.leaving = True
        link.do(command)


def _abandon(session: Session) -> None:
    raise TransportError("the node left the cluster")
