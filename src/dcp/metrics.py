"""What clients do, for Prometheus: `dcp.metrics.register(client)`. It needs the extra `metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from dcp.client import Client
from dcp.client.stats import Stats
from dcp.client.watch import REASONS

# Every metric has these labels: `client` is its number among those of the registry.
LABELS = ("bucket", "client")

_TOTALS = {
    "changes": "Changes that nodes have sent.",
    "bytes": "Bytes that nodes have sent, as flow control counts them.",
    "batches": "Batches of changes.",
    "rollbacks": "Times that a vbucket had to go back, since the cluster had lost changes.",
    "reconnects": "Connections that were lost.",
}
_NOW = {
    "changes_per_second": "Changes a second, in the last stats_interval.",
    "bytes_per_second": "Bytes a second, in the last stats_interval.",
    "vbuckets": "Vbuckets that are followed.",
    "streams": "Vbuckets that a node has agreed to send.",
}
_LAG_ITEMS = "How many changes at most the consumer has not got yet."
_LAG_SECONDS = "For how long there has been something that the consumer has not got."


class _Clients(Collector):
    """The clients of a registry. One that nobody holds any more is none."""

    def __init__(self) -> None:
        self._clients: WeakKeyDictionary[Client, int] = WeakKeyDictionary()
        self._numbers = count(1)

    def add(self, client: Client) -> None:
        if client not in self._clients:
            self._clients[client] = next(self._numbers)

    def collect(self) -> Iterable[Metric]:
        stats = {number: client.stats() for client, number in self._clients.items()}
        for metric in _metrics():
            for number, found in stats.items():
                for labels, value in _values(metric, found):
                    metric.add_metric([found.bucket, str(number), *labels], value)
            yield metric


_collectors: WeakKeyDictionary[CollectorRegistry, _Clients] = WeakKeyDictionary()


def register(client: Client, registry: CollectorRegistry = REGISTRY) -> None:
    """Let a registry tell of a client, as long as somebody holds it."""
    if registry not in _collectors:
        clients = _Clients()
        registry.register(clients)
        _collectors[registry] = clients
    _collectors[registry].add(client)


def _metrics() -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    for name, says in _TOTALS.items():
        yield CounterMetricFamily(f"dcp_{name}", says, labels=LABELS)
    for name, says in _NOW.items():
        yield GaugeMetricFamily(f"dcp_{name}", says, labels=LABELS)
    yield CounterMetricFamily("dcp_stream_ends", "Streams of vbuckets that ended.", labels=(*LABELS, "reason"))
    yield GaugeMetricFamily("dcp_stuck_vbuckets", "Vbuckets that do not get on.", labels=(*LABELS, "reason"))
    yield GaugeMetricFamily("dcp_window_bytes", "Flow-control window, 0 for none.", labels=(*LABELS, "node"))
    yield GaugeMetricFamily("dcp_window_used_bytes", "Bytes not processed yet.", labels=(*LABELS, "node"))
    yield GaugeMetricFamily("dcp_lag_items", _LAG_ITEMS, labels=LABELS)
    yield GaugeMetricFamily("dcp_lag_seconds", _LAG_SECONDS, labels=LABELS)
    yield GaugeMetricFamily("dcp_collection_lag_items", _LAG_ITEMS, labels=(*LABELS, "collection"))
    yield GaugeMetricFamily("dcp_collection_lag_seconds", _LAG_SECONDS, labels=(*LABELS, "collection"))


def _values(metric: Metric, stats: Stats) -> Iterator[tuple[tuple[str, ...], float]]:
    """The further labels of each sample of a metric, and its value."""
    name = metric.name.removeprefix("dcp_")
    if name in (*_TOTALS, *_NOW):
        yield (), getattr(stats, name)
        return
    for label, value in _labelled(stats)[name].items():
        yield (() if label is None else (label,)), value


def _labelled(stats: Stats) -> Mapping[str, Mapping[Any, float]]:
    reasons = [stuck.reason for stuck in stats.stuck.values()]
    lags = stats.collections.items()
    return {
        "stream_ends": stats.stream_ends,
        "stuck_vbuckets": {reason: reasons.count(reason) for reason in REASONS},
        "window_bytes": {node: window.size for node, window in stats.connections.items()},
        "window_used_bytes": {node: window.used for node, window in stats.connections.items()},
        "lag_items": {} if stats.lag is None else {None: stats.lag.items},
        "lag_seconds": {} if stats.lag is None else {None: stats.lag.seconds},
        "collection_lag_items": {path: lag.items for path, lag in lags},
        "collection_lag_seconds": {path: lag.seconds for path, lag in lags},
    }
