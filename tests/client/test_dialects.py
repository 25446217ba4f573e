"""Streams over TAP and both UPR drafts, on real sockets."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import dcp
from dcp.client.follow.settings import SESSIONS
from dcp.embedded import Cluster
from dcp.position import Progress, StreamPosition
from dcp.session.events import StreamRefused
from dcp.session.stream import ConsumerStream
from dcp.wire import DIALECTS
from dcp.wire.memcached import Status, VbucketState
from tests.client.consumer import PATIENCE, Consumer, catch_up, truth
from tests.waiting import until

DRAFTS = ["upr1", "upr2"]
drafts = pytest.mark.parametrize("dialect", DRAFTS)


@drafts
def test_a_bucket_is_copied_and_gone_on_from(dialect: Any) -> None:
    with Cluster(nodes=2, vbuckets=8, dialect=dialect) as cluster:
        cluster.load(1000)
        cluster.delete("key-0000000007")
        cluster.expire("key-0000000008")
        consumer = Consumer()
        with dcp.connect(cluster.url, dialect=dialect) as client:
            stream = client.stream(end="now")
            for batch in stream:
                consumer.take(batch)
            assert consumer.state() == truth(cluster)
            saved = stream.checkpoint.to_json()
        before = sum(map(len, consumer.rows.values()))
        cluster.upsert("another", b'{"a":1}')
        cluster.delete("key-0000000003")
        with (
            dcp.connect(f"{cluster.url}&dialect={dialect}") as client,
            client.stream(dcp.Checkpoint.from_json(saved)) as stream,
        ):
            catch_up(stream, consumer, cluster)
        assert sum(map(len, consumer.rows.values())) == before + 2


@pytest.mark.parametrize("spoken", sorted(SESSIONS))
@pytest.mark.parametrize("dialect", sorted(SESSIONS))
def test_a_node_that_speaks_another_dialect_is_told_so(spoken: str, dialect: Any) -> None:
    version = "8.0" if spoken == "dcp" else "3.0"
    with Cluster(server_version=version, dialect=spoken, vbuckets=4) as cluster:
        cluster.load(10)
        with dcp.connect(cluster.url, dialect=dialect) as client, client.stream(end="now") as stream:
            if dialect == spoken:
                assert sum(map(len, stream)) == 10
                return
            with pytest.raises(dcp.DcpError, match="; check dialect: the node may speak another one"):
                stream.next(PATIENCE)


@drafts
def test_now_is_where_it_begins(dialect: Any) -> None:
    with Cluster(vbuckets=4, dialect=dialect) as cluster, dcp.connect(cluster.url, dialect=dialect) as client:
        cluster.load(100)
        with client.stream("now") as stream:
            cluster.upsert("later", b"1")
            batch = stream.next(PATIENCE)
            assert batch is not None
            assert batch.to_arrow().column("key").to_pylist() == [b"later"]


@drafts
def test_writes_that_a_failover_lost_are_taken_back(dialect: Any) -> None:
    with (
        Cluster(nodes=3, vbuckets=8, replicas=1, dialect=dialect) as cluster,
        dcp.connect(cluster.url, dialect=dialect) as client,
    ):
        cluster.load(300)
        consumer = Consumer()
        with client.stream() as stream:
            catch_up(stream, consumer, cluster)
            cluster.failover(0, lose=5)
            catch_up(stream, consumer, cluster)
        assert consumer.rollbacks


@drafts
def test_a_consumer_that_is_slow_stops_the_node(dialect: Any) -> None:
    with (
        Cluster(vbuckets=2, dialect=dialect) as cluster,
        dcp.connect(cluster.url, dialect=dialect, dcp_buffer_size=20_000) as client,
    ):
        cluster.load(2000, value_size=1000)
        consumer = Consumer()
        stream = client.stream(end="now", batch_rows=10)
        for batch in stream:
            consumer.take(batch)
            # What waits is at most the window and what was read at once.
            assert stream.counters.bytes < sum(map(len, consumer.rows.values())) * 1100 + (1 << 20)
        assert consumer.state() == truth(cluster)


@pytest.mark.parametrize("dialect", [name for name in SESSIONS if name != "dcp"])
@pytest.mark.parametrize("options", [{"scope": "_default"}, {"collections": ["_default"]}, {"persisted_only": True}])
def test_a_stream_is_not_chosen_by_what_a_dialect_lacks(dialect: Any, options: dict[str, object]) -> None:
    with Cluster(vbuckets=2, dialect=dialect) as cluster, dcp.connect(cluster.url, dialect=dialect) as client:
        name = next(iter(options))
        with pytest.raises(dcp.LocalProtocolError, match=f"^{name}: {DIALECTS[dialect].title} does not support it"):
            client.stream(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["compression=off", "noop_interval=20", "dcp_priority=low"])
def test_a_connection_does_not_ignore_what_a_dialect_lacks(option: str) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=f"^{option.partition('=')[0]}: UPR draft 2 does not support it"):
        dcp.connect(f"couchbase://localhost/b?dialect=upr2&{option}")


# ------------------------------------------------------------------ TAP


class Keeper:
    """Documents of each vbucket in the order of delivery; a rollback drops all of a vbucket."""

    def __init__(self) -> None:
        self.documents: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self.rollbacks = 0

    def take(self, batch: dcp.Batch) -> None:
        for row in batch.to_arrow().to_pylist():
            mine = self.documents[row["vbucket"]]
            if row["event"] == "rollback":
                self.rollbacks += 1
                mine.clear()
            elif row["event"] == "mutation":
                mine[row["key"]] = row["value"]
            else:
                mine.pop(row["key"], None)

    def state(self) -> dict[bytes, bytes]:
        return {key: value for mine in self.documents.values() for key, value in mine.items()}

    def take_all(self, stream: dcp.ChangeStream, patience: float) -> None:
        while (batch := stream.next(patience)) is not None:
            self.take(batch)

    def catch_up(self, stream: dcp.ChangeStream, cluster: Cluster) -> None:
        while self.state() != values(cluster):
            batch = stream.next(PATIENCE)
            assert batch is not None
            self.take(batch)


def values(cluster: Cluster) -> dict[bytes, bytes]:
    return {key: found.value for key, found in cluster.truth().items()}


@pytest.mark.parametrize("options", [{"dialect": "tap"}, {"server_version": "4.6"}])
def test_what_there_is_comes_over_tap(options: dict[str, Any]) -> None:
    with Cluster(nodes=2, vbuckets=8, **options) as cluster, dcp.connect(cluster.url, dialect="tap") as client:
        # More than goes out without an acknowledgement; in one vbucket there is nothing.
        cluster.load(12_000)
        for key in [key for key, found in cluster.truth().items() if found.vbucket == 3]:
            cluster.delete(key)
        keeper = Keeper()
        for batch in client.stream(end="now"):
            keeper.take(batch)
        assert keeper.state() == values(cluster)


@pytest.mark.parametrize("options", [{"dialect": "tap"}, {"server_version": "4.6"}])
def test_a_tap_stream_with_an_end_waits_for_the_disk(options: dict[str, Any]) -> None:
    with Cluster(nodes=2, vbuckets=8, **options) as cluster, dcp.connect(cluster.url, dialect="tap") as client:
        cluster.load(100)
        cluster.set_persistence(1, False)
        for n in range(100):
            cluster.upsert(f"in-memory-{n}", b"1")
        keeper = Keeper()
        with client.stream(end="now") as stream:
            # One node has nothing on its queue and delivers at once.
            with pytest.raises(TimeoutError):
                keeper.take_all(stream, 0.5)
            assert keeper.documents
            cluster.set_persistence(1, True)
            keeper.take_all(stream, PATIENCE)
        assert keeper.state() == values(cluster)


def test_a_tap_stream_whose_disk_never_catches_up_is_an_error() -> None:
    with Cluster(nodes=2, vbuckets=4, dialect="tap") as cluster, dcp.connect(cluster.url, dialect="tap") as client:
        cluster.set_persistence(1, False)
        for n in range(20):
            cluster.upsert(f"in-memory-{n}", b"1")
        with (
            client.stream(end="now", persisted_within=0.3) as stream,
            pytest.raises(
                dcp.TransportError,
                match=f"^{cluster.addresses[1]}: changes of vbuckets 1, 3 are not on disk after 0.3 s",
            ) as found,
        ):
            list(stream)
        assert found.value.retriable


def test_changes_come_over_tap_and_a_lost_connection_begins_again() -> None:
    with (
        Cluster(nodes=2, vbuckets=8, replicas=1, dialect="tap") as cluster,
        dcp.connect(cluster.url, dialect="tap") as client,
    ):
        cluster.load(300)
        keeper = Keeper()
        with client.stream() as stream:
            keeper.catch_up(stream, cluster)
            cluster.upsert("later", b"1")
            cluster.delete("key-0000000003")
            keeper.catch_up(stream, cluster)
            assert keeper.rollbacks == 0
            cluster.failover(0, lose=5)
            keeper.catch_up(stream, cluster)
            assert keeper.rollbacks == 4


def test_a_vbucket_that_moves_is_followed_over_tap() -> None:
    with (
        Cluster(nodes=2, vbuckets=4, dialect="tap") as cluster,
        dcp.connect(cluster.url, dialect="tap", config_poll_interval=0.1) as client,
    ):
        cluster.load(100)
        keeper = Keeper()
        with client.stream() as stream:
            keeper.catch_up(stream, cluster)
            cluster.move(0, 1)
            cluster.load(200)
            keeper.catch_up(stream, cluster)


def test_changes_alone_have_a_beginning_and_no_second_one() -> None:
    with Cluster(vbuckets=4, dialect="tap") as cluster, dcp.connect(cluster.url, dialect="tap") as client:
        cluster.load(100)
        with client.stream("now") as stream:
            batch = None
            for n in itertools.count():
                # The node takes the request a moment after it was made.
                cluster.upsert(f"later-{n}", b"1")
                with contextlib.suppress(TimeoutError):
                    batch = stream.next(0.05)
                    break
            assert batch is not None
            assert all(key.startswith(b"later-") for key in batch.to_arrow().column("key").to_pylist())
            cluster.crash(0)
            with pytest.raises(dcp.TransportError, match="the dialect cannot resume without a gap"):
                list(stream)


CHECKPOINT = dcp.Checkpoint()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"start": CHECKPOINT}, "start: expected beginning or now, as TAP has no seqnos, found a Checkpoint"),
        ({"end": CHECKPOINT}, "end: expected None or now, as TAP has no seqnos, found a Checkpoint"),
        ({"start": "now", "end": "now"}, "end: expected None, as TAP has no seqnos, found 'now'"),
        ({"start": "2026-11-01T00:00Z"}, "start: expected beginning or now, as TAP has no seqnos, found a datetime"),
    ],
)
def test_tap_knows_no_positions(options: dict[str, Any], problem: str) -> None:
    with Cluster(vbuckets=2, dialect="tap") as cluster, dcp.connect(cluster.url, dialect="tap") as client:
        with pytest.raises(dcp.LocalProtocolError) as caught:
            client.stream(**options)
        assert str(caught.value) == problem


def test_whoever_does_not_want_rollbacks_gets_an_error() -> None:
    with Cluster(vbuckets=2, dialect="tap") as cluster, dcp.connect(cluster.url, dialect="tap") as client:
        cluster.load(10)
        with client.stream(on_rollback="fail") as stream:
            Keeper().catch_up(stream, cluster)
            cluster.crash(0)
            with pytest.raises(dcp.RollbackError) as caught:
                list(stream)
            # Everything is undone, as TAP has no seqnos.
            assert (caught.value.seqno, caught.value.rollback_seqno) == (0, 0)


def test_nobody_tells_how_far_behind_tap_is(caplog: pytest.LogCaptureFixture) -> None:
    with (
        Cluster(vbuckets=2, dialect="tap") as cluster,
        dcp.connect(cluster.url, dialect="tap", stats_interval=0.01) as client,
    ):
        cluster.load(10)
        with client.stream() as stream:
            Keeper().catch_up(stream, cluster)
            with pytest.raises(TimeoutError):
                stream.next(0.3)
        assert not [record for record in caplog.records if "no progress" in record.message]


def test_vbuckets_that_a_node_never_announces_end_a_tap_stream_in_an_error() -> None:
    with (
        Cluster(nodes=2, vbuckets=8, dialect="tap") as cluster,
        dcp.connect(cluster.url, dialect="tap", bootstrap_timeout=2) as client,
    ):
        cluster.load(100)
        for vbucket in (1, 5):
            # The map still says that they are here.
            cluster._bucket.active(vbucket).state = VbucketState.DEAD
        keeper = Keeper()
        message = f"^{cluster.addresses[1]}: vbuckets 1, 5 were not announced within 2 s of the TAP request, so nothing"
        with client.stream(end="now") as stream, pytest.raises(dcp.TransportError, match=message) as found:
            keeper.take_all(stream, PATIENCE)
        assert found.value.retriable
        assert "dialect=dcp" in str(found.value)
        # What arrived before is delivered.
        assert sorted(keeper.documents) == [0, 2, 3, 4, 6, 7]


def test_small_vbuckets_of_a_restarted_3_1_node_end_a_tap_stream_in_an_error() -> None:
    with (
        Cluster(nodes=2, vbuckets=4, server_version="3.1") as cluster,
        dcp.connect(cluster.url, dialect="tap", bootstrap_timeout=2) as client,
    ):
        for n in range(40):
            cluster.upsert(f"key-{n}", b"1")
        cluster.restart(1)
        message = f"^{cluster.addresses[1]}: vbuckets 1, 3 were not announced within 2 s"
        with client.stream(end="now") as stream, pytest.raises(dcp.TransportError, match=message):
            list(stream)


def test_vbuckets_that_a_node_never_announces_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with (
        Cluster(vbuckets=4, dialect="tap") as cluster,
        dcp.connect(cluster.url, dialect="tap", bootstrap_timeout=2) as client,
    ):
        cluster.load(100)
        cluster._bucket.active(2).state = VbucketState.DEAD
        keeper = Keeper()
        with client.stream() as stream, caplog.at_level(logging.WARNING):

            def is_warned() -> bool:
                with contextlib.suppress(TimeoutError):
                    keeper.take_all(stream, 0.1)
                return bool(caplog.records)

            until(is_warned)
            (record,) = caplog.records
            assert record.getMessage().startswith(f"{cluster.addresses[0]}: vbuckets 2 were not announced within 2 s")
            # The other vbuckets continue, and the warning is not repeated.
            for key in [key for key, found in cluster.truth().items() if found.vbucket != 2]:
                cluster.upsert(key, b"later")
            assert stream.next(PATIENCE) is not None
            assert caplog.records == [record]


def test_connections_of_which_nothing_is_wanted_are_closed() -> None:
    with Cluster(vbuckets=2, dialect="tap") as cluster, dcp.connect(cluster.url, dialect="tap") as client:
        cluster.load(10)
        # The map still says that it is here.
        cluster._bucket.active(0).state = VbucketState.DEAD
        with client.stream(vbuckets=[0], end="now") as stream:
            # Nothing is announced: only the sign of life after 20 seconds would say so.
            follower = stream._follower
            pool = follower._pool
            until(lambda: pool._full)
            (link,) = pool._full
            with follower._lock:
                refusal = StreamRefused(ConsumerStream(0, Progress(StreamPosition(0))), Status.NOT_MY_VBUCKET, b"")
                follower._transitions.refused(refusal, link.name)
                follower._work.notify_all()
            until(lambda: link not in pool._full and len(pool._full) == 1)
            assert link.closing


def test_a_tap_stream_with_an_end_fails_if_changes_stay_in_memory() -> None:
    with (
        Cluster(vbuckets=2, server_version="3.1") as cluster,
        dcp.connect(cluster.url, dialect="tap") as client,
    ):
        cluster.set_persistence(0, False)
        cluster.upsert("key", b"1")
        message = "are not on disk after 0.3 s, and a TAP stream"
        with client.stream(end="now", persisted_within=0.3) as stream, pytest.raises(dcp.TransportError, match=message):
            list(stream)
        cluster.set_persistence(0, True)
        with client.stream(end="now", persisted_within=PATIENCE) as stream:
            assert sum(map(len, stream)) == 1


def test_drafts_have_no_times() -> None:
    with Cluster(dialect="upr2", vbuckets=1) as cluster, dcp.connect(cluster.url, dialect="upr2") as client:
        moment = "2026-01-01T00:00Z"
        calls: list[tuple[str, Callable[[], object]]] = [
            ("start", lambda: client.stream(moment)),
            ("end", lambda: client.stream(end=moment)),
            ("start", lambda: client.positions(moment)),
            ("end", lambda: client.end_seqnos(moment)),
        ]
        for name, call in calls:
            with pytest.raises(dcp.LocalProtocolError, match=f"^{name}: UPR draft 2 does not support times"):
                call()


@pytest.mark.parametrize(
    ("dialect", "status", "asked"),
    [("upr2", "UNKNOWN_COMMAND", True), ("upr2", "E2BIG", False), ("dcp", "UNKNOWN_COMMAND", False)],
)
def test_a_refused_stream_makes_one_doubt_a_dialect_that_nothing_has_shown_before(
    dialect: Any, status: str, asked: bool
) -> None:
    with Cluster(vbuckets=1, dialect=dialect) as cluster, dcp.connect(cluster.url, dialect=dialect) as client:
        cluster.load(3)
        with cluster.fault("refuse", status=status), pytest.raises(dcp.ServerError, match=status) as caught:
            list(client.stream(end="now"))
        assert ("check dialect" in str(caught.value)) is asked
