"""Cluster state as the driver of a stream knows it between its batches."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import dcp
from dcp.checkpoint import Checkpoint
from dcp.client import Client
from dcp.client.queries import CollectionsManifest
from dcp.errors import LocalProtocolError, ServerError, TransportError
from dcp.spark.offsets import check_resumable
from dcp.spark.options import Options
from dcp.spark.planner import filtered_high_seqnos, highs_and_uuids, identity_of, without_dropped
from dcp.spark.retry import DEFAULTS, Timing

# Purge seqnos are queried this many times less often: servers keep deletions for at least an hour, and the query
# answers with all statistics of every vbucket.
_PURGE_FACTOR = 10


class ClusterState(NamedTuple):
    """One observation of the cluster: its time, the ids of what is read, high seqnos, and uuids of histories."""

    observed_at: float
    identity: Checkpoint
    highs: dict[int, int]
    uuids: dict[int, int]


class DriverView:
    """A client, and the latest state of the cluster. It connects on first use."""

    def __init__(self, options: Options, timing: Timing = DEFAULTS) -> None:
        self.last: ClusterState | None = None
        # The newest manifest that any node reported. A node with an older one is not believed.
        self.manifest_uid = 0
        self._options = options
        self._timing = timing
        self._client: Client | None = None
        self._stale = True
        self._purged: tuple[float, Mapping[int, int]] = -math.inf, {}

    @property
    def client(self) -> Client:
        """The driver's client, connected."""
        if self._client is None:
            self._client = dcp.connect(self._options.login_url())
        return self._client

    def current(self) -> ClusterState:
        """Return the state of the cluster, at most `max_age` seconds old."""
        if self._stale or self.last is None or time.monotonic() - self.last.observed_at > self._timing.max_age:
            # Taken before the queries: the state is at least as new as its time.
            observed_at = time.monotonic()
            # The refresh notices a recreated bucket. If no node answers it, highs_and_uuids() retries.
            with suppress(TransportError):
                self.client.refresh_map()
            remaining = without_dropped(self._options, self._manifest)
            highs, uuids = highs_and_uuids(self.client, remaining, self._timing.retry) if remaining else ({}, {})
            identity = self._identity(remaining or replace(self._options, scope=None, collections=None))
            self.last, self._stale = ClusterState(observed_at, identity, highs, uuids), False
        return self.last

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

    def invalidate(self) -> None:
        """Make the next call of `current` query the cluster."""
        self._stale = True

    def checked(self, here: Checkpoint, state: ClusterState) -> Checkpoint:
        """Return `here`. Raises CheckpointError if it is of another bucket, or of other collections."""
        if not self._options.fail_on_data_loss:
            # A recreated collection starts after every logged offset, so its new id may replace the old one.
            here = replace(here, scope=state.identity.scope, collections=state.identity.collections)
        check_resumable(here, state.identity, state.highs)
        return here

    def has_changes(self, here: Checkpoint, state: ClusterState) -> bool:
        """True if some of the changes after `here` pass the collection filter, or a failover happened."""
        if state.identity.scope is None and not state.identity.collections:
            return True
        if any(
            position.seqno > state.highs[position.vbucket] or position.vbuuid not in (0, state.uuids[position.vbucket])
            for position in here
            if position.vbucket in state.highs
        ):
            return True
        # Queried after `state`: a change in between is found by the next check.
        highs = filtered_high_seqnos(self.client, state.identity, self._options.scope)
        return any(position.seqno < highs.get(position.vbucket, 0) for position in here)

    def filtered_highs(self, state: ClusterState) -> dict[int, int]:
        """Query the last seqno in each vbucket that passes the collection filter; empty if there is no filter."""
        try:
            return filtered_high_seqnos(self.client, state.identity, self._options.scope)
        except ServerError as error:
            if self._options.fail_on_data_loss or error.retriable:
                raise
        # A collection was dropped since the state was observed.
        return {}

    def purge_seqnos(self, here: Checkpoint) -> Mapping[int, int]:
        """Return the seqno of each vbucket up to which deletions may be purged; empty for a first batch."""
        queried_at, found = self._purged
        if not any(position.seqno for position in here):
            return {}
        if time.monotonic() - queried_at > self._timing.max_age * _PURGE_FACTOR:
            queried_at, found = time.monotonic(), self.client.purge_seqnos()
            self._purged = queried_at, found
        return found

    def close(self) -> None:
        """Close the client. It is connected again when it is used again."""
        if self._client is not None:
            self._client.close()
            self._client = None
