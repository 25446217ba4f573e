"""Refusals that pass: whatever a node refuses for a while, a stream that has begun is complete and exact."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import dcp
from dcp.client.follow.patience import RefusalPatience
from dcp.embedded import Cluster
from dcp.session.refusals import (
    GET_MAP,
    OF_DOCUMENTS,
    OPEN,
    REFUSALS,
    SASL,
    SELECT,
    STEPS,
    STREAM_REQUEST,
    Reaction,
    reaction,
    refused,
)
from dcp.wire.memcached import Status
from tests.client.consumer import PATIENCE, Consumer, catch_up
from tests.spark.ports import at_a_port_of_its_own
from tests.waiting import until

# The node that refuses, and how often.
BAD, TIMES = 1, 3
# A status that no table has.
UNHEARD_OF = 0x7777


def test_every_status_has_one_row() -> None:
    rows = [status for row in REFUSALS for status in row.statuses]
    assert len(rows) == len(set(rows))
    assert set(rows) | OF_DOCUMENTS | {Status.SUCCESS} == set(Status)
    assert not OF_DOCUMENTS & set(rows)


def test_refusals_count_as_long_as_they_follow_each_other() -> None:
    patience, error = RefusalPatience(600.0), refused(SELECT, "the bucket is not ready", Status.ETMPFAIL)

    def ended(*times: float) -> list[bool]:
        return [patience.exhausted("node:11210", "node:11210", error, now) is not None for now in times]

    assert ended(0.0, 50.0, 100.0) == [False] * 3
    # The node could not be reached in between.
    assert ended(700.0, *range(750, 1300, 50)) == [False] * 12
    assert ended(1300.0) == [True]
    patience.forget("node:11210")
    assert ended(1301.0) == [False]


def test_rows_name_no_step_that_is_none() -> None:
    assert all(set(row.reactions) <= set(STEPS) for row in REFUSALS)


def test_a_request_that_was_accepted_has_all_its_time_again() -> None:
    """The refusals before it and after it are no series, however close they are."""
    with (
        Cluster(vbuckets=1) as cluster,
        dcp.connect(cluster.url, refusal_timeout=1) as client,
        client.stream() as stream,
    ):
        for key in ("one", "two"):
            refused = cluster.fault("refuse", command="stream_request", status="ETMPFAIL", times=1)
            cluster.fault("end", times=1)
            cluster.upsert(key, b"1")
            assert stream.next(PATIENCE) is not None
            accepted = time.monotonic()
            assert refused.hits == 1
            while time.monotonic() < accepted + 1.1:
                with pytest.raises(dcp.TimeoutError):
                    stream.next(0.5)


@pytest.mark.parametrize("step", STEPS)
def test_what_the_table_does_not_know_is_retried_within_the_limit(step: str) -> None:
    assert {reaction(step, status) for status in (UNHEARD_OF, *OF_DOCUMENTS)} == {Reaction.RETRY}


def repeated() -> Iterator[tuple[str, int]]:
    """Yield each step with one status of each row that is repeated there."""
    for step in STEPS:
        yield from ((step, row.statuses[0]) for row in REFUSALS if row.reaction(step).repeats)
        yield step, UNHEARD_OF


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(100)
        yield cluster


def lose_connections(cluster: Cluster) -> None:
    cluster.fault("partition", node=BAD).clear()


def write(cluster: Cluster) -> None:
    for number in range(20):
        cluster.upsert(f"later-{number}", b"{}")


def read_on(stream: dcp.ChangeStream, consumer: Consumer, cluster: Cluster) -> None:
    """Consume what was written since, and check that nothing arrived twice."""
    catch_up(stream, consumer, cluster)
    for log in consumer.rows.values():
        assert [row.seqno for row in log] == sorted({row.seqno for row in log})
    assert not consumer.rollbacks


def read_to_the_end(stream: dcp.ChangeStream) -> None:
    while stream.next(PATIENCE) is not None:
        pass


@pytest.mark.parametrize(("step", "status"), [*repeated()])
def test_a_refusal_that_passes_is_outlived(cluster: Cluster, step: str, status: int) -> None:
    consumer = Consumer()
    with dcp.connect(cluster.url) as client, client.stream() as stream:
        read_on(stream, consumer, cluster)
        with cluster.fault("refuse", command=step, status=status, node=BAD, times=TIMES) as fault:
            lose_connections(cluster)
            write(cluster)
            read_on(stream, consumer, cluster)
            assert fault.hits
        assert client.stats().reconnects


ENDLESS = [
    *((step, Status.ETMPFAIL) for step in STEPS if step != GET_MAP),
    (SELECT, Status.KEY_ENOENT),
    (SELECT, Status.EACCESS),
    (OPEN, Status.NO_BUCKET),
    (STREAM_REQUEST, Status.NO_BUCKET),
    (STREAM_REQUEST, Status.NOT_MY_VBUCKET),
    (STREAM_REQUEST, UNHEARD_OF),
]


@pytest.mark.parametrize(("step", "status"), ENDLESS)
def test_an_endless_refusal_ends_the_stream_when_patience_is_over(cluster: Cluster, step: str, status: int) -> None:
    consumer = Consumer()
    address = cluster.addresses[BAD]
    with dcp.connect(cluster.url, refusal_timeout=0.2) as client, client.stream() as stream:
        read_on(stream, consumer, cluster)
        with cluster.fault("refuse", command=step, status=status, node=BAD):
            lose_connections(cluster)
            told = rf"{step} was refused with \w+( 0x\w+)? for 0\.\d+ s \(refusal_timeout\)"
            with pytest.raises(dcp.ServerError, match=told) as ended:
                read_to_the_end(stream)
    error = ended.value
    assert (error.node, error.step, error.status) == (address, step, status)
    assert error.retriable == reaction(step, status).passes


@pytest.mark.parametrize(
    ("step", "status"),
    [(SASL, Status.AUTH_ERROR), (OPEN, Status.EACCESS), (STREAM_REQUEST, Status.UNKNOWN_COLLECTION)],
)
def test_a_refusal_that_hardly_passes_ends_the_stream_after_some_answers(
    cluster: Cluster, step: str, status: int
) -> None:
    consumer = Consumer()
    with dcp.connect(cluster.url) as client, client.stream() as stream:
        read_on(stream, consumer, cluster)
        with cluster.fault("refuse", command=step, status=status, node=BAD):
            lose_connections(cluster)
            with pytest.raises(dcp.ServerError) as ended:
                read_to_the_end(stream)
    assert (ended.value.step, ended.value.status, ended.value.retriable) == (step, status, False)


@pytest.mark.parametrize("status", [Status.EINVAL, Status.NOT_SUPPORTED])
def test_a_refusal_that_does_not_pass_ends_the_stream_at_once(cluster: Cluster, status: Status) -> None:
    with (
        dcp.connect(cluster.url) as client,
        cluster.fault("refuse", status=status, node=BAD, times=1),
        client.stream() as stream,
        pytest.raises(dcp.ServerError, match=status.name),
    ):
        read_to_the_end(stream)


def test_without_a_map_from_one_node_streams_continue(cluster: Cluster) -> None:
    consumer = Consumer()
    with dcp.connect(cluster.url, refusal_timeout=0.1) as client, client.stream() as stream:
        read_on(stream, consumer, cluster)
        with cluster.fault("refuse", command=GET_MAP, node=BAD) as fault:
            lose_connections(cluster)
            until(lambda: fault.hits)
            write(cluster)
            read_on(stream, consumer, cluster)


DEFECTS = ["no_vbuckets", "no_locator", "other_bucket"]


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_map_that_cannot_be_used_is_fetched_again(cluster: Cluster, defect: str) -> None:
    consumer = Consumer()
    with dcp.connect(cluster.url) as client, client.stream() as stream:
        read_on(stream, consumer, cluster)
        with cluster.fault("bad_map", defect=defect, node=BAD, times=TIMES) as fault:
            lose_connections(cluster)
            write(cluster)
            read_on(stream, consumer, cluster)
            assert fault.hits


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_pushed_map_that_cannot_be_used_is_fetched_again(cluster: Cluster, defect: str) -> None:
    consumer = Consumer()
    with dcp.connect(cluster.url) as client, client.stream() as stream:
        read_on(stream, consumer, cluster)
        with cluster.fault("bad_map", defect=defect, times=TIMES) as fault:
            cluster.move(0, BAD)
            write(cluster)
            read_on(stream, consumer, cluster)
            assert fault.hits
            assert client.map.name == "default"


def test_maps_that_never_become_usable_end_the_stream(cluster: Cluster) -> None:
    with dcp.connect(cluster.url, refusal_timeout=0.2) as client, client.stream() as stream:
        read_on(stream, Consumer(), cluster)
        with cluster.fault("bad_map", node=BAD):
            lose_connections(cluster)
            with pytest.raises(dcp.ServerError, match=r"cannot be used: .* was refused for") as ended:
                read_to_the_end(stream)
    assert ended.value.retriable


@pytest.mark.parametrize("step", [SASL, SELECT, GET_MAP])
@pytest.mark.parametrize("status", [Status.KEY_ENOENT, Status.EACCESS, Status.ETMPFAIL, Status.EINVAL])
def test_one_good_host_of_the_url_is_enough(cluster: Cluster, step: str, status: Status) -> None:
    with cluster.fault("refuse", command=step, status=status, node=0), dcp.connect(cluster.url) as client:
        assert client.map.num_vbuckets == 4


def test_a_refusal_by_all_hosts_says_more_than_that_others_cannot_be_reached(cluster: Cluster) -> None:
    addresses = cluster.url
    cluster.crash(0)
    with cluster.fault("refuse", command=SASL, status=Status.AUTH_ERROR), pytest.raises(dcp.AuthenticationError):
        dcp.connect(addresses)


@pytest.mark.parametrize("status", [Status.ETMPFAIL, Status.EINTERNAL])
def test_a_stream_does_not_begin_without_the_failover_log_of_a_busy_node(cluster: Cluster, status: Status) -> None:
    with dcp.connect(cluster.url) as client:
        with (
            cluster.fault("refuse", command="kv_get_failover_log", status=status, node=BAD),
            pytest.raises(dcp.ServerError, match="refused to send the failover log") as refusal,
        ):
            client.stream("now")
        assert refusal.value.retriable
        with cluster.fault("refuse", command="kv_get_failover_log", status=Status.NOT_MY_VBUCKET, node=BAD):
            assert len(client.failover_logs()) == 2


def test_a_cluster_in_the_place_of_another_is_not_streamed() -> None:
    """Its map is no newer one, and its answer to the position of another bucket would be a rollback to 0."""
    cluster, port = at_a_port_of_its_own(vbuckets=2)
    with cluster, dcp.connect(cluster.url, refusal_timeout=1) as client, client.stream() as stream:
        cluster.upsert("key", b"1")
        assert stream.next(PATIENCE) is not None
        uuid, password = client.map.uuid, cluster.credentials.password
        cluster.close()
        with Cluster(vbuckets=2, port=port, password=password) as other:
            other.upsert("other", b"2")
            problem = f"expected bucket 'default' with the uuid {uuid}, found "
            with pytest.raises(dcp.ServerError, match=problem) as found:
                stream.next(PATIENCE)
    assert "connect again and stream from the beginning" in str(found.value)
    assert stream.checkpoint.bucket_uuid == uuid
