"""Documents that a cluster refuses, and the documents that it returns."""

from __future__ import annotations

from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"key": ""}, "key: expected 1 to 250 bytes, found 0"),
    ({"key": "x" * 300}, "key: expected 1 to 250 bytes, found 300"),
    ({"expiry": -1}, "expiry: expected 0 to 4294967295, found -1"),
    ({"flags": 1 << 40}, "flags: expected 0 to 4294967295, found 1099511627776"),
    ({"datatype": 300}, "datatype: expected 0 to 7, found 300"),
    ({"datatype": 4}, "value: expected bytes of datatype 4, found others: xattrs: length at byte 0"),
    ({"datatype": 2}, "value: expected bytes of datatype 2, found others: not a Snappy block"),
    ({"value": bytes(22 << 20)}, "value: expected at most 22020096 bytes, found 23068672"),
]


@pytest.mark.parametrize(("parts", "expected"), WRONG, ids=[expected[:24] for _, expected in WRONG])
def test_documents_that_no_server_stores_are_refused(parts: dict[str, Any], expected: str) -> None:
    with Cluster(vbuckets=2) as cluster, pytest.raises(dcp.LocalProtocolError, match=expected):
        cluster.upsert(**{"key": "k", "value": "v"} | parts)


def test_the_truth_is_what_a_consumer_sees() -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.upsert("k", '{"a":1}', xattrs={"_sys": "[1]"})
        assert cluster.truth()[b"k"].value == b'{"a":1}'


def test_a_cluster_may_be_closed_twice() -> None:
    cluster = Cluster(vbuckets=2)
    cluster.close()
    cluster.close()


def test_the_url_of_an_old_server_selects_its_mechanism() -> None:
    with Cluster(vbuckets=2, server_version="3.0") as cluster:
        cluster.load(10)
        with dcp.connect(cluster.url) as client:
            assert sum(map(len, client.stream(end="now"))) == 10


def test_a_slow_node_is_given_up_after_the_timeout() -> None:
    with (
        Cluster(vbuckets=2) as cluster,
        # Slow enough to exceed the timeout, but each single read gets a byte in time.
        cluster.fault("slow", rate=50),
        pytest.raises(dcp.TransportError, match=r"no answer within 0\.3 s"),
    ):
        dcp.connect(cluster.url, bootstrap_timeout=0.3)
