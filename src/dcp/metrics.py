"""Prometheus metrics of clients: `dcp.metrics.register(client)`. Needs the extra `metrics`."""

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
from dcp.client.monitor import REASONS
from dcp.client.stats import Stats
from dcp.errors import UsageError

__all__ = ["register"]

# Labels of every metric. `client` is a number, by the order of registration.
LABELS = ("bucket", "client")

_TOTALS = {
    "changes": "Changes received from nodes.",
    "bytes": "Bytes received from nodes, as flow control counts them.",
    "batches": "Batches received.",
    "unselected_rows": "Changes that were received but not selected.",
    "bad_rows": "Changes with a value, or a part of a document, that could not be read.",
    "rollbacks": "Rollbacks of vbuckets, after the cluster lost changes.",
    "reconnects": "Connections lost.",
}
_NOW = {
    "changes_per_second": "Changes per second, over the last stats_interval.",
    "bytes_per_second": "Bytes per second, over the last stats_interval.",
    "vbuckets": "Vbuckets being followed.",
    "streams": "Open streams, one per vbucket.",
}
_LAG_ITEMS = "Changes that the consumer has not received yet, at most."
_LAG_SECONDS = "Seconds since the consumer was last up to date."


class _Clients(Collector):
    """Clients of one registry. Weak references: a client without other references is dropped."""

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
    """Export the metrics of a client, as long as the client exists.

    client: client to export. Registering it twice has no effect.
    registry: registry of prometheus_client; its default one by default.
    """
    if not isinstance(client, Client):
        raise UsageError(f"client: expected a dcp.Client, found a {type(client).__name__}")
    if registry not in _collectors:
        clients = _Clients()
        registry.register(clients)
        _collectors[registry] = clients
    _collectors[registry].add(client)


def _metrics() -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    for name, text in _TOTALS.items():
        yield CounterMetricFamily(f"dcp_{name}", text, labels=LABELS)
    for name, text in _NOW.items():
        yield GaugeMetricFamily(f"dcp_{name}", text, labels=LABELS)
    yield CounterMetricFamily("dcp_stream_ends", "Streams of vbuckets that ended.", labels=(*LABELS, "reason"))
    yield GaugeMetricFamily("dcp_stuck_vbuckets", "Vbuckets without progress.", labels=(*LABELS, "reason"))
    yield GaugeMetricFamily("dcp_window_bytes", "Flow-control window, 0 for none.", labels=(*LABELS, "node"))
    yield GaugeMetricFamily("dcp_window_used_bytes", "Bytes not processed yet.", labels=(*LABELS, "node"))
    yield GaugeMetricFamily("dcp_lag_items", _LAG_ITEMS, labels=LABELS)
    yield GaugeMetricFamily("dcp_lag_seconds", _LAG_SECONDS, labels=LABELS)
    yield GaugeMetricFamily("dcp_collection_lag_items", _LAG_ITEMS, labels=(*LABELS, "collection"))
    yield GaugeMetricFamily("dcp_collection_lag_seconds", _LAG_SECONDS, labels=(*LABELS, "collection"))


def _values(metric: Metric, stats: Stats) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the further labels and the value of each sample of a metric."""
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
