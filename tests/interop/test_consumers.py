"""DCP clients of others read an embedded cluster, whole and through trouble."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from dcp.embedded import Cluster
from dcp.errors import UsageError
from tests.interop.programs import CONSUMERS, Consumer, Process, Start, connection, truth
from tests.waiting import until

RELEASES = ("7.0", "7.2", "7.6", "8.0")


def fill(cluster: Cluster) -> None:
    """Write documents of two collections, and delete some."""
    cluster.create_scope("shop")
    cluster.create_collection("shop", "order")
    cluster.load(300, value_size=200)
    for number in range(100):
        cluster.upsert(f"order-{number}", b'{"total":%d}' % number, collection="shop.order")
    for number in range(0, 100, 7):
        cluster.delete(f"order-{number}", collection="shop.order")


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("options", [{}, {"snappy": "on"}], ids=["plain", "snappy"])
def test_everything_is_read(start: Start, version: str, options: dict[str, str]) -> None:
    with Cluster(nodes=2, vbuckets=64, password="s3cret", server_version=version) as cluster:
        fill(cluster)
        with start(cluster, **options) as program:
            until(lambda: program.state() == truth(cluster))
            cluster.upsert("later", b"1")
            until(lambda: program.state() == truth(cluster))


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("options", [{}, {"snappy": "on"}], ids=["plain", "snappy"])
def test_everything_is_read_over_tls(start: Start, version: str, options: dict[str, str]) -> None:
    with Cluster(nodes=2, vbuckets=64, password="s3cret", tls=True, server_version=version) as cluster:
        fill(cluster)
        with start(cluster, tls=True, **options) as program:
            until(lambda: program.state() == truth(cluster))


def test_a_small_window_only_takes_longer(start: Start) -> None:
    with Cluster(nodes=2, vbuckets=64, password="s3cret") as cluster:
        cluster.load(3000, value_size=500)
        with start(cluster, window=20_000) as program:
            until(lambda: program.state() == truth(cluster))


@pytest.mark.parametrize("version", RELEASES)
def test_one_collection_is_read(start: Start, version: str) -> None:
    with Cluster(nodes=2, vbuckets=64, password="s3cret", server_version=version) as cluster:
        fill(cluster)
        chosen = {"collection": "shop.order", "collection_id": cluster.collection_ids()["shop.order"]}
        with start(cluster, **chosen) as program:
            until(lambda: program.state() == truth(cluster, "shop.order"))
            cluster.upsert("elsewhere", b"1")
            cluster.upsert("here", b"2", collection="shop.order")
            until(lambda: program.state() == truth(cluster, "shop.order"))


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("consumer", ["gocbcore"], indirect=True)
def test_the_first_snapshot_of_a_collection_may_be_out_of_order(start: Start, version: str) -> None:
    with Cluster(nodes=2, vbuckets=64, password="s3cret", server_version=version) as cluster:
        fill(cluster)
        cluster.snapshot()
        chosen = cluster.collection_ids()["shop.order"]
        with start(cluster, collection_id=chosen, oso="on") as program:
            until(lambda: program.state() == truth(cluster, "shop.order"))
            cluster.upsert("here", b"2", collection="shop.order")
            until(lambda: program.state() == truth(cluster, "shop.order"))
            assert int(program.ask("out-of-order")) > 0


@pytest.mark.parametrize("consumer", ["java-dcp-client", "java-dcp-client-low"], indirect=True)
def test_mitigation_holds_back_what_not_all_copies_have(start: Start, tmp_path: Path) -> None:
    other = Process(CONSUMERS["java-dcp-client"], tmp_path / "errors.txt")
    with Cluster(nodes=2, vbuckets=16, replicas=1, password="s3cret") as cluster, closing(other):
        cluster.load(100)
        with start(cluster, mitigate=50) as careful, Consumer(other, connection(cluster)) as careless:
            until(lambda: careful.state() == careless.state() == truth(cluster))
            before = truth(cluster)
            cluster.set_persistence(1, False)
            cluster.load(100, prefix="held-")
            until(lambda: careless.state() == truth(cluster))
            assert careful.state() == before
            cluster.set_persistence(1, True)
            until(lambda: careful.state() == truth(cluster))


def lossy_failover(cluster: Cluster) -> None:
    cluster.failover(0, lose=3)


def two_lossy_failovers(cluster: Cluster) -> None:
    cluster.failover(0, lose=3)
    cluster.load(50, prefix="between-")
    cluster.recover(0)
    cluster.failover(1, lose=2)


def failover_without_loss(cluster: Cluster) -> None:
    cluster.failover(1)


def moves(cluster: Cluster) -> None:
    for vbucket in range(8):
        # Its owner keeps what it has already.
        with suppress(UsageError):
            cluster.move(vbucket, 2)


def rebalance_in(cluster: Cluster) -> None:
    cluster.rebalance_in()


def rebalance_out(cluster: Cluster) -> None:
    cluster.rebalance_out(1)


def crash_and_recovery(cluster: Cluster) -> None:
    cluster.crash(0)
    cluster.recover(0, lose=2)


def restart(cluster: Cluster) -> None:
    cluster.restart(0)


def cuts(cluster: Cluster) -> None:
    cluster.fault("cut", sent=500, times=3)


def rollback_chain(cluster: Cluster) -> None:
    cluster.fault("rollback", to="4,2,0", times=20)
    cluster.fault("cut", times=2)


def split_segments(cluster: Cluster) -> None:
    cluster.fault("split", size=7, times=200)
    cluster.fault("cut", times=1)


def purge(cluster: Cluster) -> None:
    for number in range(20):
        cluster.delete(f"key-{number:010d}")
    cluster.snapshot()
    cluster.purge()
    cluster.fault("cut", times=2)


TROUBLE = [
    lossy_failover,
    two_lossy_failovers,
    failover_without_loss,
    moves,
    rebalance_in,
    rebalance_out,
    crash_and_recovery,
    restart,
    cuts,
    rollback_chain,
    split_segments,
    purge,
]


@pytest.mark.parametrize("trouble", TROUBLE, ids=lambda trouble: trouble.__name__)
@pytest.mark.parametrize("consumer", ["java-dcp-client"], indirect=True)
def test_a_tail_lives_through_trouble(start: Start, trouble: Callable[[Cluster], None]) -> None:
    with Cluster(nodes=3, vbuckets=16, replicas=1, password="s3cret") as cluster:
        cluster.load(200)
        with start(cluster) as program:
            until(lambda: program.state() == truth(cluster))
            trouble(cluster)
            cluster.load(100, prefix="after-")
            until(lambda: program.state() == truth(cluster))


# Where a peer is wrong for a reason of its own. These tests fail when it no longer is.


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("consumer", ["gocbcore"], indirect=True)
def test_gocbcore_misreads_deletions_with_a_stream_id(start: Start, counted: bool) -> None:
    """Servers since 6.5 do not count the 3 bytes of the stream id in the header of deletions.

    gocbcore takes them for the beginning of the extras, so that seqno, collection and key are others, and the document
    stays. It reads the form that the protocol describes, which the fault sends.
    """
    with Cluster(nodes=1, vbuckets=1, password="s3cret") as cluster:
        cluster.upsert("deleted", b"1")
        if counted:
            cluster.fault("stream_ids", counted=True)
        with start(cluster, collection_id=0, stream=5) as program:
            until(lambda: program.state() == truth(cluster))
            cluster.delete("deleted")
            cluster.upsert("later", b"2")
            if counted:
                until(lambda: program.state() == truth(cluster))
            else:
                until(lambda: program.state().documents == 2)


@pytest.mark.parametrize("consumer", ["java-dcp-client"], indirect=True)
def test_java_dcp_client_leaves_a_vbucket_closed_after_a_temporary_failure(start: Start) -> None:
    """It logs the status of the refused stream request, and does not request the stream again."""
    with Cluster(nodes=2, vbuckets=16, replicas=1, password="s3cret") as cluster:

        def without(vbucket: int) -> int:
            """Return the number of documents outside of a vbucket, and of those that were there before the failure."""
            return sum(found.vbucket != vbucket or key.startswith(b"key-") for key, found in cluster.truth().items())

        cluster.load(200)
        with start(cluster) as program:
            until(lambda: program.state() == truth(cluster))
            cluster.fault("refuse", status="ETMPFAIL", times=1)
            cluster.fault("cut", times=1)
            cluster.load(200, prefix="after-")
            expected = {without(vbucket): vbucket for vbucket in range(16)}
            until(lambda: program.state().documents in expected)
            closed = expected[program.state().documents]
            cluster.load(200, prefix="still-")
            until(lambda: program.state().documents == without(closed))
