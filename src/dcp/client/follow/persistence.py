"""What is on the disks of all copies. What is not can be lost by a failover, and is not handed out until it is.

OBSERVE_SEQNO is asked of the active copy and of every replica that the map has. What counts is the end of a
row's snapshot: a failover goes back to the start of a snapshot whose end it lost, below rows that were kept.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from dcp.client.commands import Caller
from dcp.cluster_map import ClusterMap, Node
from dcp.errors import ServerError, TransportError
from dcp.session.stream import LazyPosition
from dcp.wire.frame import Frame
from dcp.wire.memcached import Status

log = logging.getLogger("dcp.client")

# How often is asked while something waits, and how long a node that does not answer is left in peace.
_INTERVAL, _PAUSE = 0.1, 1.0


class History(NamedTuple):
    """A vbucket, under the name that its history had when rows came of it."""

    vbucket: int
    vbuuid: int


# How far each history has to be on disk.
Needs = Mapping[History, int]
# How far each copy has it; None where a node does not say, or does not know that history.
Copies = dict[str, int | None]


class Waiting(Protocol):
    """What a consumer is to get next."""

    @property
    def needs(self) -> Needs: ...


class Owner(Protocol):
    """Who holds what waits."""

    def held(self) -> Sequence[Waiting]: ...

    def told(self) -> None: ...

    def broken(self, bug: Exception) -> None: ...


class Cluster(Protocol):
    """Who knows the nodes."""

    @property
    def map(self) -> ClusterMap: ...

    def call(self, node: Node) -> Caller: ...


class Persistence:
    """Asks in a thread of its own as long as something waits.

    patience: seconds after which something that waits still is an error, which names the vbucket and its copies.
    """

    def __init__(self, cluster: Cluster, patience: float) -> None:
        self._cluster, self._patience = cluster, patience
        self._copies: dict[History, Copies] = {}
        self._callers: dict[Node, Caller] = {}
        self._later: dict[Node, float] = {}
        self._first: Waiting | None = None
        self._since = 0.0
        self._stop = threading.Event()

    def start(self, owner: Owner) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(owner,), name="dcp persistence", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Let the thread end."""
        self._stop.set()

    def covers(self, needs: Needs) -> bool:
        """Whether every copy has all of it on disk."""
        return not any(self._missing(history, seqno) for history, seqno in needs.items())

    def _missing(self, history: History, seqno: int) -> bool:
        copies = self._copies.get(history)
        return seqno > 0 and (not copies or any((has or 0) < seqno for has in copies.values()))

    # The thread.

    def _run(self, owner: Owner) -> None:
        try:
            while not self._stop.wait(_INTERVAL):
                held = owner.held()
                wanted = {
                    each for waiting in held for each, seqno in waiting.needs.items() if self._missing(each, seqno)
                }
                if wanted:
                    known = {each for waiting in held for each in waiting.needs}
                    found = self._ask(wanted)
                    self._copies = {each: has for each, has in (self._copies | found).items() if each in known}
                    owner.told()
                self._judge(held)
        except Exception as error:
            owner.broken(error)
        finally:
            for caller in self._callers.values():
                caller.close()

    def _judge(self, held: Sequence[Waiting]) -> None:
        """Raise if what is to come next has waited for too long."""
        first = next((waiting for waiting in held if not self.covers(waiting.needs)), None)
        if first is not self._first:
            self._first, self._since = first, time.monotonic()
        if first is None or time.monotonic() - self._since < self._patience:
            return
        (vbucket, vbuuid), seqno = next(need for need in first.needs.items() if self._missing(*need))
        copies = self._copies.get(History(vbucket, vbuuid)) or {}
        late = [_said(node, has) for node, has in copies.items() if (has or 0) < seqno] or ["no node has it"]
        raise TransportError(
            f"vbucket {vbucket}: seqno {seqno} is not on every disk after {self._patience:g} s: {', '.join(late)}. "
            "Check those nodes, or fail them over, and go on from the checkpoint; without persisted_only rows come "
            "that a failover may take back"
        )

    # What nodes say.

    def _ask(self, wanted: Iterable[History]) -> dict[History, Copies]:
        cluster_map = self._cluster.map
        asked: defaultdict[Node, list[History]] = defaultdict(list)
        for history in sorted(wanted):
            owner = cluster_map.owner(history.vbucket)
            for node in () if owner is None else (owner, *cluster_map.replicas(history.vbucket)):
                asked[node].append(history)
        found: dict[History, Copies] = {history: {} for history in wanted}
        for node, histories in asked.items():
            for history, seqno in zip(histories, self._observe(node, histories), strict=True):
                found[history][str(node)] = seqno
        return found

    def _observe(self, node: Node, histories: list[History]) -> list[int | None]:
        if self._later.get(node, 0.0) > time.monotonic():
            return [None] * len(histories)
        try:
            if node not in self._callers:
                self._callers[node] = self._cluster.call(node)
            questions = [{"vbucket": each.vbucket, "fields": {"vbuuid": each.vbuuid}} for each in histories]
            return [_persisted(frame) for frame in self._callers[node].ask_all("observe_seqno", questions)]
        except TransportError as error:
            log.info("%s", error)
            with contextlib.suppress(KeyError):
                self._callers.pop(node).close()
            self._later[node] = time.monotonic() + _PAUSE
            return [None] * len(histories)


def needs_of(marks: Iterable[LazyPosition]) -> dict[History, int]:
    """What has to be on disk before rows up to these marks are safe."""
    needs = {}
    for mark in marks:
        position = mark.position
        # Of a snapshot of which nothing came nothing can be lost.
        end = position.seqno if position.seqno == position.snapshot_start else position.snapshot_end
        needs[History(position.vbucket, position.vbuuid)] = max(end, mark.last_seqno)
    return needs


def _persisted(frame: Frame) -> int | None:
    """How far a copy has a history on disk. What it says of an older one ends where the next began."""
    if frame.status == Status.UNKNOWN_COMMAND:
        raise ServerError("persisted_only: the server does not tell what is on disk; it takes 4.0", frame.status)
    if frame.status:
        return None
    fields = frame.fields
    return min(int(fields["persisted_seqno"]), int(fields.get("old_seqno", fields["persisted_seqno"])))


def _said(node: str, has: int | None) -> str:
    return f"{node} does not say that it has this history" if has is None else f"{node} has {has}"
