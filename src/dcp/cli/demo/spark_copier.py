"""Copy by Spark: a planned read, then a stream that resumes where the plan ended."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dcp.spark
from dcp.checkpoint import Checkpoint
from dcp.cli.demo.parquet_batches import COLUMNS, TEXT, ParquetBatches
from dcp.embedded import Cluster
from dcp.errors import LocalProtocolError
from dcp.spark.offsets import from_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ADVICE = "or leave Spark out: dcp demo --no-spark"
# Two cores, and two tasks for each of the three nodes: three tasks would leave a core idle in the second round.
_MASTER, _TASKS = "local[2]", 6
_MAX_RESTARTS = 5
_OPTIONS = {"columns": ",".join(COLUMNS), **TEXT}


class SparkCopier:
    """Copier with a local Spark session of its own, whose messages go to a file."""

    def __init__(self, url: str, batches: ParquetBatches, directory: Path) -> None:
        self._url, self._batches = url, batches
        self._directory = directory
        # py4j logs long tracebacks after Ctrl-C.
        logging.disable(logging.CRITICAL)
        self._spark = _session(directory)
        self._warm_up()
        self.name = f"Spark {self._spark.version}, {_MASTER}"
        self._start: Checkpoint | None = None
        self._query: Any = None
        self.restarts = 0

    def _warm_up(self) -> None:
        """Let Spark start its Python processes. That takes longer than a read, whose speed is measured without it."""
        with Cluster(vbuckets=2 * _TASKS) as cluster:
            cluster.load(1000)
            dcp.spark.read(self._spark, _plan(cluster.url)).write.parquet(str(self._directory / "warm-up"))

    def read(self) -> None:
        """Copy what the bucket has now."""
        plan = _plan(self._url)
        dcp.spark.read(self._spark, plan).write.parquet(str(self._batches.path(0)))
        self._batches.mark_complete(0)
        # A second plan finds that the read ended at the end of a snapshot, since nothing has been written meanwhile:
        # a rollback need not go further back.
        self._start = dcp.spark.plan(self._url, start=plan.end).end

    def follow(self) -> None:
        """Start a query that copies changes."""
        assert self._start is not None
        changes = self._spark.readStream.format("dcp")
        changes = changes.options(url=self._url, startingOffsets=self._start.to_json(), **_OPTIONS)
        stream = changes.load().writeStream.foreachBatch(self._store)
        stream = stream.option("checkpointLocation", str(self._directory / "checkpoint"))
        self._query = stream.trigger(processingTime="1 second").start()

    def _store(self, batch: DataFrame, number: int) -> None:
        """Write a batch. Spark repeats a batch under its number, so the files of a failed attempt are replaced."""
        batch.write.mode("overwrite").parquet(str(self._batches.path(number + 1)))
        self._batches.mark_complete(number + 1)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Position after the last batch."""
        progress = None if self._query is None else self._query.lastProgress
        if progress is None:
            return self._start
        # The type of `progress[...]["endOffset"]` differs between versions of Spark; `json` is the same in all.
        return from_offset(json.loads(progress.json)["sources"][0]["endOffset"]).checkpoint()

    def check(self) -> None:
        """Restart a failed query: that of a batch whose end a failover lost resumes. Raise after too many failures."""
        if self._query is None or self._query.isActive:
            return
        self.restarts += 1
        if self.restarts > _MAX_RESTARTS:
            raise self._query.exception() or LocalProtocolError("the query ended without an error message")
        self.follow()

    def close(self) -> None:
        """Stop the query and the session."""
        # After Ctrl-C, Java may have ended already: then every call fails.
        with (
            (self._directory / "spark.log").open("a", encoding="utf-8") as log,
            redirect_stderr(log),
            suppress(Exception),
        ):
            if self._query is not None:
                self._query.stop()
            self._spark.stop()


def _plan(url: str) -> dcp.spark.Plan:
    return dcp.spark.plan(
        url, columns=COLUMNS, key_format="string", value_format="string", on_bad_value="fail", min_partitions=_TASKS
    )


def _session(directory: Path) -> SparkSession:
    """Start a local Spark session. Raises LocalProtocolError if Spark, pandas or Java is missing."""
    for library in ("pyspark", "pandas"):
        if find_spec(library) is None:
            raise LocalProtocolError(f"spark: needs {library}: pip install 'dcp-arrow[spark]', {_ADVICE}")
    try:
        options = dcp.spark.session_options()
    except LocalProtocolError as missing:
        raise LocalProtocolError(f"{missing}, {_ADVICE}") from None
    from pyspark.sql import SparkSession

    # On the loopback interface only, and with all files inside of the demo's directory.
    directory.mkdir()
    options |= {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    with _stderr_to(directory / "spark.log"), warnings.catch_warnings():
        # Spark checks the version of pandas, although only pyarrow is used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        session = SparkSession.builder.master(_MASTER).appName("dcp demo").config(map=options).getOrCreate()
    session.dataSource.register(dcp.spark.DcpDataSource)
    return session


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect standard error to a file, also that of processes that are started meanwhile, such as Spark's Java."""
    # File descriptor 2 itself: redirect_stderr() does not affect other processes.
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
