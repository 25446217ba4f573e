"""Assignment of vbuckets to nodes: request each missing stream from the owner in the cluster map."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection

from dcp.client.agent import Agent, MapRefresher
from dcp.client.follow.backoff import LONGEST_DELAY
from dcp.client.follow.disk_wait import DiskWait
from dcp.client.follow.node_link import NodeLink
from dcp.client.follow.node_pool import NodePool
from dcp.client.follow.settings import StreamSettings
from dcp.client.follow.vbucket import FollowedVbucket
from dcp.cluster_map import ClusterMap, Node
from dcp.position import Progress
from dcp.session.session import Session

log = logging.getLogger("dcp.client")


class Assigner:
    """Opens and moves the streams of vbuckets. Guarded by the stream's lock.

    Requests run in the links' threads, which take the lock for it.
    """

    def __init__(
        self,
        lock: threading.RLock,
        agent: Agent,
        vbuckets: Collection[FollowedVbucket],
        pool: NodePool,
        maps: MapRefresher,
        settings: StreamSettings,
        disk: DiskWait | None,
    ) -> None:
        self._lock, self._agent, self._vbuckets = lock, agent, vbuckets
        self._pool, self._maps, self._settings, self._disk = pool, maps, settings, disk
        # Vbucket and seqno of snapshots whose end a node skipped, and whether a skipped end still is an error.
        self._skipped_ends: set[tuple[int, int]] = set()
        self._requires_ends = True
        # Map by which open streams were last compared with the owners of their vbuckets.
        self._compared: ClusterMap | None = None

    def assign(self) -> float:
        """Request every missing stream that can be had. Return the seconds until the next call is due."""
        now = time.monotonic()
        # Every event of a link wakes the supervisor as well; this is the longest it sleeps without one.
        wake_times = [now + LONGEST_DELAY]
        cluster_map = self._agent.map
        self._pool.abandon_all_but(cluster_map.nodes)
        self._pool.close_idle({vbucket.link for vbucket in self._vbuckets})
        opening: defaultdict[NodeLink, list[FollowedVbucket]] = defaultdict(list)
        is_new_map, self._compared = cluster_map is not self._compared, cluster_map
        for vbucket in self._vbuckets:
            if vbucket.done:
                continue
            if vbucket.link is not None:
                if is_new_map:
                    self._leave_replica(vbucket, cluster_map.owner(vbucket.number))
                continue
            if (link := self._link_for(vbucket, cluster_map.owner(vbucket.number), now, wake_times)) is not None:
                opening[link].append(vbucket)
        for link, vbuckets in opening.items():
            self._open(vbuckets, link)
        self._maps.poll()
        if self._disk is not None and self._disk.due is not None:
            wake_times.append(self._disk.due)
        if self._maps.due is not None:
            wake_times.append(self._maps.due)
        return max(0.0, min(wake_times) - now)

    def _link_for(
        self, vbucket: FollowedVbucket, owner: Node | None, now: float, wake_times: list[float]
    ) -> NodeLink | None:
        """Return the link on which to request a vbucket's stream now, if it can be had."""
        if vbucket.asked and vbucket.asked != str(owner):
            # The vbucket moved: what the former owner did not answer is no problem any more.
            vbucket.asked = ""
        if owner is None:
            self._maps.request()
            return None
        if vbucket.retry_at > now:
            wake_times.append(vbucket.retry_at)
            return None
        if self._disk is not None and not self._disk.covers(vbucket.number, owner):
            return None
        return self._pool.link_to(owner, now, wake_times)

    def _open(self, vbuckets: list[FollowedVbucket], link: NodeLink) -> None:
        """Request the streams of vbuckets on a link. All at once: a TAP connection has one request for all."""
        now = time.monotonic()
        for vbucket in vbuckets:
            vbucket.requested(link, now)
            if self._disk is not None:
                self._disk.forget(vbucket.number)

        def request(session: Session) -> None:
            with self._lock:
                session.require_snapshot_end = self._requires_ends
                for vbucket in vbuckets:
                    # It may have been released since, and even been assigned to this link again.
                    if vbucket.link is not link or vbucket.stream is not None:
                        continue
                    # A range that ends at or below its start is requested, too: the answer reveals lost changes.
                    end = max(vbucket.end, vbucket.position.seqno)
                    vbucket.stream = session.open(
                        Progress(vbucket.position),
                        end=end,
                        stream_filter=self._settings.filter,
                        flags=self._settings.flags,
                    )

        if self._settings.rules.one_request:
            self._pool.mark_full(link)
        link.run_in_thread(request)

    def _leave_replica(self, vbucket: FollowedVbucket, owner: Node | None) -> None:
        """End a stream that is not the owner's.

        Servers before 5.0 know no ACTIVE_VB_ONLY: they keep streaming a vbucket that has become a replica.
        """
        link = vbucket.link
        if owner is None or link is None or vbucket.leaving or self._pool.serves(link, owner):
            return

        def leave(session: Session) -> None:
            stream = vbucket.stream
            if stream is not None and session.streams.get(stream.opaque) is stream:
                self._settings.rules.leave(session, stream)

        # Once only: the stream's end arrives later, and releases the vbucket.
        vbucket.leaving = True
        link.run_in_thread(leave)

    def end_skipped(self, vbucket: int, seqno: int) -> None:
        """Note that a node skipped the end of a snapshot.

        The stream is resumed in that snapshot, once. A node that skips the same end again is from before 7.0, where
        the end of a snapshot that a filter removed cannot be announced.
        """
        if (vbucket, seqno) in self._skipped_ends:
            log.warning(
                "vbucket %d: node skipped the end of the snapshot after seqno %d twice; treating it as complete, from "
                "now on for all vbuckets. If the nodes are 7.0 or newer, changes are missing",
                vbucket,
                seqno,
            )
            self._requires_ends = False
        self._skipped_ends.add((vbucket, seqno))
