"""Connectors that are in no registry: what they send, in their order, with the client that they stand on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from dcp.embedded import Cluster
from tests.interop.programs import GO_DCP, Sdk, truth
from tests.interop.test_consumers import fill

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
