"""What goes on for a stream, and what there is to tell of it."""

from __future__ import annotations

from dataclasses import replace

from dcp.client.follow.follower import Follower
from dcp.client.monitor import Watcher
from dcp.client.stats import Stats
from dcp.client.watch import FLOWING


class Work:
    """Of one stream. Its client has this of it: what the consumer has is held by nobody else."""

    def __init__(self, bucket: str, follower: Follower, watcher: Watcher) -> None:
        self.closed = False
        self._bucket, self._follower, self._watcher = bucket, follower, watcher

    def stop(self) -> None:
        """Let all threads end, and wait for none: whoever collects garbage may be one of them."""
        self.closed = True
        self._watcher.stop()
        self._follower.stop()

    def close(self) -> None:
        self.stop()
        self._watcher.close()
        self._follower.close()

    def stats(self) -> Stats:
        counters = self._follower.counters
        came = Stats(
            self._bucket,
            changes=counters.rows,
            bytes=counters.bytes,
            batches=counters.batches,
            rollbacks=counters.rollbacks,
            reconnects=counters.reconnects,
            stream_ends=dict(counters.stream_ends),
        )
        return came if self.closed else self._as_it_stands(came)

    def _as_it_stands(self, came: Stats) -> Stats:
        seen, lags = self._follower.seen(), self._watcher.lags()
        changes, size = self._watcher.rates
        return replace(
            came,
            changes_per_second=changes,
            bytes_per_second=size,
            vbuckets=len(seen),
            streams=sum(one.reason in FLOWING for one in seen),
            connections=self._follower.windows(),
            lag=lags.get(None),
            collections={path: lag for path, lag in lags.items() if path is not None},
            stuck=dict(self._watcher.stuck),
        )
