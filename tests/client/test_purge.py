"""Purged deletions are never missed silently."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone

import pytest

import dcp
from dcp.embedded import Cluster, Privilege, User
from tests.client.consumer import Consumer, truth


def read(stream: dcp.ChangeStream) -> list[dict[str, object]]:
    return [row for batch in stream for row in batch.to_arrow().to_pylist()]


def deleted_and_forgotten(cluster: Cluster, client: dcp.Client) -> dcp.Checkpoint:
    """Return a checkpoint from before some deletions, of which all but the last are purged; the last has seqno 150."""
    cluster.load(100)
    stream = client.stream(end="now")
    read(stream)
    for n in range(50):
        cluster.delete(f"key-{n:010d}")
    cluster.upsert("last", b"1")
    cluster.snapshot()
    assert cluster.purge() == 50
    return stream.checkpoint


def test_who_would_miss_deletions_gets_everything_again() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        before = deleted_and_forgotten(cluster, client)
        stream = client.stream(before, "now")
        rows = read(stream)
        assert (rows[0]["event"], rows[0]["seqno"], rows[0]["snapshot_end"]) == ("rollback", 0, 100)
        assert {row["event"] for row in rows[1:]} == {"mutation"}
        assert len(rows) == 1 + len(truth(cluster))
        (position,) = stream.checkpoint
        assert position.purge_seqno == 150


# From 8.0 on markers have the purge seqno; of older servers the statistics have it.
RELEASES = ["7.2", "7.6", "8.0"]


@pytest.mark.parametrize("release", RELEASES)
def test_deletions_that_may_be_missing_are_reported(release: str, caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(vbuckets=1, server_version=release) as cluster, dcp.connect(cluster.url) as client:
        before = deleted_and_forgotten(cluster, client)
        rows = read(client.stream(before, "now", ignore_purged=True))
        first, *others = rows
        assert (first["event"], first["seqno"], first["snapshot_end"]) == ("purged", 100, 150)
        assert [(row["event"], row["key"]) for row in others] == [("mutation", b"last")]
        assert "deletions up to seqno 150 were purged, and the stream began at 100" in caplog.text


# The privileges of the role Data DCP Reader.
READER = User("reader", "s3cret", frozenset({Privilege.READ, Privilege.DCP}))


def test_a_user_that_may_not_read_statistics_is_told_that_no_purge_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Cluster(vbuckets=1, server_version="7.6", users=[READER]) as cluster, dcp.connect(cluster.url) as client:
        before = deleted_and_forgotten(cluster, client)
        assert client.purge_seqnos() == {0: 150}
        url = cluster.url.replace(f"{cluster.credentials.username}:{cluster.credentials.password}", "reader:s3cret")
        with dcp.connect(url) as reader:
            for _ in range(2):
                assert reader.purge_seqnos() == {}
            told = "grant the role data_monitoring on the bucket (status 0x24); purged deletions are not reported"
            assert caplog.text.count(told) == 1
            caplog.clear()
            rows = read(reader.stream(before, "now", ignore_purged=True))
        assert [row["event"] for row in rows] == ["mutation"]
        assert "the user may not read statistics; grant the role data_monitoring on the bucket" in caplog.text
        assert "purged deletions are not reported" in caplog.text


@pytest.mark.parametrize("release", RELEASES)
def test_purged_deletions_that_were_delivered_are_not_reported(release: str, caplog: pytest.LogCaptureFixture) -> None:
    with Cluster(vbuckets=1, server_version=release) as cluster, dcp.connect(cluster.url) as client:
        deleted_and_forgotten(cluster, client)
        stream = client.stream(end="now")
        read(stream)
        cluster.upsert("more", b"1")
        with caplog.at_level(logging.WARNING, "dcp.client"):
            rows = read(client.stream(stream.checkpoint, "now", ignore_purged=True))
        assert [row["event"] for row in rows] == ["mutation"]
        assert caplog.text == ""


def test_a_time_before_the_purge_says_what_may_be_missing() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(300)
        start = min(
            datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=(row.cas & ~0xFFFF) // 1000)
            for row in cluster.truth().values()
        )
        for n in range(200, 300):
            cluster.delete(f"key-{n:010d}")
        cluster.upsert("last", b"1")
        cluster.purge()
        stream = client.stream(start + timedelta(microseconds=200), "now", columns=["event", "key", "seqno"])
        rows = read(stream)
        assert stream.found["start"][0].how == "purged"
        assert [row["event"] for row in rows].count("purged") == 1
        assert (rows[0]["event"], rows[0]["seqno"]) == ("purged", 0)


def test_servers_that_do_not_know_the_wish_refuse_it() -> None:
    with Cluster(vbuckets=1, server_version="6.5") as cluster, dcp.connect(cluster.url) as client:
        before = deleted_and_forgotten(cluster, client)
        with pytest.raises(dcp.ServerError, match="ignore_purged"):
            read(client.stream(before, "now", ignore_purged=True))
        consumer = Consumer()
        for batch in client.stream(before, "now"):
            consumer.take(batch)
        assert consumer.state() == truth(cluster)
