"""Asks the nodes, now and then, how far they are: for the lag, and to find vbuckets that do not get on."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from dcp.client.agent import Access
from dcp.client.ending import wait_for
from dcp.client.filters import Selection
from dcp.client.queries import manifest
from dcp.client.stats import Lag, Stuck
from dcp.client.watch import Backlog, Seen, Watch
from dcp.cluster_map import Node, format_vbuckets
from dcp.errors import DcpError, ServerError
from dcp.wire.memcached import SEQNOS, Status, VbucketState

log = logging.getLogger("dcp.client.watch")

# How many looks a vbucket may stand still before it is reported.
_LOOKS = 3
# Lag is told of so many collections, those with the lowest ids: each is another question to every node.
_MOST_COLLECTIONS = 32
# The key of what a stream follows as a whole.
_ALL = None

Highs = dict[int, int]


class Watched(Protocol):
    """A stream: what came of its vbuckets, how far its consumer is, and how much came in all."""

    def seen(self) -> list[Seen]: ...

    def done(self) -> Mapping[int, int]: ...

    def volume(self) -> tuple[int, int]: ...


class Watcher:
    """Looks every `interval` seconds, in a thread of its own.

    selection: what the stream is about.
    """

    def __init__(self, access: Access, watched: Watched, interval: float, selection: Selection) -> None:
        self._access, self._watched, self._interval, self._selection = access, watched, interval, selection
        self._watch = Watch(_LOOKS * interval)
        self._backlogs: dict[str | None, Backlog] = {}
        self._before = time.monotonic(), watched.volume()
        self.stuck: Mapping[int, Stuck] = {}
        self.rates = 0.0, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dcp watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end."""
        self._stop.set()

    def close(self) -> None:
        self.stop()
        wait_for([self._thread])

    def lags(self) -> dict[str | None, Lag]:
        """By collection, and None for all of them."""
        now, done = time.monotonic(), self._watched.done()
        return {path: backlog.lag(now, done) for path, backlog in self._backlogs.items()}

    # The thread.

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval):
                self._look()
        except Exception:
            # Streams do not need it.
            log.exception("the watch over silent vbuckets has ended")

    def _look(self) -> None:
        highs = self._highs()
        now = time.monotonic()
        backlogs = {path: self._backlogs.get(path) or Backlog() for path in highs}
        for path, found in highs.items():
            backlogs[path].add(now, found)
        stuck = self._watch.look(now, self._watched.seen(), highs.get(_ALL, {}))
        then, before = self._before
        self._before = now, self._watched.volume()
        if self._stop.is_set():
            return
        self._report(stuck)
        self._backlogs = backlogs
        changes, size = (after - earlier for after, earlier in zip(self._before[1], before, strict=True))
        self.rates = changes / (now - then), size / (now - then)

    def _report(self, stuck: dict[int, Stuck]) -> None:
        """What is new of it: one line for all vbuckets of a reason."""
        new = defaultdict(list)
        for vbucket, found in stuck.items():
            if vbucket not in self.stuck or self.stuck[vbucket].reason != found.reason:
                new[found.says].append(vbucket)
        for says, vbuckets in new.items():
            seconds = stuck[vbuckets[0]].seconds
            log.warning("nothing comes of vbuckets %s for %.3g s: %s", format_vbuckets(vbuckets), seconds, says)
        if moving := [vbucket for vbucket in self.stuck if vbucket not in stuck]:
            log.info("vbuckets %s get on again", format_vbuckets(moving))
        self.stuck = stuck

    def _highs(self) -> dict[str | None, Highs]:
        """How far each vbucket is, as a whole and by collection, as far as nodes answer."""
        try:
            wanted = dict(self._wanted())
        except DcpError as error:
            log.debug("no collections: %s", error)
            wanted = {}
        found: dict[str | None, Highs] = {_ALL: {}} | {path: {} for path in wanted.values()}
        for node in self._access.map.nodes:
            try:
                self._ask(node, wanted, found)
            except DcpError as error:
                log.debug("%s: no seqnos: %s", node, error)
        return found

    def _wanted(self) -> Iterator[tuple[int, str]]:
        paths = sorted(manifest(self._access).paths.items())
        yield from [item for item in paths if self._selection.follows(*item)][:_MOST_COLLECTIONS]

    def _ask(self, node: Node, wanted: Mapping[int, str], found: dict[str | None, Highs]) -> None:
        active: dict[str, Any] = {"state": int(VbucketState.ACTIVE)}
        whole = [_ALL] if self._selection.chosen is None else []
        asked: list[str | None] = [*whole, *wanted.values()]
        questions = [{"fields": active} for _ in whole] + [{"fields": active | {"collection_id": n}} for n in wanted]
        for path, answer in zip(asked, self._access.ask_node(node, "get_all_vb_seqnos", questions), strict=True):
            if answer.status == Status.UNKNOWN_COLLECTION:
                continue
            if answer.status:
                raise ServerError("get_all_vb_seqnos: refused", answer.status)
            for row in SEQNOS.decode(answer.value, {}):
                found[path][row.vbucket] = row.seqno
                found[_ALL][row.vbucket] = max(row.seqno, found[_ALL].get(row.vbucket, 0))
