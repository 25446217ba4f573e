"""Planned reads over TAP and UPR, the dialects before DCP, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.spark.options import Options
from dcp.spark.planner import Plan, plan
from dcp.spark.stream_reader import StreamReader
from dcp.spark.task import read_partition

URL = "couchbase://host/bucket"
LEGACY = ["tap", "upr1", "upr2"]


def apply(read: Plan, documents: dict[bytes, bytes]) -> None:
    """Read a plan, and apply its rows to documents."""
    for partition in read.partitions:
        for batch in read_partition(partition, read.options):
            for row in batch.to_pylist():
                assert row["event"] in ("mutation", "deletion")
                if row["event"] == "mutation":
                    documents[row["key"]] = row["value"]
                else:
                    documents.pop(row["key"], None)


def values(cluster: Cluster) -> dict[bytes, bytes]:
    """Return the value of each document of the cluster, by key."""
    return {key: found.value for key, found in cluster.truth().items()}


@pytest.mark.parametrize("dialect", LEGACY)
def test_a_bucket_is_read(dialect: Any) -> None:
    with Cluster(nodes=2, vbuckets=4, dialect=dialect) as cluster:
        cluster.load(500)
        cluster.delete("key-0000000007")
        documents: dict[bytes, bytes] = {}
        apply(plan(cluster.url, dialect=dialect), documents)
        assert documents == values(cluster)


@pytest.mark.parametrize("dialect", ["upr1", "upr2"])
def test_a_read_over_upr_resumes_from_another(dialect: Any) -> None:
    with Cluster(nodes=2, vbuckets=4, dialect=dialect) as cluster:
        cluster.load(100)
        documents: dict[bytes, bytes] = {}
        first = plan(f"{cluster.url}&dialect={dialect}")
        apply(first, documents)
        cluster.upsert("another", b"1")
        cluster.delete("key-0000000003")
        apply(plan(cluster.url, dialect=dialect, start=first.end), documents)
        assert documents == values(cluster)


def test_the_dialect_is_an_option_of_the_url_or_of_the_read() -> None:
    assert Options.of({"url": URL}).dialect == "dcp"
    for given in ({"url": f"{URL}?dialect=tap"}, {"url": URL, "dialect": "TAP"}):
        read = Options.of(given)
        assert (read.url, read.dialect) == (f"{URL}?dialect=tap", "tap")
    with pytest.raises(dcp.LocalProtocolError, match="option dialect: expected one value, found two"):
        Options.of({"url": f"{URL}?dialect=tap", "dialect": "upr1"})
    with pytest.raises(dcp.LocalProtocolError, match="option dialect: expected tap or upr1 or upr2 or dcp, found"):
        Options.of({"url": URL, "dialect": "upr3"})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets, endingOffsets: expected earliest and latest, as TAP"),
        ({"startingOffsets": dcp.Checkpoint()}, "startingOffsets, endingOffsets: expected earliest and latest"),
        ({"endingOffsets": dcp.Checkpoint()}, "startingOffsets, endingOffsets: expected earliest and latest"),
        ({"scope": "inventory"}, "scope: TAP does not support it"),
        ({"collections": "hotel"}, "collections: TAP does not support it"),
    ],
)
def test_options_that_tap_lacks_are_refused_before_planning(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=problem):
        Options.of({"url": URL, "dialect": "tap", **options})


def test_a_stream_over_tap_is_refused() -> None:
    with pytest.raises(dcp.LocalProtocolError, match="readStream: TAP has no seqnos"):
        StreamReader(Options.of({"url": URL, "dialect": "tap"}))
