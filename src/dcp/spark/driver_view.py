"""What the driver of a stream sees of the cluster, between its batches."""

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
from dcp.client.queries import Manifest
from dcp.errors import LocalProtocolError, ServerError, TransportError
from dcp.spark.offsets import check
from dcp.spark.options import Options
from dcp.spark.planner import asked_of, filtered_high_seqnos, newest, still_there

# Spark asks about 90 times a second whether there is something new.
_FRESH = 1.0
# So many times as long, purges are taken to be what they were. Servers keep deletions for hours at least.
_PURGES = 10


class Seen(NamedTuple):
    """What the cluster had when it was looked at: last seqnos, and uuids of histories, of what is asked for."""

    at: float
    asked: Checkpoint
    highs: dict[int, int]
    uuids: dict[int, int]


class Lookout:
    """Keeps a client. It connects when it is needed first."""

    def __init__(self, options: Options) -> None:
        self.seen: Seen | None = None
        # Of the newest manifest that a node told.
        self.manifest_uid = 0
        self._options = options
        self._client: Client | None = None
        self._forgotten = True
        self._purged: tuple[float, Mapping[int, int]] = -math.inf, {}

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = dcp.connect(self._options.login.into(self._options.url))
        return self._client

    def look(self) -> Seen:
        """High seqnos, and then uuids, as in every plan."""
        if self._forgotten or self.seen is None or time.monotonic() - self.seen.at > _FRESH:
            at = time.monotonic()
            # Whether it is the same bucket still. While no node answers, `newest` goes on trying.
            with suppress(TransportError):
                self.client.refresh()
            there = still_there(self._options, self._manifest)
            highs, uuids = newest(self.client, self._options) if there else ({}, {})
            asked = self._asked(there or replace(self._options, scope=None, collections=None))
            self.seen, self._forgotten = Seen(at, asked, highs, uuids), False
        return self.seen

    def _asked(self, options: Options) -> Checkpoint:
        try:
            return asked_of(self.client, options)
        except LocalProtocolError as error:
            if not self._options.fail_on_data_loss:
                raise
            raise LocalProtocolError(f"{error}; failOnDataLoss=false goes on without what was dropped") from None

    def _manifest(self) -> Manifest:
        found = self.client.manifest(self.manifest_uid)
        self.manifest_uid = found.uid
        return found

    def forget(self) -> None:
        """Let the next look be a new one."""
        self._forgotten = True

    def checked(self, here: Checkpoint, seen: Seen) -> Checkpoint:
        """Where a stream stands, if it is one of the same bucket and collections."""
        if not self._options.fail_on_data_loss:
            # What vanished was made anew behind every offset that there is.
            here = replace(here, scope=seen.asked.scope, collections=seen.asked.collections)
        check(here, seen.asked, seen.highs)
        return here

    def is_for_us(self, here: Checkpoint, seen: Seen) -> bool:
        """Whether any of what is new is for this stream, and not for other collections."""
        if seen.asked.scope is None and not seen.asked.collections:
            return True
        if any(
            position.seqno > seen.highs[position.vbucket] or position.vbuuid not in (0, seen.uuids[position.vbucket])
            for position in here
            if position.vbucket in seen.highs
        ):
            return True
        highs = filtered_high_seqnos(self.client, seen.asked, self._options.scope)
        return any(position.seqno < highs.get(position.vbucket, 0) for position in here)

    def wanted(self, seen: Seen) -> dict[int, int]:
        """The last seqno of each vbucket that is for this stream, where not all are; asked for now."""
        try:
            return filtered_high_seqnos(self.client, seen.asked, self._options.scope)
        except ServerError:
            if self._options.fail_on_data_loss:
                raise
        # A collection vanished meanwhile.
        return {}

    def purged(self, here: Checkpoint) -> Mapping[int, int]:
        """Up to where deletions are forgotten. That moves seldom, and is long in coming for many vbuckets."""
        at, found = self._purged
        if not any(position.seqno for position in here):
            return {}
        if time.monotonic() - at > _FRESH * _PURGES:
            at, found = time.monotonic(), self.client.purge_seqnos()
            self._purged = at, found
        return found

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
