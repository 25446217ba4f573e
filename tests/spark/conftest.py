"""Fixtures of the Spark tests: one session for all of them, since starting one takes longer than any test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dcp.embedded import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In the environment, so that processes that tests start use it as well.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "conf")
collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this directory."""
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            item.add_marker("spark")
            # With pytest-xdist, one process runs all of them: a second session would not fit on the machine.
            item.add_marker(pytest.mark.xdist_group("spark"))
            if _leaves_sockets_open():
                item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


def _leaves_sockets_open() -> bool:
    """Return whether this Spark leaves sockets to the garbage collector, which warns about them: 4.0 and 4.1."""
    return find_spec("pyspark") is not None and version("pyspark").startswith(("4.0.", "4.1."))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield the local session."""
    from pyspark.sql import SparkSession

    import dcp.spark

    # Two cores, and two attempts for each task.
    builder = SparkSession.builder.master("local[2, 2]").appName("dcp")
    builder = builder.config("spark.ui.port", "0").config("spark.python.task.killTimeout", "0s")
    # Otherwise Spark drops columns that are not in the schema without an error.
    builder = builder.config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
    options: dict[str, Any] = dcp.spark.session_options()
    session = builder.config(map=options).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(dcp.spark.DcpDataSource)
    yield session
    session.stop()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Yield an empty cluster of two nodes."""
    with Cluster(nodes=2, vbuckets=8) as cluster:
        yield cluster
