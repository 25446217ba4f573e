"""Persistence for `persisted_only`: what every copy of a vbucket has on disk, and so no failover can lose.

OBSERVE_SEQNO is asked of the owner and of every replica in the map. A row counts as persisted when the end of its
snapshot is: a failover that loses the end of a snapshot rolls back to its start, below rows that were kept.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from dcp._codec import LazyPosition
from dcp.client.commands import CommandConnection
from dcp.client.queries import persisted_seqno
from dcp.cluster_map import ClusterMap, Node
from dcp.errors import RemoteProtocolError, ServerError, TransportError
from dcp.wire.frame import Frame

log = logging.getLogger("dcp.client")

# Seconds for which wrong answers of a node are not logged again.
_QUIET = 60.0


class VbucketHistory(NamedTuple):
    """A vbucket, and the uuid that its history had when rows of it arrived."""

    vbucket: int
    vbuuid: int


# Seqno that has to be persisted of each history.
Needs = Mapping[VbucketHistory, int]
# Persisted seqno of each copy by name of its node; None if the node does not answer, or has another history.
Copies = dict[str, int | None]


class WaitingBatch(Protocol):
    """A batch that waits to be persisted."""

    @property
    def needs(self) -> Needs: ...


class PersistenceListener(Protocol):
    """The queue of waiting batches. Called on the persistence thread; it takes the stream's lock itself."""

    def waiting(self) -> Sequence[WaitingBatch]:
        """Return the batches in the order of delivery."""

    def on_persisted(self) -> None:
        """Check again which batches are persisted."""

    def on_bug(self, bug: Exception) -> None:
        """End the stream with an error."""


# Called with a vbucket whose waiting rows were lost.
LostListener = Callable[[int], None]


class Nodes(Protocol):
    """The part of the agent that is needed here."""

    @property
    def map(self) -> ClusterMap: ...

    def open_command_connection(self, node: Node) -> CommandConnection: ...


class Persistence:
    """Polls persisted seqnos in a thread of its own as long as batches wait.

    within: seconds after which a batch that still waits is an error that names the vbucket and its copies.
    interval: seconds between polls. retry_delay: seconds for which a node that failed is not asked again.
    """

    def __init__(self, nodes: Nodes, within: float, *, interval: float = 0.1, retry_delay: float = 1.0) -> None:
        self._nodes, self._within = nodes, within
        self._interval, self._retry_delay = interval, retry_delay
        self._copies: dict[VbucketHistory, Copies] = {}
        # Last seqno of histories that have ended, as their owners report.
        self._ends: dict[VbucketHistory, int] = {}
        self._connections: dict[Node, CommandConnection] = {}
        self._retry_at: dict[Node, float] = {}
        # Monotonic time from which wrong answers of a node are logged again.
        self._quiet_until: dict[Node, float] = {}
        # The batch that waits at the head of the queue, and since when.
        self._first: WaitingBatch | None = None
        self._first_since = 0.0
        self._stop = threading.Event()

    def start(self, listener: PersistenceListener, on_lost: LostListener) -> threading.Thread:
        """Start the thread and return it."""
        thread = threading.Thread(target=self._run, args=(listener, on_lost), name="dcp persistence", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._stop.set()

    def covers(self, needs: Needs) -> bool:
        """Return True if every copy has persisted all of `needs`."""
        return not any(self._lacks(history, seqno) for history, seqno in needs.items())

    def _lacks(self, history: VbucketHistory, seqno: int) -> bool:
        copies = self._copies.get(history)
        return seqno > 0 and (not copies or any((persisted or 0) < seqno for persisted in copies.values()))

    # The thread.

    def _run(self, listener: PersistenceListener, on_lost: LostListener) -> None:
        try:
            while not self._stop.wait(self._interval):
                waiting = listener.waiting()
                missing = {each for batch in waiting for each, seqno in batch.needs.items() if self._lacks(each, seqno)}
                if missing:
                    needed = {each for batch in waiting for each in batch.needs}
                    found = self._poll(missing)
                    # Replaced, not changed: `covers` reads it on other threads without a lock.
                    self._copies = {each: copies for each, copies in (self._copies | found).items() if each in needed}
                    self._ends = {each: end for each, end in self._ends.items() if each in needed}
                    listener.on_persisted()
                for vbucket in self._lost(waiting):
                    on_lost(vbucket)
                self._check_limit(waiting)
        except Exception as error:
            listener.on_bug(error)
        finally:
            for connection in self._connections.values():
                connection.close()

    def _lost(self, waiting: Iterable[WaitingBatch]) -> set[int]:
        """Return vbuckets whose waiting rows are of a history that ended below them.

        No copy will ever persist these. Their node may not be able to say so: it cannot end the stream before the rows
        are acknowledged, if they fill the window.
        """
        return {
            history.vbucket
            for batch in waiting
            for history, seqno in batch.needs.items()
            if seqno > self._ends.get(history, seqno)
        }

    def _check_limit(self, waiting: Sequence[WaitingBatch]) -> None:
        """Raise TransportError if the first batch has waited for too long."""
        # Batches are delivered in order, so the first one that waits holds up all others.
        first = next((batch for batch in waiting if not self.covers(batch.needs)), None)
        if first is not self._first:
            self._first, self._first_since = first, time.monotonic()
        if first is None or time.monotonic() - self._first_since < self._within:
            return
        (vbucket, vbuuid), seqno = next(need for need in first.needs.items() if self._lacks(*need))
        copies = self._copies.get(VbucketHistory(vbucket, vbuuid)) or {}
        lagging = [_described(node, persisted) for node, persisted in copies.items() if (persisted or 0) < seqno]
        raise TransportError(
            f"vbucket {vbucket}: seqno {seqno} is not persisted by every copy after {self._within:g} s: "
            f"{', '.join(lagging or ['no node has it'])}. Check those nodes, or fail them over, and resume from the "
            "checkpoint; without persisted_only a failover may take delivered rows back"
        )

    # Questions to nodes.

    def _poll(self, wanted: Iterable[VbucketHistory]) -> dict[VbucketHistory, Copies]:
        cluster_map = self._nodes.map
        by_node: defaultdict[Node, list[VbucketHistory]] = defaultdict(list)
        for history in sorted(wanted):
            owner = cluster_map.owner(history.vbucket)
            # Without an owner nothing can be persisted by every copy: the batch waits for a new map.
            for node in () if owner is None else (owner, *cluster_map.replicas(history.vbucket)):
                by_node[node].append(history)
        found: dict[VbucketHistory, Copies] = {history: {} for history in wanted}
        for node, histories in by_node.items():
            for history, seqno in zip(histories, self._observe(node, histories), strict=True):
                found[history][str(node)] = seqno
        return found

    def _observe(self, node: Node, histories: list[VbucketHistory]) -> list[int | None]:
        """Return the persisted seqno of each history at a node; None for all while the node does not answer."""
        if self._retry_at.get(node, 0.0) > time.monotonic():
            return [None] * len(histories)
        try:
            if node not in self._connections:
                self._connections[node] = self._nodes.open_command_connection(node)
            questions = [{"vbucket": each.vbucket, "fields": {"vbuuid": each.vbuuid}} for each in histories]
            answers = self._connections[node].ask_all("observe_seqno", questions)
            return [self._read(node, each, frame) for each, frame in zip(histories, answers, strict=True)]
        except RemoteProtocolError as error:
            self._warn(node, f"{error}; it counts as nothing persisted")
        except (TransportError, ServerError) as error:
            # The refusal of a handshake may pass; that of the question says that the server does not know it.
            if isinstance(error, ServerError) and not error.step:
                raise
            log.info("%s", error)
        with contextlib.suppress(KeyError):
            self._connections.pop(node).close()
        self._retry_at[node] = time.monotonic() + self._retry_delay
        return [None] * len(histories)

    def _read(self, node: Node, history: VbucketHistory, frame: Frame) -> int | None:
        """Return the persisted seqno in an answer; None if the node has another history, or answered for another."""
        if not frame.status:
            fields = frame.fields
            found = VbucketHistory(int(fields["vbucket_id"]), int(fields.get("old_vbuuid", fields["vbuuid"])))
            if found != history:
                self._warn(
                    node,
                    f"OBSERVE_SEQNO: expected an answer for vbucket {history.vbucket} of history {history.vbuuid:#x}, "
                    f"found one for vbucket {found.vbucket} of {found.vbuuid:#x}; it counts as nothing persisted",
                )
                return None
            if "old_seqno" in fields and self._nodes.map.owner(history.vbucket) == node:
                self._ends[history] = int(fields["old_seqno"])
        return persisted_seqno(frame)

    def _warn(self, node: Node, problem: str) -> None:
        """Log what is wrong with a node's answers, once in a minute."""
        now = time.monotonic()
        if now >= self._quiet_until.get(node, 0.0):
            self._quiet_until[node] = now + _QUIET
            log.warning("%s: %s", node, problem)


def needed_seqnos(positions: Iterable[LazyPosition]) -> dict[VbucketHistory, int]:
    """Return the seqnos that have to be persisted before rows up to these positions are safe."""
    needs = {}
    for reached in positions:
        position = reached.position
        # A snapshot of which no row has arrived yet has nothing to lose.
        end = position.seqno if position.seqno == position.snapshot_start else position.snapshot_end
        needs[VbucketHistory(position.vbucket, position.vbuuid)] = max(end, reached.last_seqno)
    return needs


def _described(node: str, persisted: int | None) -> str:
    return f"{node} does not report this history" if persisted is None else f"{node} has {persisted}"
