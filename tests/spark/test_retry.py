"""Queries that are repeated while the cluster changes, and how long that is tolerated."""

from __future__ import annotations

import time

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.spark.retry import OutageTimer, retry


def test_a_query_is_repeated_with_a_newer_map() -> None:
    with Cluster(nodes=2, vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        before = client.map.revision

        def query() -> int:
            if client.map.revision == before:
                raise dcp.TransportError("the vbucket has moved")
            return 7

        cluster.move(0, 1)
        cluster.move(0, 0)
        assert retry(client, query, 10.0) == 7


@pytest.mark.parametrize("error", [dcp.UsageError("wrong"), dcp.TransportError("no answer")])
def test_a_query_is_not_repeated_after_its_time_or_an_error_that_does_not_pass(error: dcp.DcpError) -> None:
    calls = 0

    def query() -> None:
        nonlocal calls
        calls += 1
        raise error

    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client, pytest.raises(type(error)):
        retry(client, query, -1.0 if error.retriable else 3600.0)
    assert calls == 1


def test_an_outage_lasts_from_its_first_failure_to_the_next_answer() -> None:
    begun_at, outage = time.monotonic(), OutageTimer(3600.0)
    assert (outage.seconds, outage.problem) == (0.0, None)
    for error in (dcp.TransportError("the first"), dcp.TransportError("the second")):
        outage.failed(error)
        assert outage.problem is error
    assert 0.0 <= outage.seconds <= time.monotonic() - begun_at
    outage.answered()
    assert (outage.seconds, outage.problem) == (0.0, None)


def test_an_outage_is_an_error_after_its_timeout_since_the_first_failure() -> None:
    outage = OutageTimer(0.0)
    outage.failed(dcp.TransportError("the first"))
    while not outage.seconds:
        pass
    with pytest.raises(dcp.TransportError, match="the second"):
        outage.failed(dcp.TransportError("the second"))


def test_an_error_that_does_not_pass_is_no_outage() -> None:
    with pytest.raises(dcp.UsageError):
        OutageTimer(3600.0).failed(dcp.UsageError("wrong"))
