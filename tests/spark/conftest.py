"""Fixtures of the Spark tests: one session for all of them, since starting one takes longer than any test."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dcp.embedded import Cluster
from tests.spark.lakes import lake

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
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the local session. It has the format of tables with MERGE, if there is one for this version of Spark."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        # It decides, when it is first imported, whether Spark Connect can be imported.
        import pyspark.testing.utils  # noqa: F401
    from pyspark.sql import SparkSession

    import dcp.spark

    format_ = lake()

    # Two cores, and two attempts for each task.
    builder = SparkSession.builder.master("local[2, 2]").appName("dcp")
    builder = builder.config("spark.ui.port", "0").config("spark.python.task.killTimeout", "0s")
    # Sessions of Spark Connect use the same Java process.
    builder = builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    builder = builder.config("spark.connect.grpc.binding.port", "0")
    # Otherwise Spark drops columns that are not in the schema without an error.
    builder = builder.config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
    options: dict[str, Any] = dcp.spark.session_options()
    if format_ is not None:
        options |= format_.options(tmp_path_factory.mktemp("lake"))
    session = builder.config(map=options).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    session.dataSource.register(dcp.spark.DcpDataSource)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session of Spark Connect on the local session's server."""
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    session = ConnectSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Yield an empty cluster of two nodes."""
    with Cluster(nodes=2, vbuckets=8) as cluster:
        yield cluster
