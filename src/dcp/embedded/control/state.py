"""State of a running cluster as JSON documents, and the stream of events of those who watch it.

All sizes are bounded: what is left out is counted.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from dcp.embedded.bucket import NOBODY, BucketStore, ServerNode
from dcp.embedded.control.event_log import EventLog
from dcp.embedded.control.operations import to_json
from dcp.embedded.dcp_connection import DcpConnection
from dcp.embedded.faults import FaultHandle
from dcp.embedded.legacy.clients import clients_of
from dcp.embedded.legacy.upr import ServerUprStream
from dcp.embedded.management.http import stream_chunk
from dcp.embedded.negotiated import Negotiated
from dcp.embedded.stream import ServerStream

if TYPE_CHECKING:
    from dcp.embedded.link import ServerLink
    from dcp.embedded.server import ClusterServer

# Shown at most: connections, streams of each, collections, and vbuckets in one event.
_MOST_CONNECTIONS, _MOST_STREAMS, _MOST_COLLECTIONS, _MOST_VBUCKETS = 32, 32, 200, 2048
# Names come from clients.
_LONGEST_NAME = 256
# A stream without an end has the largest number as its end seqno.
_NO_END = 1 << 63
# Seconds between two events, and until a stream without events says that it is alive.
_INTERVAL, _HEARTBEAT = 0.5, 15.0
# Share of the server's time that one watcher may take: events become rarer where they take long, up to this many
# seconds. Most of a long time is a pause of the garbage collector, which says nothing of the next event.
_SHARE, _LONGEST_INTERVAL = 0.01, 3.0
_SWITCHES = [one.name for one in fields(Negotiated) if one.type == "bool"]


class ClusterView:
    """Documents about a running cluster. The caller holds the cluster's lock."""

    def __init__(
        self,
        bucket: BucketStore,
        server: ClusterServer,
        log: EventLog,
        faults: Callable[[], list[FaultHandle]],
        addresses: Callable[[], dict[str, Any]],
    ) -> None:
        self.bucket = bucket
        self.log = log
        self._server = server
        self._faults = faults
        self._addresses = addresses

    def cluster(self) -> dict[str, Any]:
        """Return what does not change often: names, sizes and addresses."""
        bucket = self.bucket
        return {
            "bucket": bucket.name,
            "release": ".".join(map(str, bucket.release.number)),
            "vbuckets": len(bucket.owners),
            "replicas": bucket.replicas,
            "replica_lag": bucket.replica_lag,
            **self._addresses(),
        }

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes, with their copies of vbuckets and their traffic."""
        active = Counter(owners[0] for owners in self.bucket.owners)
        replicas = Counter(chain.from_iterable(owners[1:] for owners in self.bucket.owners))
        return [
            {
                "number": node.number,
                "state": self._state(node, active[node.number] + replicas[node.number]),
                "port": node.port,
                "management_port": node.management_port,
                "active": active[node.number],
                "replicas": replicas[node.number],
                "persists": node.persists,
                **self._server.traffic(node)._asdict(),
            }
            for node in self.bucket.nodes
        ]

    def _state(self, node: ServerNode, copies: int) -> str:
        """Return "down" for a node that crashed, and "out" for one that has left the cluster."""
        return "up" if node.alive else "down" if copies else "out"

    def high_seqno(self, number: int) -> int:
        """Return the high seqno of the active copy of a vbucket; 0 if there is none."""
        owner = self.bucket.owners[number][0]
        return 0 if owner == NOBODY else self.bucket.nodes[owner].vbuckets[number].high_seqno

    def vbuckets(self) -> list[dict[str, Any]]:
        """Return owner, replicas and high seqno of all vbuckets."""
        return [
            {"owner": owner, "replicas": replicas, "high_seqno": self.high_seqno(number)}
            for number, (owner, *replicas) in enumerate(self.bucket.owners)
        ]

    def connections(self) -> dict[str, Any]:
        """Return the connections of consumers, with those of their streams that are furthest behind."""
        found = [link for link in self._server.links if _is_consumer(link)]
        return {"count": len(found), "shown": [_connection(link) for link in found[:_MOST_CONNECTIONS]]}

    def collections(self) -> dict[str, Any]:
        """Return the collections by path."""
        manifest = self.bucket.manifest
        every = [(scope, collection) for scope in manifest.scopes for collection in scope.collections]
        shown = [
            {"path": f"{scope.name}.{one.name}", "id": one.id, "max_ttl": one.max_ttl}
            for scope, one in every[:_MOST_COLLECTIONS]
        ]
        empty = [scope.name for scope in manifest.scopes if not scope.collections][:_MOST_COLLECTIONS]
        return {"count": len(every), "uid": manifest.uid, "shown": shown, "empty_scopes": empty}

    def faults(self) -> list[dict[str, Any]]:
        """Return the active faults."""
        found: list[dict[str, Any]] = to_json(self._faults())
        return found

    def everything(self) -> dict[str, Any]:
        """Return all of it in one document."""
        return {
            "cluster": self.cluster(),
            "nodes": self.nodes(),
            "vbuckets": self.vbuckets(),
            "connections": self.connections(),
            "collections": self.collections(),
            "faults": self.faults(),
            "log": [event._asdict() for event in self.log.since(0)],
        }


# Connections of consumers.


def _is_consumer(link: ServerLink) -> bool:
    # TAP and the first drafts of UPR have streams without an open.
    return link.connection.state.opened or bool(link.connection.sources)


def _connection(link: ServerLink) -> dict[str, Any]:
    connection, out = link.connection, link.connection.out
    opened = next((timer for timer in connection.timers if isinstance(timer, DcpConnection)), None)
    streams = [source for source in connection.sources if isinstance(source, ServerStream | ServerUprStream)]
    behind = [(stream.vbucket.high_seqno - stream.cursor, stream) for stream in streams]
    behind.sort(key=lambda pair: -pair[0])
    name = _name_of_tap(link) if opened is None else opened.name
    switches = [] if opened is None else [one for one in _SWITCHES if getattr(opened.negotiated, one)]
    return {
        "number": link.number,
        "name": name[:_LONGEST_NAME],
        "dialect": connection.dialect,
        "node": connection.node.number,
        "user": "" if connection.state.user is None else connection.state.user.name,
        "encrypted": connection.encrypted,
        "agreed": switches,
        "window": out.window,
        "unacknowledged": out.outstanding,
        "items": out.items,
        "bytes": link.sent,
        "streams": len(connection.sources),
        "behind": sum(max(0, count) for count, _ in behind),
        "shown": [_stream(stream, count) for count, stream in behind[:_MOST_STREAMS]],
    }


def _stream(stream: ServerStream | ServerUprStream, behind: int) -> dict[str, Any]:
    end = stream.granted.end if isinstance(stream, ServerStream) else stream.end_seqno
    return {
        "vbucket": stream.vbucket.number,
        "stream_id": stream.granted.stream_id if isinstance(stream, ServerStream) else None,
        "seqno": stream.cursor,
        "end": None if end >= _NO_END else end,
        "behind": behind,
    }


def _name_of_tap(link: ServerLink) -> str:
    connected = clients_of(link.connection.node).connected
    names = (name for name, stream in connected.items() if stream in link.connection.sources)
    return next(names, b"").decode(errors="replace")


class EventStream:
    """Server-sent events: first the whole state, then what has changed since the event before.

    `closed` is called once the client is gone.
    """

    content_type = "text/event-stream"

    def __init__(self, state: ClusterView, closed: Callable[[EventStream], object]) -> None:
        self._state = state
        self._closed = closed
        # What was sent last: each document as JSON, and owners and high seqno of each vbucket.
        self._sent: dict[str, str] = {}
        self._owners: list[tuple[int, ...]] = [()] * len(state.bucket.owners)
        self._seqnos = [-1] * len(state.bucket.owners)
        # The vbucket at which the next search for changes begins, so that none is left out for ever.
        self._next_vbucket = 0
        self._last_event = 0
        # Whether the time has come to look for changes, and when that was and will be.
        self._ready = True
        self._looked_at: float | None = None
        self._due = 0.0
        self._alive_at = 0.0

    def due(self) -> float | None:
        return self._due

    def tick(self, now: float) -> None:
        # A client that does not read is not asked for, and must not make the server wake up in vain.
        self._due = now + _INTERVAL
        self._ready = True

    def take(self, now: float) -> bytes:
        if not self._ready:
            return b""
        # Processor time: other threads and programs may keep this one waiting, and cost nothing of it.
        began = time.thread_time()
        self._ready = False
        event = self._changes()
        if event:
            # Rates are differences of totals, over these seconds: nothing had changed before.
            seconds = 0.0 if self._looked_at is None else now - self._looked_at
            event |= {"time": round(self._state.bucket.clock(), 3), "seconds": round(seconds, 3)}
            data = f"data: {json.dumps(event, separators=(',', ':'))}\n\n"
        elif now >= self._alive_at + _HEARTBEAT:
            data = ": alive\n\n"
        else:
            data = ""
        self._looked_at = now
        rest = (time.thread_time() - began) / _SHARE
        self._due = now + min(max(_INTERVAL, rest), _LONGEST_INTERVAL)
        if not data:
            return b""
        self._alive_at = now
        return stream_chunk(data.encode())

    def close(self) -> None:
        self._closed(self)

    def _changes(self) -> dict[str, Any]:
        """Return what is not what was sent last."""
        state, found = self._state, self._changed_vbuckets()
        for name, document in (
            ("cluster", state.cluster),
            ("nodes", state.nodes),
            ("connections", state.connections),
            ("collections", state.collections),
            ("faults", state.faults),
        ):
            content = document()
            text = json.dumps(content)
            if self._sent.get(name) != text:
                self._sent[name] = text
                found[name] = content
        if events := state.log.since(self._last_event):
            self._last_event = events[-1].number
            found["log"] = [event._asdict() for event in events]
        return found

    def _changed_vbuckets(self) -> dict[str, Any]:
        """Return number and high seqno of changed vbuckets, in turns, and owners where these have changed."""
        state, owners = self._state, self._state.bucket.owners
        seqnos = [state.high_seqno(number) for number in range(len(owners))]
        changed = list(islice(self._different(seqnos), _MOST_VBUCKETS))
        if not changed:
            return {}
        self._next_vbucket = (changed[-1] + 1) % len(owners)
        moved = []
        for number in changed:
            self._seqnos[number] = seqnos[number]
            if self._owners[number] != (now_on := tuple(owners[number])):
                self._owners[number] = now_on
                moved.append([number, *now_on])
        flat = [value for number in changed for value in (number, seqnos[number])]
        return {"seqnos": flat, "total": sum(seqnos)} | ({"owners": moved} if moved else {})

    def _different(self, seqnos: list[int]) -> Iterator[int]:
        owners = self._state.bucket.owners
        for number in chain(range(self._next_vbucket, len(owners)), range(self._next_vbucket)):
            if seqnos[number] != self._seqnos[number] or tuple(owners[number]) != self._owners[number]:
                yield number
