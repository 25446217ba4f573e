"""The copy that Spark makes: a planned read, and a stream that goes on where the plan ended."""

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
from dcp.cli.demo.lake import COLUMNS, Lake
from dcp.errors import LocalProtocolError
from dcp.spark.offsets import from_offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ADVICE = "or leave Spark out: dcp demo --no-spark"
# Two cores, and a task for each node twice: the second round evens out what the first one left.
_MASTER, _TASKS = "local[2]", 6
_RESTARTS = 5
_SHAPE = {"columns": ",".join(COLUMNS), "keyFormat": "string", "valueFormat": "string"}


class Copier:
    """A local Spark of its own, which says what it has to say in a file."""

    def __init__(self, url: str, lake: Lake, directory: Path) -> None:
        self._url, self._lake = url, lake
        self._directory = directory
        # py4j logs at length what an interrupt breaks.
        logging.disable(logging.CRITICAL)
        self._spark = _session(directory)
        self.name = f"Spark {self._spark.version}, {_MASTER}"
        self._start: Checkpoint | None = None
        self._query: Any = None
        self.restarts = 0

    def read(self) -> None:
        plan = dcp.spark.plan(
            self._url, columns=COLUMNS, key_format="string", value_format="string", min_partitions=_TASKS
        )
        dcp.spark.read(self._spark, plan).write.parquet(str(self._lake.place(0)))
        self._lake.finished(0)
        # Planned again behind the read, an end is where a snapshot ends, unless somebody wrote meanwhile. So a
        # rollback need not go further back.
        self._start = dcp.spark.plan(self._url, start=plan.end).end

    def follow(self) -> None:
        assert self._start is not None
        changes = self._spark.readStream.format("dcp")
        changes = changes.options(url=self._url, startingOffsets=self._start.to_json(), **_SHAPE)
        stream = changes.load().writeStream.foreachBatch(self._store)
        stream = stream.option("checkpointLocation", str(self._directory / "checkpoint"))
        self._query = stream.trigger(processingTime="1 second").start()

    def _store(self, batch: DataFrame, number: int) -> None:
        """The same number again is the same batch again: it takes the place of what an attempt left."""
        batch.write.mode("overwrite").parquet(str(self._lake.place(number + 1)))
        self._lake.finished(number + 1)

    @property
    def checkpoint(self) -> Checkpoint | None:
        progress = None if self._query is None else self._query.lastProgress
        if progress is None:
            return self._start
        # By itself it is not JSON in each version of Spark.
        return from_offset(json.loads(progress.json)["sources"][0]["endOffset"])

    def check(self) -> None:
        """A query whose batch was to end at what the cluster lost fails, and goes on when it is started again."""
        if self._query is None or self._query.isActive:
            return
        self.restarts += 1
        if self.restarts > _RESTARTS:
            raise self._query.exception() or LocalProtocolError("the query ended, and does not say why")
        self.follow()

    def close(self) -> None:
        """After an interrupt Java may be gone already."""
        with (
            (self._directory / "spark.log").open("a", encoding="utf-8") as log,
            redirect_stderr(log),
            suppress(Exception),
        ):
            if self._query is not None:
                self._query.stop()
            self._spark.stop()


def _session(directory: Path) -> SparkSession:
    for library in ("pyspark", "pandas"):
        if find_spec(library) is None:
            raise LocalProtocolError(f"spark: needs {library}: pip install 'dcp-arrow[spark]', {_ADVICE}")
    try:
        options = dcp.spark.session_options()
    except LocalProtocolError as missing:
        raise LocalProtocolError(f"{missing}, {_ADVICE}") from None
    from pyspark.sql import SparkSession

    directory.mkdir()
    options |= {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    with _said_in(directory / "spark.log"), warnings.catch_warnings():
        # Spark looks at the version of pandas, of which nothing is used here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        session = SparkSession.builder.master(_MASTER).appName("dcp demo").config(map=options).getOrCreate()
    session.dataSource.register(dcp.spark.DcpDataSource)
    return session


@contextmanager
def _said_in(path: Path) -> Iterator[None]:
    """A process that is started meanwhile, such as Spark's Java, writes its errors to a file."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
