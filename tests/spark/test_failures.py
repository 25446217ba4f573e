"""Errors that Spark shows: one screen, and a reason where a worker lacks the package."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Any

import pytest
from pyspark import cloudpickle

import dcp
import dcp.spark
from dcp.embedded import Cluster
from dcp.spark.failures import portable
from dcp.spark.options import Options
from dcp.spark.source import BatchReader, DcpDataSource
from dcp.spark.stream_reader import StreamReader, TaskPartition

OPTIONS = Options.of({"url": "couchbase://host/bucket", "startingOffsets": "earliest", "columns": "key"})
PYTHON = sys.executable
# Unpickles its input as a worker does, in a Python without this package.
WORKER = "import sys; sys.modules['dcp'] = None; from pyspark import cloudpickle; cloudpickle.load(sys.stdin.buffer)"


def wrong(cluster: Cluster) -> dict[str, str]:
    """Return options with a wrong password."""
    return {"url": cluster.url.replace("right", "wrong"), "startingOffsets": "earliest"}


def test_the_traceback_of_a_wrong_password_has_no_line_of_the_client() -> None:
    with Cluster(username="ann", password="right") as cluster:
        cluster.load(10)
        options = Options.of(wrong(cluster))
        planned = dcp.spark.plan(cluster.url)
        source = DcpDataSource(wrong(cluster))
        calls: list[Any] = [
            lambda: dcp.spark.plan(options.login_url()),
            lambda: source.reader(source.schema()).partitions(),
            lambda: StreamReader(options).initialOffset(),
            lambda: StreamReader(options).latestOffset(),
            lambda: [*BatchReader(options).read(TaskPartition(planned.partitions[0]))],
        ]
        for call in calls:
            with pytest.raises(dcp.DcpError, match="the server refuses user 'ann'") as caught:
                call()
            frames = traceback.extract_tb(caught.value.__traceback__)
            assert [frame.name for frame in frames if "/dcp/client/" in frame.filename] == []
            assert len("".join(traceback.format_exception(caught.value)).splitlines()) < 20


@pytest.mark.parametrize(
    ("sent", "call"), [(BatchReader(OPTIONS), ""), (StreamReader(OPTIONS), ""), (dcp.spark.DcpDataSource, "({})")]
)
def test_a_worker_without_the_package_says_what_to_set(sent: object, call: str) -> None:
    content = cloudpickle.dumps(sent)
    done = subprocess.run([PYTHON, "-c", WORKER + call], input=content, capture_output=True, check=False)
    problem = str(done.stderr, "utf-8").splitlines()[-1]
    assert problem.startswith(f"ModuleNotFoundError: dcp: not installed for the Python of this Spark worker, {PYTHON}")
    assert "set spark.pyspark.python or PYSPARK_PYTHON" in problem


def test_a_function_of_a_task_is_unpickled_without_the_package() -> None:
    content = cloudpickle.dumps(portable(len, "four"))
    call = f"{WORKER}()"
    assert subprocess.run([PYTHON, "-c", call], input=content, check=False).returncode == 0


def test_readers_arrive_with_their_options() -> None:
    for reader in (BatchReader, StreamReader):
        assert cloudpickle.loads(cloudpickle.dumps(reader(OPTIONS)))._options == OPTIONS
