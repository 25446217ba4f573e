"""Cluster state as the driver of a stream knows it between its batches."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import dcp
from dcp.checkpoint import Checkpoint
from dcp.client import Client
from dcp.client.queries import CollectionsManifest, Heads
from dcp.errors import LocalProtocolError, ServerError, TransportError
from dcp.spark.offsets import Offset, check_not_wider, check_resumable
from dcp.spark.options import Options
from dcp.spark.planner import filtered_high_seqnos, identity_of, settled_heads, without_dropped
from dcp.spark.resume import ObservedVbucket, Start
from dcp.spark.retry import DEFAULTS, Timing

# Purge seqnos are queried this many times less often: servers keep deletions for at least an hour, and the query
# answers with all statistics of every vbucket. So are failover logs of vbuckets that have not changed.
_RARELY = 10
# Seconds between the first two observations after a batch: where changes trickle in, the next one is not far.
_FIRST_PAUSE = 0.05

log = logging.getLogger("dcp.spark")


@dataclass(frozen=True)
class ClusterState:
    """One observation of the cluster: its time, the ids of what is read, and the state of each vbucket."""

    observed_at: float
    identity: Checkpoint
    vbuckets: dict[int, ObservedVbucket]

    @cached_property
    def highs(self) -> dict[int, int]:
        """High seqno of each vbucket."""
        return {vbucket: state.high for vbucket, state in self.vbuckets.items()}


class DriverView:
    """A client, and the latest state of the cluster. It connects on first use."""

    def __init__(self, options: Options, timing: Timing = DEFAULTS) -> None:
        self.last: ClusterState | None = None
        # The newest manifest that any node reported. A node with an older one is not believed.
        self.manifest_uid = 0
        self._options = options
        self._timing = timing
        self._client: Client | None = None
        # Longer outages are waited for between calls, so that the query's progress can say so.
        self._patience = min(timing.retry, options.node_timeout)
        self._hurries = True
        # Age in seconds that the last observation had to reach when it was replaced.
        self._pause = 0.0
        # Number of seqnos that copies do not have on disk yet, by node, as of the last call of `persisted_seqnos`.
        self.lagging: dict[str, int] = {}
        self._lagging_since: dict[str, float] = {}
        self._purged: tuple[float, Mapping[int, int]] = -math.inf, {}

    @property
    def client(self) -> Client:
        """The driver's client, connected."""
        if self._client is None:
            self._client = dcp.connect(self._options.login_url())
        return self._client

    def current(self) -> ClusterState:
        """Observe the cluster. Everything that was written before the call is in the state.

        Spark asks about 90 times a second while nothing is new, so this waits until the last observation is old enough,
        unless `hurry` was called: twice as old as the time before, up to `interval` seconds.
        """
        if self.last is None or self._hurries:
            self._pause = 0.0
        else:
            self._pause = min(self._timing.interval, max(_FIRST_PAUSE, 2 * self._pause))
            time.sleep(max(0.0, self.last.observed_at + self._pause - time.monotonic()))
        # Taken before the queries: the state is at least as new as its time.
        observed_at = time.monotonic()
        # The refresh notices a recreated bucket. If no node answers it, settled_heads() retries.
        with suppress(TransportError):
            self.client.refresh_map()
        remaining = without_dropped(self._options, self._manifest)
        max_log_age = self._timing.interval * _RARELY
        highs, logs = Heads({}, {})
        if remaining:
            highs, logs = settled_heads(self.client, remaining, self._patience, max_log_age)
        identity = self._identity(remaining or replace(self._options, scope=None, collections=None))
        vbuckets = {vbucket: ObservedVbucket(high, logs[vbucket]) for vbucket, high in highs.items()}
        self.last, self._hurries = ClusterState(observed_at, identity, vbuckets), False
        return self.last

    def unused(self) -> ClusterState | None:
        """Return the last observation; None if `hurry` was called since.

        A batch that ends at its high seqnos needs no newer one: what is lost after it, the tasks find out.
        """
        return None if self._hurries else self.last

    def _identity(self, options: Options) -> Checkpoint:
        """Return the ids of what is read. Raises UsageError if a collection was dropped."""
        try:
            return identity_of(self.client, options)
        except LocalProtocolError as error:
            if not self._options.fail_on_data_loss:
                raise
            raise LocalProtocolError(
                f"{error}; failOnDataLoss=false continues without collections that were dropped"
            ) from None

    def _manifest(self) -> CollectionsManifest:
        """Return the collections manifest, which is never older than one seen before."""
        found = self.client.manifest(self.manifest_uid)
        self.manifest_uid = found.uid
        return found

    def hurry(self) -> None:
        """Make the next call of `current` observe the cluster at once."""
        self._hurries = True

    def checked(self, here: Offset, state: ClusterState) -> Offset:
        """Return `here`. Raises CheckpointError if a stream with these options cannot resume from it."""
        if not self._options.fail_on_data_loss:
            # A recreated collection starts after every logged offset, so its new id may replace the old one.
            ids = replace(here.identity, scope=state.identity.scope, collections=state.identity.collections)
            here = replace(here, identity=ids)
        elif here.selection is not None:
            check_not_wider(here.selection, self._options.row_selection)
        check_resumable(here, state.identity, state.vbuckets)
        return here

    def persisted_seqnos(self, state: ClusterState, vbuckets: Collection[int]) -> dict[int, int]:
        """Return the seqno up to which every copy of each vbucket is on disk. Note the copies that lag in `lagging`."""
        copies = self.client.persisted_seqnos({vbucket: state.vbuckets[vbucket].vbuuid for vbucket in vbuckets})
        behind: Counter[str] = Counter()
        for vbucket, nodes in copies.items():
            for node, seqno in nodes.items():
                behind[node] += max(0, state.vbuckets[vbucket].high - (seqno or 0))
        now = time.monotonic()
        since = {node: self._lagging_since.get(node, now) for node, count in behind.items() if count}
        self.lagging = {node: behind[node] for node in sorted(since)}
        for node in [node for node in since if now - since[node] > self._timing.lag]:
            log.warning(
                "%s: %d seqnos of its copies are not on disk, for more than %g s; with persistedOnly they are not "
                "delivered before: check the node, or fail it over",
                node,
                behind[node],
                self._timing.lag,
            )
            since[node] = now
        self._lagging_since = since
        # Without an owner, nothing is known to be on disk.
        return {vbucket: min((seqno or 0 for seqno in nodes.values()), default=0) for vbucket, nodes in copies.items()}

    def has_changes(self, starts: Collection[Start], state: ClusterState) -> bool:
        """True if some of the changes after these starts pass the collection filter, or some are to be undone."""
        if state.identity.scope is None and not state.identity.collections:
            return True
        if any(start.undone_from is not None for start in starts):
            return True
        # Queried after `state`: a change in between is found by the next check.
        highs = filtered_high_seqnos(self.client, state.identity, self._options.scope)
        return any(start.floor.seqno < highs.get(start.here.vbucket, 0) for start in starts)

    def filtered_highs(self, state: ClusterState) -> dict[int, int]:
        """Query the last seqno in each vbucket that passes the collection filter; empty if there is no filter."""
        try:
            return filtered_high_seqnos(self.client, state.identity, self._options.scope)
        except ServerError as error:
            if self._options.fail_on_data_loss or error.retriable:
                raise
        # A collection was dropped since the state was observed.
        return {}

    def purge_seqnos(self, here: Offset) -> Mapping[int, int]:
        """Return the seqno of each vbucket up to which deletions may be purged; empty for a first batch."""
        queried_at, found = self._purged
        if not any(position.seqno for position in here):
            return {}
        if time.monotonic() - queried_at > self._timing.interval * _RARELY:
            queried_at, found = time.monotonic(), self.client.purge_seqnos()
            self._purged = queried_at, found
        return found

    def close(self) -> None:
        """Close the client. It is connected again when it is used again."""
        if self._client is not None:
            self._client.close()
            self._client = None
