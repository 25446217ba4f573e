"""Seeds from DNS SRV records, answered by a name server of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dcp
from dcp.client.connection_string import HostPort
from dcp.client.transport import lookup_srv
from dcp.embedded import Cluster
from tests.client.name_server import name_server

NAME = "_couchbases._tcp.cloud.example."
RECORDS = ["20 0 11207 late.example.", "10 1 11207 light.example.", "10 9 11208 heavy.example."]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with name_server(monkeypatch, {NAME: RECORDS}):
        yield


@pytest.mark.usefixtures("answered")
def test_records_are_tried_by_priority_then_by_weight() -> None:
    expected = [("heavy.example", 11208), ("light.example", 11207), ("late.example", 11207)]
    assert lookup_srv(NAME.rstrip("."), 5.0) == tuple(HostPort(host, port) for host, port in expected)


@pytest.mark.usefixtures("answered")
def test_a_name_without_records_has_none() -> None:
    assert lookup_srv("_couchbase._tcp.single.example", 5.0) == ()


def test_no_name_server_is_asked_about_a_url_with_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with name_server(monkeypatch, {}) as asked, Cluster(vbuckets=1) as cluster, dcp.connect(cluster.url) as client:
        assert client.positions().num_vbuckets == 1
    assert asked == []
