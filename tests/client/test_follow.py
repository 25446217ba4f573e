"""Streams of a bucket on real sockets: failover, moves, limits, wrong options."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from tests.client.consumer import PATIENCE, Consumer, catch_up, hasty_threads, truth
from tests.client.hostile import HostileNode
from tests.waiting import until


def test_what_there_is_comes_from_all_nodes() -> None:
    with Cluster(nodes=3, vbuckets=16) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(2000)
        cluster.delete("key-0000000007")
        consumer = Consumer()
        for batch in client.stream(end="now"):
            consumer.take(batch)
        assert consumer.state() == truth(cluster)


def test_streams_of_one_client_have_connections_of_different_names() -> None:
    """Two of the same name on one node disconnect each other."""
    with HostileNode(lambda *_: None) as node, dcp.connect(node.url) as client, client.stream(), client.stream():
        until(lambda: sum(frame.name == "stream_request" for frame in node.received) == 2)
        names = [frame.key for frame in node.received if frame.name == "open"]
    assert len(names) == len({*names}) == 2


def test_a_process_with_many_open_files_follows_like_any_other() -> None:
    """Use descriptors above 1023, which `select` cannot watch."""
    resource = pytest.importorskip("resource", reason="Windows counts them in another way")
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048 if most == resource.RLIM_INFINITY else min(2048, most), most))
    try:
        with contextlib.ExitStack() as files, Cluster(vbuckets=4) as cluster:
            cluster.load(100)
            for _ in range(1100):
                files.enter_context(Path(os.devnull).open("rb"))
            with dcp.connect(cluster.url) as client:
                assert sum(map(len, client.stream(end="now"))) == 100
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


def test_a_checkpoint_is_gone_on_from_in_another_client() -> None:
    with Cluster(nodes=2, vbuckets=8) as cluster:
        cluster.load(500)
        consumer = Consumer()
        with dcp.connect(cluster.url) as client:
            stream = client.stream(end="now")
            for batch in stream:
                consumer.take(batch)
            saved = stream.checkpoint.to_json()
        before = {vbucket: len(rows) for vbucket, rows in consumer.rows.items()}
        cluster.upsert("another", b'{"a":1}')
        cluster.delete("key-0000000003")
        with dcp.connect(cluster.url) as client, client.stream(dcp.Checkpoint.from_json(saved)) as stream:
            catch_up(stream, consumer, cluster)
        assert sum(len(rows) for rows in consumer.rows.values()) == sum(before.values()) + 2


def test_changes_come_as_they_happen() -> None:
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url) as client, client.stream() as stream:
        consumer = Consumer()
        for n in range(50):
            cluster.upsert(f"key{n % 7}", f'{{"n":{n}}}')
            if n % 10 == 9:
                cluster.delete(f"key{n % 7}")
            catch_up(stream, consumer, cluster)


def test_now_is_where_it_begins() -> None:
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(100)
        with client.stream("now") as stream:
            cluster.upsert("later", b"1")
            batch = stream.next(PATIENCE)
            assert batch is not None
            assert batch.to_arrow().column("key").to_pylist() == [b"later"]


def test_only_the_chosen_collections_come() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.create_scope("shop")
        for name in ("order", "customer"):
            cluster.create_collection("shop", name)
            for n in range(20):
                cluster.upsert(f"{name}{n}", b"{}", collection=f"shop.{name}")
        cluster.load(50)
        with dcp.connect(cluster.url) as client:
            for chosen in ({"collections": ["shop.order"]}, {"scope": "shop", "collections": ["order"]}):
                keys = [k for b in client.stream(end="now", **chosen) for k in b.to_arrow().column("key").to_pylist()]
                assert sorted(keys) == sorted(f"order{n}".encode() for n in range(20))
            rows = list(client.stream(end="now", scope="shop"))
            assert sum(map(len, rows)) == 40
            with pytest.raises(dcp.LocalProtocolError, match=r".shop\.nothing. not found in bucket .default."):
                client.stream(collections=["shop.nothing"])


def test_a_window_smaller_than_a_document_lets_everything_through() -> None:
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url, dcp_buffer_size=1000) as client:
        cluster.load(60, value_size=5000)
        consumer = Consumer()
        for batch in client.stream(end="now", batch_rows=2):
            consumer.take(batch)
        assert consumer.state() == truth(cluster)


def test_some_vbuckets_are_a_share_of_the_work() -> None:
    with Cluster(vbuckets=8) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(400)
        shares = [Consumer(), Consumer()]
        for share, consumer in enumerate(shares):
            for batch in client.stream(end="now", vbuckets=range(share, 8, 2)):
                consumer.take(batch)
            assert {vbucket % 2 for vbucket in consumer.rows} == {share}
        assert shares[0].state() | shares[1].state() == truth(cluster)


def test_writes_that_a_failover_lost_are_taken_back() -> None:
    with Cluster(nodes=3, vbuckets=8, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(300)
        consumer = Consumer()
        with client.stream() as stream:
            catch_up(stream, consumer, cluster)
            cluster.failover(0, lose=5)
            catch_up(stream, consumer, cluster)
        assert consumer.rollbacks


def test_a_rollback_is_an_error_for_who_wants_it_to_be() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(100)
        consumer = Consumer()
        with client.stream(on_rollback="fail") as stream:
            catch_up(stream, consumer, cluster)
            before = stream.checkpoint
            cluster.failover(0, lose=3)
            with pytest.raises(dcp.RollbackError, match="go back from seqno") as found:
                list(stream)
            assert stream.checkpoint.by_vbucket()[found.value.vbucket] == before.by_vbucket()[found.value.vbucket]


def test_a_producer_that_is_never_satisfied_is_an_error() -> None:
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(10)
        with (
            cluster.fault("rollback", to=0, forever=True),
            client.stream() as stream,
            pytest.raises(dcp.RemoteProtocolError, match="rollback requested although the stream begins at seqno 0"),
        ):
            stream.next(PATIENCE)


def test_a_closed_client_says_so() -> None:
    with Cluster(vbuckets=2) as cluster:
        client = dcp.connect(cluster.url)
        client.close()
        for start in ("beginning", dcp.Checkpoint()):
            with pytest.raises(dcp.ClosedError, match="the client is closed"):
                client.stream(start)
            with pytest.raises(dcp.ClosedError, match="the client is closed"):
                client.positions(start)


def test_a_stream_that_ended_or_failed_is_closed() -> None:
    with Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(5)
        stream = client.stream(end="now")
        assert sum(map(len, stream)) == 5
        assert stream.closed
        with cluster.fault("refuse", status="EINVAL"):
            stream = client.stream()
            with pytest.raises(dcp.ServerError):
                stream.next(PATIENCE)
            assert stream.closed


def test_a_stream_that_is_closed_before_its_end_does_not_end_like_a_complete_one() -> None:
    # The window keeps the node from sending everything before the stream is closed.
    with Cluster(vbuckets=2) as cluster, dcp.connect(cluster.url, dcp_buffer_size=10_000) as client:
        cluster.load(1000)
        stream = client.stream(end="now", batch_rows=10)
        assert stream.next(PATIENCE) is not None
        stream.close()
        with pytest.raises(dcp.ClosedError, match="the stream was closed before its end; resume from its checkpoint"):
            list(stream)
        with client.stream(end="now") as complete:
            assert sum(map(len, complete)) == 1000
        # The end was reached: closing afterwards changes nothing.
        assert complete.next() is None


def test_a_wrong_password_is_said_and_not_shown() -> None:
    with Cluster(vbuckets=4, username="me", password="right") as cluster:
        with pytest.raises(dcp.AuthenticationError, match="the server refuses user 'me'") as found:
            dcp.connect(cluster.url.replace("right", "wr0ng"))
        assert "wr0ng" not in str(found.value)


def test_a_bucket_that_is_not_there_is_named() -> None:
    with Cluster(vbuckets=4) as cluster, pytest.raises(dcp.ServerError, match="bucket 'nothing'"):
        dcp.connect(cluster.url.replace("/default", "/nothing"))


def test_a_closed_door_is_named_with_its_port() -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
        with pytest.raises(dcp.TransportError, match=f"127.0.0.1:{port}: .*refused.*11210"):
            dcp.connect(f"couchbase://u:p@127.0.0.1:{port}/default")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            {"start": "yesterday"},
            "start: expected beginning, .*, a time with a UTC offset .*, found 'yesterday'",
        ),
        ({"end": "never"}, "end: expected None, now, latest, a Checkpoint .*, found 'never'"),
        ({"on_rollback": "ignore"}, "on_rollback: expected replay or fail, found 'ignore'"),
        ({"vbuckets": [99]}, r"vbuckets: expected some of 0 to 3, found \[99\]"),
        ({"vbuckets": [True]}, r"vbuckets: expected numbers such as 0,4-7, found \[True\]"),
        ({"scope": ""}, "scope: expected text, found ''"),
        ({"collections": [""]}, "collections: expected one or more names, each once, such as"),
        ({"collections": ["."]}, "collections: expected names such as hotel or inventory.hotel, found '.'"),
        ({"collections": ["shop."]}, "collections: expected names such as hotel or inventory.hotel, found 'shop.'"),
        ({"linger": 10**30}, "linger: expected a duration of at most 1000000000 s, found 10"),
        ({"linger": "2h"}, "linger: expected a duration of at most 3600 s, such as 20ms, found '2h'"),
        ({"history": 2}, "history: expected on or off .*, found 2"),
        ({"persisted_only": "maybe"}, "persisted_only: expected on or off .*, found 'maybe'"),
        ({"max_frame": "foo"}, "max_frame: expected a size in bytes such as 67108864, 64k, 20mb or 1g, found 'foo'"),
        ({"max_frame": None}, "max_frame: expected a size in bytes such as 67108864, 64k, 20mb or 1g, found None"),
        ({"columns": ["kee"]}, "columns: there is no column 'kee'.*did you mean key"),
    ],
)
def test_a_wrong_option_says_what_is_accepted(option: dict[str, object], expected: str) -> None:
    with (
        Cluster(vbuckets=4) as cluster,
        dcp.connect(cluster.url) as client,
        pytest.raises(dcp.LocalProtocolError, match=expected),
    ):
        client.stream(**option)  # type: ignore[arg-type]


def test_a_stream_shows_what_it_follows_and_how_far_it_is() -> None:
    with Cluster(vbuckets=4, bucket="travel") as cluster, dcp.connect(cluster.url) as client:
        cluster.load(20)
        cluster.create_collection("_default", "hotel")
        with client.stream(end="now", vbuckets="1-3") as stream:
            received = sum(len(batch) for batch in stream)
            assert repr(stream) == (
                f"<ChangeStream of 'travel', the whole bucket: closed, vbuckets=3, changes={received}>"
            )
        with client.stream(collections="hotel") as stream:
            assert repr(stream) == "<ChangeStream of 'travel', collections 0x8: open, vbuckets=4, changes=0>"


def test_a_stream_that_is_over_does_not_linger() -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(20)
        stream = client.stream(end="now", linger=3600)
        assert sum(len(batch) for batch in iter(partial(stream.next, 30), None)) == 20


def test_nothing_begins_now_where_nobody_knows_how_far_it_is() -> None:
    """A start at 0 would deliver everything that exists."""
    with Cluster(nodes=2, vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(20)
        cluster.failover(1)
        for start in (client.positions, client.stream):
            with pytest.raises(dcp.TransportError, match=r"vbuckets .* have no active node; retry"):
                start("now")


@pytest.mark.parametrize("option", ["ca_cert_path", "cert_path", "key_path"])
def test_certificates_are_not_given_for_clear_text(option: str) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=f"{option}: expected couchbases://, which is TLS"):
        dcp.connect(f"couchbase://u:p@127.0.0.1:1/default?{option}=ca.pem")


def test_a_url_that_is_no_text_is_refused() -> None:
    with pytest.raises(dcp.LocalProtocolError, match=r"expected text such as .*, found a NoneType"):
        dcp.connect(None)  # type: ignore[arg-type]


def test_what_is_wrong_with_all_nodes_is_said_once() -> None:
    with socket.socket() as one, socket.socket() as other:
        for door in (one, other):
            door.bind(("127.0.0.1", 0))
        hosts = ",".join(f"127.0.0.1:{door.getsockname()[1]}" for door in (one, other))
        with pytest.raises(dcp.TransportError, match=f"no node can be reached: {hosts.replace(',', ', ')}: ") as found:
            dcp.connect(f"couchbase://u:p@{hosts}/default")
        assert str(found.value).count("refused") == 1


def test_a_stream_does_not_end_where_another_bucket_stood() -> None:
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(10)
        elsewhere = replace(client.positions("now"), bucket_uuid="0" * 32)
        with pytest.raises(dcp.CheckpointError, match=r"bucket_uuid: expected .* it belongs to another bucket"):
            client.stream(end=elsewhere)


@pytest.mark.parametrize("timeout", [math.nan, "soon", -1])
def test_a_timeout_that_is_no_time_is_refused(timeout: object) -> None:
    with (
        Cluster(vbuckets=4) as cluster,
        dcp.connect(cluster.url) as client,
        client.stream("now") as stream,
        pytest.raises(dcp.LocalProtocolError, match="timeout: expected None or a duration"),
    ):
        stream.next(timeout)  # type: ignore[arg-type]


def test_an_old_node_that_has_a_replica_only_is_left_when_the_map_says_so() -> None:
    """Servers before 5.0 stream replicas to any client, and push no maps."""
    options: dict[str, Any] = {"sasl_mech_force": "PLAIN", "config_poll_interval": "100ms"}
    with Cluster(nodes=2, vbuckets=1, replicas=1, server_version="4.0") as cluster:
        cluster.upsert("key", "1")
        # The node refuses until it has the replica, so that the client never hears of an end.
        with (
            dcp.connect(cluster.url, **options) as client,
            cluster.fault("refuse") as refusal,
            client.stream(linger=0.0) as stream,
        ):
            until(lambda: refusal.hits)
            cluster.set_lag(1000)
            cluster.promote(0, 1)
            refusal.clear()
            cluster.upsert("key", "2")
            catch_up(stream, Consumer(), cluster)


def test_the_map_that_comes_with_a_connection_counts() -> None:
    with Cluster(nodes=2, vbuckets=1, replicas=1, server_version="4.0") as cluster:
        cluster.upsert("key", "1")
        with dcp.connect(cluster.url, sasl_mech_force="PLAIN", config_poll_interval="1h") as client:
            cluster.set_lag(1000)
            cluster.promote(0, 1)
            cluster.upsert("key", "2")
            with client.stream(linger=0.0) as stream:
                catch_up(stream, Consumer(), cluster)


def test_of_maps_that_nodes_tell_at_once_the_newest_stays() -> None:
    with Cluster(vbuckets=1024) as cluster, dcp.connect(cluster.url) as client:
        access = client._agent
        told = access.ask("get_cluster_config").body()
        with hasty_threads(), ThreadPoolExecutor(2) as pool:
            for number in range(1000, 1040, 2):
                both = ({**told, "rev": rev} for rev in (number, number + 1))
                list(pool.map(lambda config: access.learn_map(config, cluster.addresses[0]), both))
                assert client.map.revision == number + 1


def test_the_threads_of_a_client_that_nobody_holds_come_to_their_end() -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(100)
        before = set(threading.enumerate())
        stream = dcp.connect(cluster.url, stats_interval="20ms").stream(persisted_only=True)
        assert stream.next(PATIENCE) is not None
        started = set(threading.enumerate()) - before
        assert {"dcp supervisor", "dcp monitor", "dcp persistence"} < {thread.name for thread in started}
        del stream
        gc.collect()
        for thread in started:
            thread.join(PATIENCE)
            assert not thread.is_alive(), thread.name


def test_a_stream_that_nobody_holds_ends_and_what_it_did_still_counts() -> None:
    with Cluster(vbuckets=4) as cluster, dcp.connect(cluster.url) as client:
        cluster.load(100)
        before = set(threading.enumerate())
        stream = client.stream()
        catch_up(stream, Consumer(), cluster)
        started = set(threading.enumerate()) - before
        assert client.stats().vbuckets == 4
        del stream
        gc.collect()
        for thread in started:
            thread.join(PATIENCE)
            assert not thread.is_alive(), thread.name
        for _ in range(2):
            told = client.stats()
            assert (told.changes, told.vbuckets, told.connections) == (100, 0, {})
            client.stream().close()


def test_an_end_does_not_wait_for_a_node_that_does_not_answer() -> None:
    never: dict[str, Any] = {"kv_connect_timeout": "1h", "bootstrap_timeout": "1h", "stats_interval": "10ms"}
    with Cluster(vbuckets=4, tls=True) as cluster:
        before = set(threading.enumerate())
        client = dcp.connect(f"{cluster.tls_url}?ca_cert_path={cluster.ca_file}", **never)
        with cluster.fault("pause"):
            stream = client.stream()
            # Besides that of the client: somebody waits for the answer of the node.
            while cluster.stats()[0].connections < 2:
                with pytest.raises(TimeoutError):
                    stream.next(0.01)
            client.close()
            waiting = {thread for thread in set(threading.enumerate()) - before if thread.is_alive()}
            assert any(thread.name.startswith("dcp ") for thread in waiting)
        for thread in waiting:
            thread.join(PATIENCE)
            assert not thread.is_alive(), thread.name


def test_a_stream_holds_its_client() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.load(100)
        stream = dcp.connect(cluster.url).stream()
        gc.collect()
        consumer = Consumer()
        catch_up(stream, consumer, cluster)
        cluster.upsert("later", b"1")
        catch_up(stream, consumer, cluster)
        stream._client.close()  # type: ignore[attr-defined]
