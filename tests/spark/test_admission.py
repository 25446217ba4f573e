"""Limits of a micro-batch in seqnos and bytes."""

from __future__ import annotations

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.spark.admission import bytes_per_seqno, limited_ends
from dcp.spark.offsets import from_offset
from dcp.spark.options import Options
from dcp.spark.planner import ranges_of
from tests.spark.query import AllAvailable, MaxBytes, MaxRows, Query
from tests.spark.rows import high_seqnos, truth


def estimate(cluster: Cluster, **options: str) -> float:
    """Return the estimated bytes for each seqno of a read."""
    chosen = Options.of({"url": cluster.url, **options})
    with dcp.connect(cluster.url) as client:
        ranges, _ = ranges_of(client, chosen)
        return bytes_per_seqno(client, chosen, ranges)


def test_the_size_is_estimated_from_the_first_changes(cluster: Cluster) -> None:
    cluster.load(20_000, value_size=1000)
    assert 1000 < estimate(cluster, columns="key,value") < 1100
    # Columns that are not read have no size.
    assert estimate(cluster, columns="seqno") == pytest.approx(8, abs=1)
    assert estimate(cluster, columns="key,value", keys="nobody") == 0


def test_vbuckets_of_different_lengths_are_sampled_in_ascending_order() -> None:
    with Cluster(vbuckets=16) as cluster:
        for number in range(100):
            cluster.upsert(f"key {number}", bytes(1000))
        highs = [seqno for _, seqno in sorted(high_seqnos(cluster).items())]
        assert highs != sorted(highs, reverse=True)
        assert 1000 < estimate(cluster, columns="key,value") < 1100


def test_replaced_changes_have_no_size(cluster: Cluster) -> None:
    for _ in range(4):
        cluster.load(100, value_size=1000)
    cluster.snapshot()
    assert 250 < estimate(cluster, columns="key,value") < 500


def test_changes_of_which_none_arrives_have_no_size(cluster: Cluster) -> None:
    cluster.load(100)
    with cluster.fault("silent"):
        assert estimate(cluster) == 0


def test_an_empty_cluster_has_no_size(cluster: Cluster) -> None:
    assert estimate(cluster) == 0


def test_a_dropped_collection_has_no_size(cluster: Cluster) -> None:
    cluster.create_collection("_default", "stock")
    cluster.load(100)
    with Query(cluster.url, collections="_default,stock", failOnDataLoss="false") as query:
        cluster.drop_collection("_default", "stock")
        query.end = query.next_end(MaxBytes(3000))
        assert query.end != query.offset
        cluster.drop_collection("_default", "_default")
    options = {"collections": "_default,stock", "failOnDataLoss": "false"}
    with dcp.connect(cluster.url) as client:
        ranges, _ = ranges_of(client, Options.of({"url": cluster.url}))
        assert bytes_per_seqno(client, Options.of({"url": cluster.url, **options}), ranges) == 0


def test_a_sample_of_large_documents_stops_early(cluster: Cluster) -> None:
    cluster.load(40, value_size=1 << 20)
    assert estimate(cluster) == pytest.approx(1 << 20, rel=0.1)


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, MaxBytes(100_000)),
        ({"maxBytesPerTrigger": "100000"}, MaxRows(500)),
        ({"maxBytesPerTrigger": "1g"}, MaxRows(90)),
    ],
)
def test_a_batch_has_about_as_many_bytes_as_its_limit(cluster: Cluster, options: dict[str, str], limit: object) -> None:
    cluster.load(1000, value_size=1000)
    sizes = []
    with Query(cluster.url, **options) as query:
        while (end := query.next_end(limit)) != query.offset:
            at = {position.vbucket: position.seqno for position in from_offset(end)}
            sizes.append(sum(from_offset(query.offset).lag(at).values()))
            query.end = end
            query.batch()
        assert query.reader.documents == truth(cluster)
    # Besides its value of 1,000 bytes, a row has about a hundred.
    assert sum(sizes) == 1000
    assert all(85 < size < 100 for size in sizes[:-1])


def test_a_limit_below_the_size_of_a_change_leaves_one_change() -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.load(3, value_size=1000)
        with Query(cluster.url) as query:
            ends = []
            while (end := query.next_end(MaxBytes(10))) != query.offset:
                ends += [position.seqno for position in from_offset(end)]
                query.end = end
                query.batch()
    assert ends == [1, 2, 3]


def test_a_vbucket_that_has_everything_gets_nothing() -> None:
    ends = limited_ends({0: 10, 1: 5, 2: 9}, {0: 10, 1: 1005, 2: 8}, 100)
    assert (ends[0], ends[1]) == (10, 105)
    assert ends[2] == 8


def test_the_sample_does_not_wait_for_the_disks(cluster: Cluster) -> None:
    """Changes that are on no disk yet have a size, too: the task waits for the disks."""
    for node in (0, 1):
        cluster.set_persistence(node, False)
    for number in range(100):
        cluster.upsert(f"key {number}", bytes(1000))
    assert estimate(cluster, columns="key,value", persistedOnly="true") > 500


@pytest.mark.parametrize("limit", [None, AllAvailable()])
def test_a_batch_without_a_limit_has_everything_whatever_the_options_say(cluster: Cluster, limit: object) -> None:
    cluster.load(100, value_size=1000)
    with Query(cluster.url, maxBytesPerTrigger="2000") as query:
        ends = {position.vbucket: position.seqno for position in from_offset(query.next_end(limit))}
    assert ends == high_seqnos(cluster)
