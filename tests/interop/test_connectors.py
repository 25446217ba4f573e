"""Connectors that are in no registry: what they send, in their order, with the client that they stand on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from dcp.embedded import Cluster
from tests.interop.programs import GO_DCP, Sdk, Start, truth, truth_by_path
from tests.interop.test_consumers import fill
from tests.waiting import until

# What go-dcp asks for in each release: it knows storage engines, and resumes over purged tombstones.
OPTIONS = {
    "7.0": {},
    "7.2": {"ignore_purged": "on", "magma": "on"},
    "7.6": {"ignore_purged": "on"},
    "8.0": {"ignore_purged": "on", "magma": "on"},
}


@pytest.fixture(scope="module")
def go_dcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sdk]:
    """Program that does what go-dcp does."""
    with closing(Sdk(GO_DCP, tmp_path_factory.mktemp("go-dcp") / "errors.txt")) as process:
        yield process


@pytest.mark.parametrize("version", list(OPTIONS))
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_go_dcp_keeps_checkpoints_and_reads_everything(go_dcp: Sdk, version: str, tls: bool) -> None:
    options = OPTIONS[version]
    with Cluster(
        nodes=2,
        vbuckets=16,
        replicas=1,
        password="s3cret",
        server_version=version,
        tls=tls,
        history="magma" in options,
    ) as cluster:
        fill(cluster)
        before = truth(cluster)
        address = urlsplit(cluster.tls_management_url if tls else cluster.management_url).netloc
        assert go_dcp.do("go-dcp", cluster, tls=tls, http=address, version=version, **options).state == before


@pytest.mark.parametrize("consumer", ["java-dcp-client"], indirect=True)
@pytest.mark.parametrize("version", list(OPTIONS))
@pytest.mark.parametrize("history", [False, True])
def test_the_source_of_the_kafka_connector_reads_everything(start: Start, version: str, history: bool) -> None:
    with Cluster(
        nodes=2, vbuckets=16, replicas=1, password="s3cret", server_version=version, history=history
    ) as cluster:
        fill(cluster)
        cluster.upsert("changed", b"1")
        cluster.snapshot()
        with start(cluster, kafka="on", snappy="on") as program:
            until(lambda: program.state() == truth(cluster))
            cluster.upsert("changed", b"2")
            until(lambda: program.state() == truth(cluster))


@pytest.mark.parametrize("sdk", ["java"], indirect=True)
@pytest.mark.parametrize("version", list(OPTIONS))
def test_the_sink_of_the_kafka_connector_writes_documents_and_parts(sdk: Sdk, version: str) -> None:
    with Cluster(nodes=2, vbuckets=16, replicas=1, password="s3cret", server_version=version) as cluster:
        assert sdk.do("sink", cluster).state == truth_by_path(cluster)
        assert cluster.truth()[b"parts-07"].value == b'{"a":{"value":7},"b":{"list":[-7,7]}}'
        assert len(cluster.truth()) == 40
