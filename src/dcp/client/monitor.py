"""Monitoring of a stream: lag and rates, and vbuckets that stall although their node has more."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
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
REASONS = (NO_OWNER, NO_CONNECTION, RETRYING, UNANSWERED, SILENT)
# The flow-control window is full, as the consumer takes no batches. The vbucket is not stuck.
CONSUMER = "consumer"
# Reasons under which a node has accepted the stream.
FLOWING = (SILENT, CONSUMER)
# Reasons under which no node can be asked for the high seqno.
_UNREACHABLE = (NO_OWNER, NO_CONNECTION)

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
            # Without an owner or a connection nobody knows the high seqno: assume that there is more.
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


class Monitor:
    """Polls the nodes every `interval` seconds, in a thread of its own.

    chosen: filter of the stream.
    stuck, rates: results of the last poll; the rates are changes and bytes a second.
    """

    def __init__(self, agent: Agent, stream: MonitoredStream, interval: float, chosen: StreamSelection) -> None:
        self._agent, self._stream, self._interval, self._chosen = agent, stream, interval, chosen
        self._stalls = StallDetector(_POLLS * interval)
        self._backlogs: dict[str | None, Backlog] = {}
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

    def close(self, within: float = 0.5) -> None:
        """Stop, and join the thread for at most `within` seconds."""
        self.stop()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(within)

    def lags(self) -> dict[str | None, Lag]:
        """Return the lag of each collection by path, and that of the whole stream under None."""
        now, consumed = time.monotonic(), self._stream.consumed()
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
        high_seqnos = self._high_seqnos()
        now = time.monotonic()
        backlogs = {path: self._backlogs.get(path) or Backlog() for path in high_seqnos}
        for path, found in high_seqnos.items():
            backlogs[path].add(now, found)
        stuck = self._stalls.check(now, self._stream.observations(), high_seqnos.get(_WHOLE, {}))
        then, before = self._previous
        self._previous = now, self._stream.volume()
        # A stream that is being closed has lost its connections on purpose.
        if self._stop.is_set():
            return
        self._log_changes(stuck)
        self._backlogs = backlogs
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

    def _high_seqnos(self) -> dict[str | None, HighSeqnos]:
        """Return the high seqnos of the whole stream and of each collection, from the nodes that answer."""
        try:
            wanted = dict(self._collections())
        except DcpError as error:
            log.debug("no collections: %s", error)
            wanted = {}
        found: dict[str | None, HighSeqnos] = {_WHOLE: {}} | {path: {} for path in wanted.values()}
        for node in self._agent.map.nodes:
            try:
                self._ask(node, wanted, found)
            except DcpError as error:
                log.debug("%s: no high seqnos: %s", node, error)
        return found

    def _collections(self) -> Iterator[tuple[int, str]]:
        paths = sorted(collections_manifest(self._agent).paths.items())
        yield from [item for item in paths if self._chosen.includes(*item)][:_MOST_COLLECTIONS]

    def _ask(self, node: Node, wanted: Mapping[int, str], found: dict[str | None, HighSeqnos]) -> None:
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
