"""Monitoring of a stream: lag and rates, and vbuckets that stall although their node has more."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

from dcp.client.agent import Agent
from dcp.client.filters import StreamSelection
from dcp.client.queries import collections_manifest
from dcp.client.stats import Lag, Stuck
from dcp.cluster_map import Node, format_vbuckets
from dcp.errors import DcpError, ServerError
from dcp.wire.memcached import SEQNOS, Status, VbucketState

log = logging.getLogger("dcp.client.watch")

# Polls for which a vbucket may stand still before it is reported.
_POLLS = 3
# Collections whose lag is reported, those with the lowest ids: each costs every node another question at each poll.
_MOST_COLLECTIONS = 32
# Moments that a backlog remembers. Beyond that it drops every second one, so that old ones become sparser.
_MOST_MOMENTS = 64
# Key of the stream as a whole, among those of collections.
_WHOLE = None

# Reasons for which a vbucket may be stuck.
NO_OWNER, NO_CONNECTION, RETRYING, UNANSWERED, SILENT = "no_owner", "no_connection", "retrying", "unanswered", "silent"
NO_ANSWER = "no_answer"
REASONS = (NO_OWNER, NO_CONNECTION, RETRYING, UNANSWERED, SILENT, NO_ANSWER)
# The flow-control window is full, as the consumer takes no batches. The vbucket is not stuck.
CONSUMER = "consumer"
# Reasons under which a node has accepted the stream.
FLOWING = (SILENT, CONSUMER)
# Reasons under which no node can be asked for the high seqno, or none answers.
_UNREACHABLE = (NO_OWNER, NO_CONNECTION, NO_ANSWER)
# Seconds in which a node has to answer, where the interval is shorter.
_SHORTEST_WAIT = 1.0

HighSeqnos = dict[int, int]


class Observation(NamedTuple):
    """Progress of a followed vbucket, and the reason if nothing should arrive from now on."""

    vbucket: int
    received: int
    end: int
    reason: str
    detail: str


class StallDetector:
    """Finds vbuckets that have not moved for `limit` seconds although there is more of them. Time is an argument."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        # For each vbucket that is behind: its seqno, and the time since which it has been there.
        self._standing: dict[int, tuple[int, float]] = {}

    def check(
        self, now: float, observations: Iterable[Observation], high_seqnos: Mapping[int, int]
    ) -> dict[int, Stuck]:
        """Return the vbuckets that are stuck at this time."""
        standing, stuck = {}, {}
        for vbucket, received, end, reason, detail in observations:
            # Without an owner, a connection or an answer the high seqno is unknown: assume that there is more.
            behind = received < min(end, high_seqnos.get(vbucket, 0)) or reason in _UNREACHABLE
            if not behind or reason == CONSUMER:
                continue
            before, since = self._standing.get(vbucket, (received, now))
            standing[vbucket] = received, since if before == received else now
            seconds = now - standing[vbucket][1]
            if seconds >= self._limit:
                stuck[vbucket] = Stuck(reason, detail, seconds)
        self._standing = standing
        return stuck


class Backlog:
    """Remembers high seqnos at some moments, to tell for how long a consumer has been behind. The time is an argument.

    Thread-safe: the monitor adds moments, and users ask for the lag from threads of their own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._moments: deque[tuple[float, Mapping[int, int]]] = deque()
        self._high_seqnos: Mapping[int, int] = {}

    def add(self, now: float, high_seqnos: Mapping[int, int]) -> None:
        """Remember the high seqnos of this moment."""
        with self._lock:
            self._high_seqnos = high_seqnos
            self._moments.append((now, high_seqnos))
            if len(self._moments) > _MOST_MOMENTS:
                self._moments = deque(list(self._moments)[::2])

    def lag(self, now: float, consumed: Mapping[int, int]) -> Lag:
        """Return the lag of a consumer that has consumed these seqnos. Vbuckets that are not in it do not count."""
        with self._lock:
            # Moments that the consumer has reached never count again, since it only moves forward.
            while self._moments and not _missing(self._moments[0][1], consumed):
                self._moments.popleft()
            return Lag(_missing(self._high_seqnos, consumed), now - self._moments[0][0] if self._moments else 0.0)


def _missing(high_seqnos: Mapping[int, int], consumed: Mapping[int, int]) -> int:
    return sum(max(0, high - consumed[vbucket]) for vbucket, high in high_seqnos.items() if vbucket in consumed)


class MonitoredStream(Protocol):
    """The part of a follower that is needed here."""

    def observations(self) -> list[Observation]:
        """Return where each vbucket stands that has not reached its end."""

    def consumed(self) -> Mapping[int, int]:
        """Return the seqno up to which the consumer has each vbucket."""

    def volume(self) -> tuple[int, int]:
        """Return the numbers of changes and bytes received so far."""


class _NodeQuestion:
    """A question to one node, asked in a thread of its own: a node that does not answer must not delay the others.

    found: high seqnos by vbucket, of each collection and of the whole; None until they arrive, and if they do not.
    reached: False if the node did not answer, which is more than a refusal.
    """

    def __init__(self, ask: Callable[[], dict[str | None, HighSeqnos]], name: str) -> None:
        self.found: dict[str | None, HighSeqnos] | None = None
        self.reached = True
        self._ask, self._name = ask, name
        self._thread = threading.Thread(target=self._run, name=f"dcp monitor of {name}", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> bool:
        """True until the node has answered, or its time limit has passed."""
        return self._thread.is_alive()

    def wait(self, until: float) -> None:
        """Wait for the answer until a monotonic time."""
        self._thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        try:
            self.found = self._ask()
        except ServerError as error:
            log.debug("%s: no high seqnos: %s", self._name, error)
        except DcpError as error:
            self.reached = False
            log.debug("%s: no high seqnos: %s", self._name, error)


class Monitor:
    """Polls the nodes every `interval` seconds, in threads of its own.

    chosen: filter of the stream.
    stuck, rates: results of the last poll; the rates are changes and bytes a second.
    """

    def __init__(self, agent: Agent, stream: MonitoredStream, interval: float, chosen: StreamSelection) -> None:
        self._agent, self._stream, self._interval, self._chosen = agent, stream, interval, chosen
        self._stalls = StallDetector(_POLLS * interval)
        self._backlogs: dict[str | None, Backlog] = {}
        # Vbuckets whose high seqno was unknown at the last poll.
        self._unknown: frozenset[int] = frozenset()
        # Collections to ask for, by id; None until a node has sent them.
        self._wanted: dict[int, str] | None = None
        self._manifest: threading.Thread | None = None
        self._questions: dict[Node, _NodeQuestion] = {}
        self._previous = time.monotonic(), stream.volume()
        self.stuck: Mapping[int, Stuck] = {}
        self.rates = 0.0, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dcp monitor", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end, without waiting for it."""
        self._stop.set()

    def join(self, within: float = 0.5) -> None:
        """Join the stopping thread for at most `within` seconds."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(within)

    def lags(self) -> dict[str | None, Lag]:
        """Return the lag of each collection by path, and that of the whole stream under None.

        Empty while the high seqno of any followed vbucket is unknown: the sum of the others would be too low.
        """
        now, consumed = time.monotonic(), self._stream.consumed()
        if not self._unknown.isdisjoint(consumed):
            return {}
        return {path: backlog.lag(now, consumed) for path, backlog in self._backlogs.items()}

    # The thread.

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval):
                self._poll()
        except Exception:
            # The stream itself does not depend on the monitor.
            log.exception("monitoring of lag and stalled vbuckets has ended")

    def _poll(self) -> None:
        answered, silent = self._ask_nodes()
        high_seqnos: dict[str | None, HighSeqnos] = {_WHOLE: {}} | {path: {} for path in (self._wanted or {}).values()}
        for found in answered.values():
            for path, seqnos in found.items():
                known = high_seqnos.setdefault(path, {})
                # During a failover two nodes may report a vbucket.
                known.update({vbucket: max(seqno, known.get(vbucket, 0)) for vbucket, seqno in seqnos.items()})
        now, owner = time.monotonic(), self._agent.map.owner
        backlogs = {path: self._backlogs.get(path) or Backlog() for path in high_seqnos}
        for path, seqnos in high_seqnos.items():
            backlogs[path].add(now, seqnos)
        observed = [
            each._replace(reason=NO_ANSWER, detail=f"{node} does not answer, and sends nothing")
            if (node := owner(each.vbucket)) in silent and each.reason in (SILENT, UNANSWERED)
            else each
            for each in self._stream.observations()
        ]
        stuck = self._stalls.check(now, observed, high_seqnos.get(_WHOLE, {}))
        then, before = self._previous
        self._previous = now, self._stream.volume()
        # A stream that is being closed has lost its connections on purpose.
        if self._stop.is_set():
            return
        self._log_changes(stuck)
        self._backlogs = backlogs
        self._unknown = frozenset(each for each in range(self._agent.map.num_vbuckets) if owner(each) not in answered)
        changes, size = (after - earlier for after, earlier in zip(self._previous[1], before, strict=True))
        self.rates = changes / (now - then), size / (now - then)

    def _log_changes(self, stuck: dict[int, Stuck]) -> None:
        """Log vbuckets that stalled or recovered since the last poll, in one line for each reason."""
        stalled = defaultdict(list)
        for vbucket, found in stuck.items():
            if vbucket not in self.stuck or self.stuck[vbucket].reason != found.reason:
                stalled[found.detail].append(vbucket)
        for detail, vbuckets in stalled.items():
            seconds = stuck[vbuckets[0]].seconds
            log.warning("no progress on vbuckets %s for %.3g s: %s", format_vbuckets(vbuckets), seconds, detail)
        if moving := [vbucket for vbucket in self.stuck if vbucket not in stuck]:
            log.info("vbuckets %s progressing again", format_vbuckets(moving))
        self.stuck = stuck

    def _ask_nodes(self) -> tuple[dict[Node, dict[str | None, HighSeqnos]], set[Node]]:
        """Return the high seqnos of the nodes that answer in time, and the nodes that do not answer."""
        until = time.monotonic() + max(_SHORTEST_WAIT, self._interval)
        self._refresh_collections(until)
        nodes = self._agent.map.nodes
        # A node that still has a question gets no other one.
        fresh = {
            node: _NodeQuestion(partial(self._ask, node, self._wanted), str(node))
            for node in nodes
            if node not in self._questions or not self._questions[node].pending
        }
        self._questions = {node: fresh.get(node) or self._questions[node] for node in nodes}
        for question in fresh.values():
            question.wait(until)
        silent = {node for node, each in self._questions.items() if each.pending or not each.reached}
        return {node: each.found for node, each in fresh.items() if each.found is not None}, silent

    def _refresh_collections(self, until: float) -> None:
        """Fetch the collections. Those of the poll before are used as long as no node sends them."""
        if self._manifest is None or not self._manifest.is_alive():
            self._manifest = threading.Thread(target=self._fetch_collections, name="dcp monitor", daemon=True)
            self._manifest.start()
            self._manifest.join(max(0.0, until - time.monotonic()) / 2)

    def _fetch_collections(self) -> None:
        try:
            paths = sorted(collections_manifest(self._agent).paths.items())
        except DcpError as error:
            log.debug("no collections: %s", error)
            return
        self._wanted = dict([item for item in paths if self._chosen.includes(*item)][:_MOST_COLLECTIONS])

    def _ask(self, node: Node, known: Mapping[int, str] | None) -> dict[str | None, HighSeqnos]:
        """Return the high seqnos of the whole stream and of each collection at a node."""
        if known is None and self._chosen.wire is not None:
            raise ServerError("the collections of the filter are not known yet")
        wanted = known or {}
        found: dict[str | None, HighSeqnos] = {_WHOLE: {}} | {path: {} for path in wanted.values()}
        active: dict[str, Any] = {"state": int(VbucketState.ACTIVE)}
        # With a filter the whole is the sum of its collections: the bucket's own high seqno counts others' changes.
        whole = [_WHOLE] if self._chosen.wire is None else []
        asked: list[str | None] = [*whole, *wanted.values()]
        questions = [{"fields": active} for _ in whole] + [{"fields": active | {"collection_id": n}} for n in wanted]
        for path, answer in zip(asked, self._agent.ask_node(node, "get_all_vb_seqnos", questions), strict=True):
            if answer.status == Status.UNKNOWN_COLLECTION:
                continue
            if answer.status:
                raise ServerError("get_all_vb_seqnos refused", answer.status)
            for row in SEQNOS.decode(answer.value, {}):
                found[path][row.vbucket] = row.seqno
                found[_WHOLE][row.vbucket] = max(row.seqno, found[_WHOLE].get(row.vbucket, 0))
        return found
