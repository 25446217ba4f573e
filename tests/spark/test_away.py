"""Nodes that are away for a while, or for ever: driver and tasks wait, say so, and find the cluster again."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.spark.options import Options
from dcp.spark.planner import plan
from dcp.spark.retry import Timing
from dcp.spark.task import read_partition
from tests.spark.query import Query
from tests.spark.rows import RowReader, truth


@contextmanager
def once_logged(words: str, then: Callable[[], object]) -> Iterator[None]:
    """Call a function when the logger `dcp.spark` has logged certain words."""
    logged = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno == logging.WARNING and words in record.getMessage():
                logged.set()

    def wait() -> None:
        if logged.wait(30.0):
            then()

    handler, thread = Handler(), threading.Thread(target=wait)
    logging.getLogger("dcp.spark").addHandler(handler)
    thread.start()
    try:
        yield
    finally:
        logging.getLogger("dcp.spark").removeHandler(handler)
        logged.set()
        thread.join()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, vbuckets=12) as cluster:
        cluster.load(60)
        yield cluster


def test_a_batch_read_waits_for_a_node(cluster: Cluster) -> None:
    cluster.crash(1)
    with once_logged("repeated for", lambda: cluster.recover(1)):
        planned = plan(cluster.url)
    reader = RowReader()
    reader.read(planned)
    assert reader.documents == truth(cluster)


def test_a_read_waits_no_longer_than_its_option_says(cluster: Cluster) -> None:
    cluster.crash(1)
    with pytest.raises(dcp.TransportError):
        plan(cluster.url, node_timeout="0.1s")


def test_a_stream_that_waits_for_a_node_says_so_in_its_progress(cluster: Cluster) -> None:
    with Query(cluster.url, Timing(interval=-1.0, retry=0.0)) as query:
        query.batch()
        cluster.upsert("one more", b"{}")
        cluster.crash(1)
        with once_logged("nodeTimeout=300s", lambda: None):
            assert query.next_end() == query.offset
        progress = query.driver.reportLatestOffset() or {}
        assert progress["behind"] is None
        assert progress["waiting"]["seconds"] >= 0
        assert "refused" in progress["waiting"]["problem"]
        cluster.recover(1)
        query.batch()
        assert query.behind == 0
        assert query.reader.documents == truth(cluster)


def test_tasks_of_a_restarted_stream_are_planned_once_the_node_is_back(cluster: Cluster) -> None:
    with Query(cluster.url) as query:
        query.log_end()
        query.restart()
        cluster.crash(1)
        with once_logged("repeated for", lambda: cluster.recover(1)):
            query.batch()
        assert query.reader.documents == truth(cluster)


def test_a_task_waits_until_it_can_connect() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.load(20)
        planned = plan(cluster.url)
        cluster.crash(0)
        reader = RowReader()
        with once_logged("waiting for nodes", lambda: cluster.recover(0)):
            reader.read(planned)
        assert reader.documents == truth(cluster)


def test_a_task_finds_its_node_although_every_host_of_the_url_is_gone(cluster: Cluster) -> None:
    planned = plan(cluster.url)
    replaced = replace(planned.options, url="couchbase://127.0.0.1:1/default", node_timeout=0.0)
    reader = RowReader()
    for partition in planned.partitions:
        for batch in read_partition(partition, replaced):
            reader.apply_batch(batch)
    assert reader.documents == truth(cluster)


def test_each_task_connects_to_its_own_node_first(cluster: Cluster) -> None:
    planned = plan(cluster.url)
    assert [partition.addresses[0] for partition in planned.partitions] == [part.node for part in planned.partitions]
    assert {*planned.partitions[0].addresses} == {*cluster.addresses}
    options = Options("couchbase://one,two:77/bucket?network=default")
    assert options.login_url(["a:1", "two:77", "b:2"]) == "couchbase://a:1,one,two:77,b:2/bucket?network=default"


def test_warnings_reach_stderr_where_logging_is_not_configured() -> None:
    code = "import dcp.spark, logging; logging.getLogger('dcp.spark').warning('a node is away')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.endswith("WARNING dcp.spark: a node is away\n")
    configured = code.replace("logging;", "logging; logging.basicConfig(format='ours: %(message)s');")
    done = subprocess.run([sys.executable, "-c", configured], capture_output=True, text=True, check=True)
    assert done.stderr == "ours: a node is away\n"
