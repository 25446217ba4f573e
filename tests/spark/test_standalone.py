"""Processes are killed and nodes fail while a bucket is read and followed: the table agrees with the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcp.embedded import Cluster
from tests.spark.driver import READ
from tests.spark.rows import replace_and_delete, truth
from tests.spark.standalone import Standalone, driver, found
from tests.waiting import until

# Before Spark 4.2, a run with availableNow after a failure does the failed batch only.
AVAILABLE_NOW = find_spec("pyspark.sql.streaming.datasource") is not None


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    standalone = Standalone(tmp_path_factory.mktemp("standalone"))
    yield standalone
    standalone.close()


def documents(rows: pa.Table) -> dict[bytes, tuple[bytes, int]]:
    keys, values, numbers = (rows.column(name).to_pylist() for name in ("key", "value", "cas"))
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, zip(values, numbers, strict=True), strict=True))


def state(lake: Path) -> dict[bytes, tuple[bytes, int]]:
    """Return the newest versions of all documents in the table of changes."""
    log = lake / "changes" / "_spark_metadata"
    logged = [json.loads(line)["path"] for file in log.glob("[0-9]*") for line in file.read_text().splitlines()[1:]]
    columns = ["event", "seqno", "key", "value", "cas"]
    newest: dict[bytes, dict[str, Any]] = {}
    for path in {unquote(urlsplit(path).path) for path in logged}:
        for row in pq.read_table(path, columns=columns).to_pylist():
            assert row["event"] != "rollback"
            if row["seqno"] >= newest.get(row["key"], row)["seqno"]:
                newest[row["key"]] = row
    return {key: (row["value"], row["cas"]) for key, row in newest.items() if row["event"] == "mutation"}


def lose_writes(cluster: Cluster, node: int) -> None:
    """Fail a node over while its replicas lack its last writes."""
    cluster.set_lag(3)
    cluster.load(100, seed=2)
    cluster.failover(node)
    cluster.set_lag(0)
    cluster.upsert("new", b"{}")


def test_the_table_agrees_with_the_cluster_after_processes_were_killed(standalone: Standalone, tmp_path: Path) -> None:
    # An address of its own: the port of a failed node could otherwise be reused by another process.
    with Cluster(nodes=3, vbuckets=12, replicas=1, seed=1, host="127.0.0.9") as cluster:
        for number in range(1000):
            cluster.upsert(f"key {number}", b"1")
        whole = truth(cluster)

        def agrees() -> bool:
            return state(tmp_path) == truth(cluster)

        def items() -> int:
            return sum(traffic.items for traffic in cluster.stats().values())

        with driver(standalone, cluster.url, tmp_path) as first:
            # A batch read with a speculative attempt: one task is silent until its second attempt has started.
            with cluster.fault("silent", node=0):
                first.until(lambda: cluster.stats()[0].streams == 2 * 4)
            first.until(lambda: found(READ, first.log))
            assert documents(pq.ParquetDataset(tmp_path / "batch").read()) == whole
            first.until(agrees)
            # Kill an executor in the middle of a batch.
            with cluster.fault("slow", rate=20_000):
                replace_and_delete(cluster)
                before = items()
                first.until(lambda: items() > before)
                standalone.kill_an_executor()
            first.until(agrees)
            # Fail over a node in the middle of a batch, with the loss of writes; then rebalance.
            with cluster.fault("slow", rate=20_000):
                cluster.load(300)
                before = items()
                first.until(lambda: items() > before)
                lose_writes(cluster, 0)
                cluster.rebalance_in()
            first.until(agrees)
            # Kill the driver in the middle of a batch.
            with cluster.fault("silent") as silence:
                cluster.load(500, seed=1)
                first.until(lambda: silence.hits)
                first.kill()
        lose_writes(cluster, 1)
        for _ in range(1 if AVAILABLE_NOW else 2):
            with driver(standalone, cluster.url, tmp_path, "once") as again:
                assert again.process.wait(240) == 0
        assert agrees()
        until(lambda: not cluster._server.links)
