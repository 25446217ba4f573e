"""Random failures while a mirror runs: `python -m tests.spark.tables_by_chance FIRST COUNT` tries seeds.

Nodes fail and lose changes, disks stop, the query is stopped at any moment, fails between its MERGE and the end of the
batch, or starts over with a new checkpoint. At the end, the table has the documents of the cluster.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import dcp.spark
from dcp.embedded import Cluster
from tests.spark.lakes import Lake, lake
from tests.spark.rows import Documents, high_seqnos, truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_ROUNDS = 8


class Schedule:
    """Random steps on a cluster and a mirror of it."""

    def __init__(self, spark: SparkSession, seed: int, at: Path, format: Lake) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(nodes=4, vbuckets=1 + seed % 3, replicas=2, seed=seed)
        self.alive = [*range(4)]
        # Number of changes that failovers lost, and of queries that were started.
        self.lost = self.starts = 0
        self._spark, self._at, self._format = spark, at, format
        self._table = f"{format.schema}.chance_{seed}"
        self._checkpoint = 0
        self._query: StreamingQuery | None = None

    def __enter__(self) -> Schedule:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._spark.sql(f"DROP TABLE IF EXISTS {self._table}")
        self.cluster.close()

    def run(self) -> None:
        """Run some rounds, and compare at the end."""
        for _ in range(_ROUNDS):
            self._write()
            if self.random.random() < 0.5:
                self._fail()
            step = self.random.choice(("wait", "wait", "run", "stop", "start over"))
            self._start()
            if step == "wait":
                self._settle()
            elif step == "stop":
                self._write()
                self._stop()
            elif step == "start over" and self.random.random() < 0.3:
                self._stop()
                self._checkpoint += 1
        self._settle()
        assert self.documents() == truth(self.cluster)

    def documents(self) -> Documents:
        """Return what the table has."""
        rows = self._spark.table(self._table).select("key", "value", "cas").toArrow().to_pylist()
        assert len({row["key"] for row in rows}) == len(rows)
        return {row["key"]: (row["value"], row["cas"]) for row in rows}

    def _write(self) -> None:
        for _ in range(self.random.randint(1, 8)):
            key = f"key {self.random.randint(0, 9)}"
            if self.random.random() < 0.25 and key.encode() in self.cluster.truth():
                self.cluster.delete(key)
            else:
                self.cluster.upsert(key, str(self.random.random()))
        if self.random.random() < 0.2:
            self.cluster.snapshot()
        if self.random.random() < 0.2:
            self.cluster.snapshot()
            self.cluster.purge()

    def _fail(self) -> None:
        """Fail over a node with a loss of what its replicas have not received, or kill and restart one."""
        node = self.random.choice(self.alive)
        if len(self.alive) > 2 and any(owners[0] == node for owners in self.cluster._bucket.owners):
            self.cluster.set_lag(self.random.randint(0, 4))
            self._write()
            before = sum(high_seqnos(self.cluster).values())
            self.alive.remove(node)
            self.cluster.failover(node)
            self.lost += before - sum(high_seqnos(self.cluster).values())
            self.cluster.set_lag(0)
        else:
            self.cluster.crash(node)
            self.cluster.recover(node)

    def _start(self) -> None:
        """Start the query unless it runs."""
        if self._query is None:
            self.starts += 1
            self._query = dcp.spark.mirror(
                self._spark,
                self.cluster.url,
                self._table,
                checkpoint=str(self._at / f"checkpoint {self._checkpoint}"),
                format=self._format.format,
                max_offsets=self.random.choice([None, 3]),
            )

    def _settle(self) -> None:
        """Wait until the query has everything."""
        self._start()
        assert self._query is not None
        self._query.processAllAvailable()

    def _stop(self) -> None:
        """Stop the query, in the middle of a batch if there is one."""
        if self._query is not None:
            self._query.stop()
            self._query = None


def main(first: str, count: str) -> None:
    """Try seeds."""
    os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "conf")
    from pyspark.sql import SparkSession

    format = lake()
    assert format is not None
    at = Path(tempfile.mkdtemp())
    builder = SparkSession.builder.master("local[2, 2]").config("spark.ui.enabled", "false")
    spark = builder.config(map=format.options(at) | dcp.spark.session_options()).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for seed in range(int(first), int(first) + int(count)):
        with Schedule(spark, seed, at / str(seed), format) as schedule:
            schedule.run()
            print(f"seed {seed}: agrees; {schedule.lost} changes lost, {schedule.starts} starts", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
