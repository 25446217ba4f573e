"""Steps of the demo: fill a bucket, copy it, follow it, fail a node, and compare the copy with the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dcp
from dcp import __version__
from dcp.cli.demo.monitor import Copier, ProgressMonitor
from dcp.cli.demo.parquet_batches import ParquetBatches, differences
from dcp.cli.demo.screen import Screen
from dcp.cli.demo.workload import ORDERS, OrderWriter, fill
from dcp.cli.terminal import counted
from dcp.embedded import Cluster
from dcp.errors import TransportError

_NODES, _VBUCKETS, _REPLICAS = 3, 64, 1
# The node that fails, and the number of its last writes that are lost: more than the lag of the copy, so that the copy
# has rows to undo.
_FAILING, _LOST = 0, 1000
# Longest wait for the copy, and the interval of checks, in seconds.
_TIMEOUT = 60.0
# Schema of an order; documents have more fields.
_ORDER = "status string, total decimal(12,2)"
_TICK = 0.1


def run_scenario(
    screen: Screen, directory: Path, *, count: int, seed: int, short: bool, with_spark: bool
) -> tuple[dict[str, Any], ProgressMonitor]:
    """Run all steps, with files in an empty directory. Return the results and the measurements.

    count: number of documents. short: follow for a shorter time.
    """
    batches = ParquetBatches(directory / "changes")
    with ExitStack() as cleanup:
        cluster = cleanup.enter_context(Cluster(nodes=_NODES, vbuckets=_VBUCKETS, replicas=_REPLICAS, seed=seed))
        screen.print(f"dcp-arrow {__version__}: copy a bucket into Parquet while a node fails\n", "bold")
        copier = _start_copier(screen, cluster, batches, directory, with_spark)
        cleanup.callback(copier.close)
        text = f"{_NODES} nodes, {_REPLICAS} replica, {_VBUCKETS} vbuckets; {count:,} orders and customers as JSON"
        with screen.step("cluster", lambda: text):
            keys = fill(cluster, count)
        monitor = ProgressMonitor(cluster, copier, keys)
        cleanup.callback(monitor.stop)
        writer = OrderWriter(cluster, count, seed)
        cleanup.callback(writer.stop)
        # Cleanup runs in reverse order: the writer stops first, and the cluster last.
        scenario = _Scenario(screen, cluster, copier, batches, monitor, writer)
        scenario.read(keys)
        scenario.follow(4 if short else 8)
        scenario.fail()
        scenario.recover()
        scenario.finish(1 if short else 5)
        return scenario.compare() | {"orders": scenario.add_up()}, monitor


def _start_copier(
    screen: Screen, cluster: Cluster, batches: ParquetBatches, directory: Path, with_spark: bool
) -> Copier:
    """Start the copier. Starting Spark takes seconds, so it is a step."""
    copier: Copier | None = None
    with screen.step("start", lambda: copier.name if copier else "Spark, and a Java for it"):
        if with_spark:
            from dcp.cli.demo.spark_copier import SparkCopier

            copier = SparkCopier(cluster.url, batches, directory / "spark")
        else:
            from dcp.cli.demo.python_copier import PythonCopier

            copier = PythonCopier(cluster.url, batches)
    return copier


@dataclass
class _Scenario:
    """Everything that takes part, with a method for each step."""

    screen: Screen
    cluster: Cluster
    copier: Copier
    batches: ParquetBatches
    monitor: ProgressMonitor
    writer: OrderWriter
    # Seconds that the first read took, and the high seqnos when the node failed.
    read_seconds: float = 0.0
    highs_at_failure: dict[int, int] = field(default_factory=dict)

    def read(self, keys: int) -> None:
        """Copy the whole bucket."""
        monitor = self.monitor

        def describe() -> str:
            rows, bytes_ = monitor.rates_until(self.read_seconds) if self.read_seconds else monitor.rates
            return f"{monitor.last.rows:,} changes into Parquet: {rows:,.0f}/s, {bytes_ / 1e6:,.0f} MB/s"

        monitor.start()
        started_at = time.monotonic()
        with self.screen.step("read", describe, lambda: monitor.last.rows / keys):
            self.copier.read()
            monitor.sample()
            self.read_seconds = time.monotonic() - started_at
        monitor.mark("read complete, following")

    def follow(self, seconds: float) -> None:
        """Copy changes while documents are written."""
        with self.screen.step("follow", self._lag):
            before = self.batches.count
            self.copier.follow()
            self.writer.start()
            self._wait(lambda: self.batches.count > before)
            self._wait_for(seconds)

    def fail(self) -> None:
        """Fail over a node with the loss of its last writes."""
        text = f"node {_FAILING} failed, its last {_LOST:,} writes are lost"
        with self.screen.step("failover", lambda: text, bad=True):
            self.monitor.sample()
            self.highs_at_failure = self.monitor.highs
            self.cluster.failover(_FAILING, lose=_LOST)
            self.monitor.mark("failover", bad=True)

    def recover(self) -> None:
        """Wait until the copy has rolled back and passed the lost seqnos."""
        rolled_back: list[int] = []

        def describe() -> str:
            if not rolled_back:
                return f"{self._lag()}, and has rows that the cluster lost"
            return f"{counted(len(rolled_back), 'vbucket')} rolled back, the copy is past the lost changes"

        with self.screen.step("recover", describe):
            # The cluster had never reached these seqnos before the failover, so they are of the new history.
            beyond = {vbucket: seqno + 1 for vbucket, seqno in self.highs_at_failure.items()}
            self._wait(lambda: self.monitor.has_reached(beyond))
            rolled_back += self.batches.rolled_back_vbuckets()
            self.monitor.mark("recovered")

    def finish(self, seconds: float) -> None:
        """Follow for some more time, then stop writing and let the copy reach the end."""
        with self.screen.step("follow", self._lag):
            self._wait_for(seconds)
            self.writer.stop()
            self.monitor.sample()
            last = self.monitor.highs
            self._wait(lambda: self.monitor.has_reached(last))
            # One last sample after the copy has everything, so that the chart ends at a lag of 0.
            self.monitor.stop()
            self.monitor.sample()
            self.copier.close()

    def compare(self) -> dict[str, Any]:
        """Compare the copy with the cluster. Return the results."""
        text = "the documents in Parquet with those of the cluster"
        with self.screen.step("compare", lambda: text):
            state = self.batches.state()
            documents, differing = differences(state, self.cluster)
            if differing:
                text = f"{counted(differing, 'document')} differ from the {documents:,} of the cluster"
            else:
                text = f"the copy has the {documents:,} documents of the cluster, byte for byte"
        last = self.monitor.last
        rows_per_second, bytes_per_second = self.monitor.rates_until(self.read_seconds)
        return {
            "documents": documents,
            "differing": differing,
            "rows": state.rows,
            "undone": state.undone,
            "vbuckets_rolled_back": len(self.batches.rolled_back_vbuckets()),
            "restarts": self.copier.restarts,
            "bytes_received": last.bytes,
            "bytes_parquet": self.batches.size,
            "rows_per_second": round(rows_per_second),
            "bytes_per_second": round(bytes_per_second),
            "seconds": {name: round(seconds, 3) for name, seconds in self.screen.steps.items()},
        }

    def add_up(self) -> list[dict[str, Any]]:
        """Read the orders as typed columns. Return their number and total for each status."""
        import numpy
        import pyarrow as pa
        import pyarrow.compute as pc

        found: list[int] = []

        def describe() -> str:
            return f"{found[0]:,} orders read as typed columns: {_ORDER}" if found else "orders as typed columns"

        with self.screen.step("types", describe), dcp.connect(self.cluster.url) as client:
            columns = ["event", "key"]
            stream = client.stream(end="now", collections=[ORDERS], columns=columns, types="plain", document=_ORDER)
            changes = pa.table(stream)
            # An order that changed while the copy followed is there in several versions, the newest one last.
            keys = changes.select(["key"]).append_column("index", pa.array(numpy.arange(len(changes))))
            orders = changes.take(keys.group_by("key").aggregate([("index", "max")]).column("index_max"))
            orders = orders.filter(pc.equal(orders.column("event"), "mutation"))
            found.append(len(orders))
            typed = pa.table({name: pc.struct_field(orders.column("document"), name) for name in ("status", "total")})
            sums = typed.group_by("status").aggregate([("total", "count"), ("total", "sum")]).sort_by("status")
        rows = sums.rename_columns({"total_count": "orders", "total_sum": "total"}).to_pylist()
        return [row | {"total": str(row["total"])} for row in rows]

    def _lag(self) -> str:
        """Describe the lag of the copy."""
        text = f"{self.writer.writes:,} writes so far, the copy lags by {self.monitor.last.lag:,}"
        return text + (f", {counted(self.copier.restarts, 'restart')}" if self.copier.restarts else "")

    def _wait_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._wait(lambda: time.monotonic() > until)

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. Raises TransportError after a timeout, or the error of a failed copy."""
        give_up_at = time.monotonic() + _TIMEOUT
        while not condition():
            self.copier.check()
            if time.monotonic() > give_up_at:
                raise TransportError(f"the copy did not catch up within {_TIMEOUT:g} s")
            time.sleep(_TICK)
