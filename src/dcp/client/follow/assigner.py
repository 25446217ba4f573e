"""Which node is to be asked for which vbucket: by the map, and as soon as a vbucket has no stream."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection

from dcp.client.follow.node_link import Link
from dcp.client.follow.node_pool import Connections
from dcp.client.follow.settings import Terms
from dcp.client.follow.vbucket import Vbucket
from dcp.client.maps import Maps
from dcp.client.opener import Opener
from dcp.client.pauses import LONGEST
from dcp.cluster_map import Node
from dcp.position import Progress
from dcp.session.session import Session
from dcp.session.stream import ConsumerStream

log = logging.getLogger("dcp.client")


class Duty:
    """Of one stream. Links do what is asked of them in their own threads, and take the lock for it."""

    def __init__(
        self,
        lock: threading.RLock,
        opener: Opener,
        vbuckets: Collection[Vbucket],
        connections: Connections,
        maps: Maps,
        terms: Terms,
    ) -> None:
        self._lock, self._opener, self._vbuckets = lock, opener, vbuckets
        self._connections, self._maps, self._terms = connections, maps, terms
        # Ends of snapshots that nodes left out, and whether that is still a reason to ask again.
        self._lacking: set[tuple[int, int]] = set()
        self._wants_tails = True

    def assign(self) -> float:
        """Ask for every stream that is missing and can be had; how long until that is to be tried again."""
        now = time.monotonic()
        wakes = [now + LONGEST]
        cluster_map = self._opener.access.map
        self._connections.abandon(cluster_map.nodes)
        self._connections.close_idle({vbucket.link for vbucket in self._vbuckets})
        opening: defaultdict[Link, list[Vbucket]] = defaultdict(list)
        for vbucket in self._vbuckets:
            owner = cluster_map.owner(vbucket.number)
            if not vbucket.done and (link := self._link_for(vbucket, owner, now, wakes)) is not None:
                opening[link].append(vbucket)
        for link, vbuckets in opening.items():
            self._open(vbuckets, link)
        self._maps.poll()
        if self._maps.due is not None:
            wakes.append(self._maps.due)
        return max(0.0, min(wakes) - now)

    def _link_for(self, vbucket: Vbucket, owner: Node | None, now: float, wakes: list[float]) -> Link | None:
        """Where its stream is to be asked for now."""
        if vbucket.stream is not None:
            self._leave_replica(vbucket, owner)
            return None
        if owner is None:
            self._maps.want()
            return None
        if vbucket.retry_at > now:
            wakes.append(vbucket.retry_at)
            return None
        return self._connections.at(owner, now, wakes)

    def _open(self, vbuckets: list[Vbucket], link: Link) -> None:
        """All at once, as some dialects have it."""
        for vbucket in vbuckets:
            # An end that lies before the start is asked for all the same: only so a loss of changes is noticed.
            end = max(vbucket.end, vbucket.position.seqno)
            vbucket.link, vbucket.leaving = link, False
            vbucket.stream = ConsumerStream(0, Progress(vbucket.position), end)

        def command(session: Session) -> None:
            with self._lock:
                session.require_snapshot_end = self._wants_tails
                for vbucket in vbuckets:
                    if vbucket.link is link and (asked := vbucket.stream) is not None:
                        vbucket.stream = session.open(
                            asked.progress, end=asked.end, stream_filter=self._terms.chosen, flags=self._terms.flags
                        )

        if self._opener.manner.one_request:
            self._connections.fill(link)
        link.do(command)

    def _leave_replica(self, vbucket: Vbucket, owner: Node | None) -> None:
        """Servers before 5.0 stream replicas to who asks them, and never say that these are no active copies."""
        link = vbucket.link
        if owner is None or link is None or vbucket.leaving or self._connections.serves(link, owner):
            return

        def command(session: Session) -> None:
            stream = vbucket.stream
            if stream is not None and session.streams.get(stream.opaque) is stream:
                self._opener.manner.leave(session, stream)

        vbucket.leaving = True
        link.do(command)

    def lacked(self, vbucket: int, seqno: int) -> None:
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
