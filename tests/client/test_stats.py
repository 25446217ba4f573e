"""Statistics of a client, and the metrics that Prometheus reads."""

from __future__ import annotations

import dataclasses
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import dcp
from dcp import metrics
from dcp.client.monitor import REASONS
from dcp.client.stats import Lag, Stats, combine
from dcp.embedded import Cluster
from tests.client.consumer import PATIENCE, Consumer, catch_up
from tests.pages import ROOT

SOON: dict[str, Any] = {"stats_interval": "50ms"}


def stats_when(client: dcp.Client, holds: Callable[[Stats], object]) -> Stats:
    """Return the statistics as soon as a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not holds(found := client.stats()):
        assert time.monotonic() < deadline, found
    return found


def samples(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """Yield name, labels without bucket and client, and value of each sample that Prometheus reads."""
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label not in metrics.LABELS)): (
            sample.value
        )
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=8) as cluster:
        cluster.load(200)
        yield cluster


def test_the_counts_are_those_of_the_batches(cluster: Cluster) -> None:
    with dcp.connect(cluster.url) as client:
        assert client.stats() == Stats("default")
        sizes = [len(batch) for batch in client.stream(end="now")]
        sizes += [len(batch) for batch in client.stream(end="now", vbuckets=[1])]
        told = client.stats()
        assert (told.changes, told.stream_ends, told.vbuckets) == (sum(sizes), {"ok": 9}, 0)
        list(client.stream(end="now"))
        assert client.stats().changes == sum(sizes) + 200
    assert client.stats().changes == sum(sizes) + 200
    with pytest.raises(dataclasses.FrozenInstanceError):
        told.changes = 0  # type: ignore[misc]


def test_lag_is_what_the_consumer_has_not_got(cluster: Cluster) -> None:
    cluster.create_scope("shop")
    cluster.create_collection("shop", "order")
    with dcp.connect(cluster.url, **SOON) as client, client.stream() as stream:
        high = sum(client.high_seqnos().values())
        waiting = stats_when(client, lambda told: told.lag and told.lag.seconds > 0)
        assert waiting.lag is not None
        assert waiting.lag.items == high
        assert waiting.collections["_default._default"].items > 0
        consumer = Consumer()
        catch_up(stream, consumer, cluster)
        read = stats_when(client, lambda told: told.lag == (0, 0.0))
        assert set(read.collections) == {"_default._default", "shop.order"}
        assert (read.streams, read.vbuckets, len(read.connections)) == (8, 8, 2)


def test_only_what_is_followed_lags(cluster: Cluster) -> None:
    for scope in ("shop", "shopping"):
        cluster.create_scope(scope)
        cluster.create_collection(scope, "order")
    seqno = cluster.upsert("one", b"1", collection="shop.order")
    chosen: list[dict[str, object]] = [{"scope": "shop"}, {"collections": ["shop.order"]}]
    for options in chosen:
        with dcp.connect(cluster.url, **SOON) as client, client.stream(**options):  # type: ignore[arg-type]
            told = stats_when(client, lambda told: told.lag)
            assert set(told.collections) == {"shop.order"}
            assert told.lag is not None
            assert told.lag.items >= seqno


@pytest.mark.parametrize(
    ("fault", "options", "reason"),
    [
        ("silent", {"vbuckets": "3"}, "silent"),
        ("refuse", {"vbuckets": "3", "status": "ETMPFAIL"}, "retrying"),
    ],
)
def test_vbuckets_that_do_not_get_on_are_reported_with_the_reason(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, fault: str, options: dict[str, object], reason: str
) -> None:
    registry = CollectorRegistry()
    with caplog.at_level(logging.INFO, "dcp"), dcp.connect(cluster.url, **SOON) as client:
        metrics.register(client, registry)
        with cluster.fault(fault, **options), client.stream() as stream:
            consumer = Consumer()
            # What is slow at first is stuck, too, and who asks again waits for an answer now and then.
            while {number: stuck.reason for number, stuck in client.stats().stuck.items()} != {3: reason}:
                with_patience(stream, consumer)
            while samples(registry)["dcp_stuck_vbuckets", reason] != 1:
                with_patience(stream, consumer)
            reports = [record for record in caplog.records if "no progress on vbuckets" in record.message]
            assert {record.levelname for record in reports} == {"WARNING"}


def with_patience(stream: dcp.ChangeStream, consumer: Consumer) -> None:
    try:
        batch = stream.next(0.05)
    except dcp.TimeoutError:
        return
    assert batch is not None
    consumer.take(batch)


def test_what_gets_on_again_is_stuck_no_more(cluster: Cluster) -> None:
    with (
        dcp.connect(cluster.url, **SOON) as client,
        cluster.fault("silent", node=0) as fault,
        client.stream() as stream,
    ):
        stats_when(client, lambda told: len(told.stuck) == 4)
        fault.clear()
        stats_when(client, lambda told: not told.stuck)
        catch_up(stream, Consumer(), cluster)


@pytest.mark.parametrize("fault", ["pause", "partition"])
def test_the_lag_is_unknown_while_a_node_does_not_answer(cluster: Cluster, fault: str) -> None:
    registry, consumer = CollectorRegistry(), Consumer()
    with dcp.connect(cluster.url, **SOON) as client, client.stream() as stream:
        metrics.register(client, registry)
        catch_up(stream, consumer, cluster)
        stats_when(client, lambda told: told.lag == (0, 0.0))
        with cluster.fault(fault, node=1):
            cluster.load(50, prefix="later")
            told = stats_when(client, lambda told: len(told.stuck) == 4)
            assert {stuck.reason for stuck in told.stuck.values()} == {"no_answer"}
            assert "does not answer" in told.stuck[next(iter(told.stuck))].detail
            assert (told.lag, told.collections) == (None, {})
            assert "dcp_lag_items" not in {name for name, *_ in samples(registry)}
        catch_up(stream, consumer, cluster)
        stats_when(client, lambda told: told.lag == (0, 0.0) and not told.stuck)


def test_one_unknown_lag_makes_that_of_all_streams_unknown() -> None:
    known = Stats("b", vbuckets=3, lag=Lag(5, 1.0), collections={"a.b": Lag(5, 1.0)})
    ended, unknown = Stats("b"), Stats("b", vbuckets=2)
    assert combine("b", [ended, known, ended]).lag == Lag(5, 1.0)
    for parts in ([unknown, known], [known, unknown], [known, ended, unknown, known]):
        combined = combine("b", parts)
        assert (combined.lag, combined.collections) == (None, {})


def test_vbuckets_without_a_node_are_reported(cluster: Cluster) -> None:
    with dcp.connect(cluster.url, **SOON) as client, client.stream():
        stats_when(client, lambda told: told.streams == 8)
        cluster.failover(1)

        def without_a_node(told: Stats) -> bool:
            reasons = {stuck.reason for stuck in told.stuck.values()}
            gone = {number for number in range(8) if client.map.owner(number) is None}
            return told.stuck.keys() == gone != set() and reasons <= {"no_owner", "no_connection"}

        stats_when(client, without_a_node)


def test_a_consumer_that_takes_its_time_makes_nothing_stuck(cluster: Cluster) -> None:
    def waits(told: Stats) -> bool:
        windows = told.connections.values()
        full = len(windows) == 2 and all(window.used * 2 >= window.size for window in windows)
        return full and told.lag is not None and told.lag.seconds > 0.5

    with dcp.connect(cluster.url, dcp_buffer_size=2000, **SOON) as client, client.stream(batch_rows=4):
        # Until the windows are full, a slow node is one that sends nothing.
        stats_when(client, lambda told: waits(told) and not told.stuck)


def test_prometheus_reads_the_same(cluster: Cluster) -> None:
    registry = CollectorRegistry()
    with dcp.connect(cluster.url, **SOON) as client:
        metrics.register(client, registry)
        metrics.register(client, registry)
        with client.stream() as stream:
            catch_up(stream, Consumer(), cluster)
            stats_when(client, lambda told: told.lag == (0, 0.0))
            told, read = client.stats(), samples(registry)
        assert read["dcp_changes_total",] == told.changes == 200
        assert read["dcp_bytes_total",] == told.bytes
        assert read["dcp_lag_items",] == 0
        assert read["dcp_collection_lag_seconds", "_default._default"] == 0
        assert read["dcp_streams",] == 8
        for node, window in told.connections.items():
            assert read["dcp_window_bytes", node] == window.size
        assert {labels[0] for name, *labels in read if name == "dcp_stuck_vbuckets"} == set(REASONS)
    with dcp.connect(cluster.url) as client, dcp.connect(cluster.url) as other:
        metrics.register(client, registry)
        metrics.register(other, registry)
        list(other.stream(end="now"))
        text = generate_latest(registry).decode()
        assert 'dcp_changes_total{bucket="default",client="3"} 200.0' in text
        assert text.count("# TYPE dcp_changes_total counter") == 1


def section(heading: str, page: str = "client.md") -> str:
    return (ROOT / "docs" / page).read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_the_guide_has_every_field_reason_and_metric(cluster: Cluster) -> None:
    names = set(
        re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.+?) \|", section("Measure: `client.stats()`"), re.M)))
    )
    assert names == {each.name for each in dataclasses.fields(Stats)} | set(REASONS)
    registry = CollectorRegistry()
    with dcp.connect(cluster.url, **SOON) as client:
        metrics.register(client, registry)
        with client.stream("now", vbuckets=[1]):
            list(client.stream(end="now", vbuckets=[2]))
            stats_when(client, lambda told: told.lag and told.connections)
            exposed = {name for name, *_ in samples(registry)}
    assert set(re.findall(r"`(dcp_\w+)`", section("Metrics of a client", "reference/metrics.md"))) == exposed


def test_no_level_of_the_log_shows_what_is_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "dcp"), Cluster(nodes=2, vbuckets=4, replicas=1, password="s3cret") as cluster:
        cluster.load(50, prefix="confidential-")
        with dcp.connect(cluster.url, **SOON) as client, client.stream() as stream:
            consumer = Consumer()
            catch_up(stream, consumer, cluster)
            with cluster.fault("refuse", times=2):
                cluster.failover(0, lose=2)
                catch_up(stream, consumer, cluster)
    levels = {record.levelname for record in caplog.records}
    assert levels == {"DEBUG", "INFO", "WARNING"}
    for secret in ("s3cret", "confidential", '"pad"'):
        assert secret not in caplog.text


def test_only_clients_are_registered() -> None:
    with pytest.raises(dcp.UsageError, match=r"client: expected a dcp\.Client, found a str"):
        metrics.register("client", CollectorRegistry())  # type: ignore[arg-type]
