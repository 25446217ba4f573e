"""The story: a bucket is filled, copied and followed, a node fails, and the copy is compared with the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcp import __version__
from dcp.cli.demo.course import Copier, Course
from dcp.cli.demo.lake import Lake, differences
from dcp.cli.demo.screen import Screen
from dcp.cli.demo.shop import Trade, fill
from dcp.cli.terminal import counted
from dcp.embedded import Cluster
from dcp.errors import TransportError

_NODES, _VBUCKETS, _REPLICAS = 3, 64, 1
# The node that fails, and how many of its last writes it takes with it: more than the copy is behind.
_FAILING, _LOST = 0, 1000
_PATIENCE = 60.0
_TICK = 0.1


def tell(
    screen: Screen, directory: Path, *, count: int, seed: int, short: bool, with_spark: bool
) -> tuple[dict[str, Any], Course]:
    """Everything, into an empty directory; what came of it, for programs. Whatever happens, what was started ends."""
    lake = Lake(directory / "changes")
    with ExitStack() as ends:
        cluster = ends.enter_context(Cluster(nodes=_NODES, vbuckets=_VBUCKETS, replicas=_REPLICAS, seed=seed))
        screen.say(f"dcp-arrow {__version__}: a bucket is copied into Parquet, and a node fails meanwhile\n", "bold")
        copier = _copier(screen, cluster, lake, directory, with_spark)
        ends.callback(copier.close)
        what = f"{_NODES} nodes, {_REPLICAS} replica, {_VBUCKETS} vbuckets; {count:,} orders and customers as JSON"
        with screen.step("cluster", lambda: what):
            keys = fill(cluster, count)
        course = Course(cluster, copier, keys)
        ends.callback(course.stop)
        trade = Trade(cluster, count, seed)
        ends.callback(trade.stop)
        story = _Story(screen, cluster, copier, lake, course, trade)
        story.read(keys)
        story.follow(4 if short else 8)
        story.fail()
        story.recover()
        story.finish(1 if short else 5)
        return story.compare(), course


def _copier(screen: Screen, cluster: Cluster, lake: Lake, directory: Path, with_spark: bool) -> Copier:
    copier: Copier | None = None
    with screen.step("start", lambda: copier.name if copier else "Spark, and a Java for it"):
        if with_spark:
            from dcp.cli.demo import on_spark

            copier = on_spark.Copier(cluster.url, lake, directory / "spark")
        else:
            from dcp.cli.demo import in_python

            copier = in_python.Copier(cluster.url, lake)
    return copier


@dataclass
class _Story:
    """Who takes part; a method for each chapter."""

    screen: Screen
    cluster: Cluster
    copier: Copier
    lake: Lake
    course: Course
    trade: Trade
    # How long it took to read all, and how far the vbuckets were when the node failed.
    read_in: float = 0.0
    before: dict[int, int] = field(default_factory=dict)

    def read(self, keys: int) -> None:
        course = self.course

        def says() -> str:
            rows, bytes_ = course.since_start(self.read_in) if self.read_in else course.speed
            return f"{course.last.rows:,} changes into Parquet: {rows:,.0f}/s, {bytes_ / 1e6:,.0f} MB/s"

        course.start()
        began = time.monotonic()
        with self.screen.step("read", says, lambda: course.last.rows / keys):
            self.copier.read()
            course.look()
            self.read_in = time.monotonic() - began
        course.mark("all is read: follow")

    def follow(self, seconds: float) -> None:
        with self.screen.step("follow", self._behind):
            batches = self.lake.batches
            self.copier.follow()
            self.trade.start()
            self._wait(lambda: self.lake.batches > batches)
            self._wait_for(seconds)

    def fail(self) -> None:
        with self.screen.step("failover", lambda: f"node {_FAILING} is gone, and {_LOST:,} writes with it", bad=True):
            self.course.look()
            self.before = self.course.highs
            self.cluster.failover(_FAILING, lose=_LOST)
            self.course.mark("failover", bad=True)

    def recover(self) -> None:
        back: list[int] = []

        def says() -> str:
            if not back:
                return f"{self._behind()}, and has rows that never were"
            return f"{counted(len(back), 'vbucket')} rolled back, and the copy is past what was lost"

        with self.screen.step("recover", says):
            # Nobody had been there before: it is the new history.
            beyond = {vbucket: seqno + 1 for vbucket, seqno in self.before.items()}
            self._wait(lambda: self.course.has_reached(beyond))
            back += self.lake.rolled_back()
            self.course.mark("recovered")

    def finish(self, seconds: float) -> None:
        with self.screen.step("follow", self._behind):
            self._wait_for(seconds)
            self.trade.stop()
            self.course.look()
            last = self.course.highs
            self._wait(lambda: self.course.has_reached(last))
            self.course.stop()
            self.course.look()
            self.copier.close()

    def compare(self) -> dict[str, Any]:
        says = "what the Parquet comes to, with what the cluster has"
        with self.screen.step("compare", lambda: says):
            state = self.lake.state()
            documents, differing = differences(state, self.cluster)
            if differing:
                says = f"{counted(differing, 'document')} differ from the cluster's {documents:,}"
            else:
                says = f"the Parquet comes to the cluster's {documents:,} documents, byte for byte"
        last = self.course.last
        rows_per_second, bytes_per_second = self.course.since_start(self.read_in)
        return {
            "documents": documents,
            "differing": differing,
            "rows": state.rows,
            "undone": state.undone,
            "vbuckets_rolled_back": len(self.lake.rolled_back()),
            "restarts": self.copier.restarts,
            "bytes_received": last.bytes,
            "bytes_parquet": self.lake.size,
            "rows_per_second": round(rows_per_second),
            "bytes_per_second": round(bytes_per_second),
            "seconds": {name: round(seconds, 3) for name, seconds in self.screen.steps.items()},
        }

    def _behind(self) -> str:
        says = f"{self.trade.writes:,} writes so far, the copy is {self.course.last.lag:,} behind"
        return says + (f", {counted(self.copier.restarts, 'restart')}" if self.copier.restarts else "")

    def _wait_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() > until)

    def _wait(self, condition: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + _PATIENCE
        while not condition():
            self.copier.check()
            if time.monotonic() > give_up_at:
                raise TransportError(f"the copy did not come that far within {_PATIENCE:g} s")
            time.sleep(_TICK)
