"""One session and one cluster for all tests of Spark: both take longer to start than any test."""

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

# The processes that tests start have it, too.
os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "conf")
collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            item.add_marker("spark")
            # Processes that share the tests have one session among them: it fills the machine.
            item.add_marker(pytest.mark.xdist_group("spark"))
            if _leaves_sockets_open():
                item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


def _leaves_sockets_open() -> bool:
    """Spark 4.0 and 4.1 leave those that it fetches rows over to the garbage collector, which says so."""
    return find_spec("pyspark") is not None and version("pyspark").startswith(("4.0.", "4.1."))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    import dcp.spark

    # A task may fail once.
    builder = SparkSession.builder.master("local[2, 2]").appName("dcp")
    builder = builder.config("spark.ui.port", "0").config("spark.python.task.killTimeout", "0s")
    # What a batch has besides what its schema says would be dropped without a word.
    builder = builder.config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
    options: dict[str, Any] = dcp.spark.session_options()
    session = builder.config(map=options).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(dcp.spark.DcpDataSource)
    yield session
    session.stop()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=8) as cluster:
        yield cluster
