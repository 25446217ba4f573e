"""How much a batch may have."""

from __future__ import annotations

from typing import NamedTuple

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.spark.admission import bytes_per_seqno
from dcp.spark.offsets import from_offset
from dcp.spark.options import Options
from dcp.spark.planner import ranges_of
from tests.spark.test_stream import AtMost, Query, ends_of
from tests.spark.test_task import truth


class AtMostBytes(NamedTuple):
    """The limit that Spark gives, from 4.2 on."""

    max_bytes: int


def looked_at(cluster: Cluster, **options: str) -> float:
    chosen = Options.of({"url": cluster.url, **options})
    with dcp.connect(cluster.url) as client:
        ranges, _ = ranges_of(client, chosen)
        return bytes_per_seqno(client, chosen, ranges)


def test_the_first_changes_say_how_large_all_are(cluster: Cluster) -> None:
    cluster.load(20_000, value_size=1000)
    assert 1000 < looked_at(cluster, columns="key,value") < 1100
    # What is not asked for takes no room.
    assert looked_at(cluster, columns="seqno") == pytest.approx(8, abs=1)
    assert looked_at(cluster, columns="key,value", keys="nobody") == 0


def test_vbuckets_that_differ_in_length_are_looked_at_in_their_order() -> None:
    with Cluster(vbuckets=16) as cluster:
        for number in range(100):
            cluster.upsert(f"key {number}", bytes(1000))
        highs = [seqno for _, seqno in sorted(ends_of(cluster).items())]
        assert highs != sorted(highs, reverse=True)
        assert 1000 < looked_at(cluster, columns="key,value") < 1100


def test_changes_that_are_there_no_more_take_no_room(cluster: Cluster) -> None:
    for _ in range(4):
        cluster.load(100, value_size=1000)
    cluster.snapshot()
    assert 250 < looked_at(cluster, columns="key,value") < 500


def test_a_cluster_with_nothing_has_no_size(cluster: Cluster) -> None:
    assert looked_at(cluster) == 0


def test_a_collection_that_vanished_has_no_size(cluster: Cluster) -> None:
    cluster.create_collection("_default", "stock")
    cluster.load(100)
    with Query(cluster.url, collections="_default,stock", failOnDataLoss="false") as query:
        cluster.drop_collection("_default", "stock")
        query.ends = query.driver.latestOffset(query.offset, AtMostBytes(3000))
        assert query.ends != query.offset
        cluster.drop_collection("_default", "_default")
    options = {"collections": "_default,stock", "failOnDataLoss": "false"}
    with dcp.connect(cluster.url) as client:
        ranges, _ = ranges_of(client, Options.of({"url": cluster.url}))
        assert bytes_per_seqno(client, Options.of({"url": cluster.url, **options}), ranges) == 0


def test_large_documents_are_looked_at_one_by_one(cluster: Cluster) -> None:
    cluster.load(40, value_size=1 << 20)
    assert looked_at(cluster) == pytest.approx(1 << 20, rel=0.1)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, AtMostBytes(100_000)),
        ({"maxBytesPerTrigger": "100000"}, AtMost(500)),
        ({"maxBytesPerTrigger": "1g"}, AtMost(90)),
    ],
)
def test_a_batch_has_about_the_bytes_that_it_may(cluster: Cluster, options: dict[str, str], limit: object) -> None:
    cluster.load(1000, value_size=1000)
    sizes = []
    with Query(cluster.url, **options) as query:
        while (end := query.driver.latestOffset(query.offset, limit)) != query.offset:
            at = {position.vbucket: position.seqno for position in from_offset(end)}
            sizes.append(sum(from_offset(query.offset).lag(at).values()))
            query.ends = end
            query.batch()
        assert query.reader.documents == truth(cluster)
    # The columns of a row have about a hundred bytes besides.
    assert sum(sizes) == 1000
    assert all(85 < size < 100 for size in sizes[:-1])
