"""A user who may read one collection: ends, starts and times are found from that collection's seqnos."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster, User
from tests.cli.commands import run

HOTEL = "inventory.hotel"
HOTELS = {b"hotel-%d" % number for number in range(12)}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    users = [
        User("reader", "s3cret", collections=frozenset({HOTEL})),
        User("scoped", "s3cret", collections=frozenset({"inventory"})),
    ]
    with Cluster(vbuckets=8, nodes=2, password="s3cret", users=users) as cluster:
        cluster.create_scope("inventory")
        cluster.create_collection("inventory", "hotel")
        for number in range(12):
            cluster.upsert(f"hotel-{number}", b"1", collection=HOTEL)
        # The newest changes of the bucket are none of the reader's.
        for number in range(12):
            cluster.upsert(f"other-{number}", b"1")
        yield cluster


def connect(cluster: Cluster, user: str = "reader") -> dcp.Client:
    return dcp.connect(f"couchbase://{user}:s3cret@{cluster.addresses[0]}/default")


def keys(batch: dcp.Batch) -> list[bytes]:
    return [row["key"] for row in batch.to_arrow().to_pylist() if row["event"] == "mutation"]


@pytest.mark.parametrize(("user", "chosen"), [("reader", {"collections": HOTEL}), ("scoped", {"scope": "inventory"})])
def test_a_read_ends_at_the_newest_change_of_the_collection(
    cluster: Cluster, user: str, chosen: dict[str, Any]
) -> None:
    with connect(cluster, user) as client, client.stream(start="beginning", end="now", **chosen) as stream:
        assert {key for batch in stream for key in keys(batch)} == HOTELS


def test_a_stream_from_now_begins_behind_the_newest_change(cluster: Cluster) -> None:
    with connect(cluster) as client, client.stream(start="now", collections=HOTEL) as stream:
        cluster.upsert("hotel-new", b"1", collection=HOTEL)
        assert keys(next(iter(stream))) == [b"hotel-new"]


def test_a_time_is_searched_for_in_the_collection(cluster: Cluster) -> None:
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    with connect(cluster) as client:
        with client.stream(start=hour_ago, end="now", collections=HOTEL) as stream:
            assert {key for batch in stream for key in keys(batch)} == HOTELS
        assert sum(client.heads(collections=HOTEL).high_seqnos.values()) > 0


def test_a_copy_has_the_collection(cluster: Cluster, tmp_path: Path) -> None:
    url = f"couchbase://reader:s3cret@{cluster.addresses[0]}/default"
    copied = run("copy", url, tmp_path / "out.ndjson", "--collection", HOTEL)
    assert "12 changes" in copied.output


def test_the_whole_bucket_is_refused(cluster: Cluster) -> None:
    with (
        connect(cluster) as client,
        pytest.raises(dcp.ServerError, match="may not read the whole bucket: grant the role data_dcp_reader"),
    ):
        client.stream(end="now")
