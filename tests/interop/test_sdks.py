"""SDKs write to an embedded cluster, and read what it has."""

from __future__ import annotations

import pytest

from dcp.embedded import Cluster
from tests.interop.programs import Sdk, truth_by_path

RELEASES = ("7.0", "7.2", "7.6", "8.0")
# Of each kind as many as the programs write.
DOCUMENTS = 200 - 29 + 9 + 50
REPLICA_LOOKUPS = {"7.6": {"replica_lookup": "on"}, "8.0": {"replica_lookup": "on"}}
# Seconds. The first connection of a program takes longer: it loads classes.
READY = 1.2


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "tls")


@pytest.fixture(params=["7.6", "8.0"])
def scanning(request: pytest.FixtureRequest) -> str:
    """First and newest release with scans."""
    return str(request.param)


@pytest.fixture(params=RELEASES)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pair(version: str, *, tls: bool = False) -> Cluster:
    return Cluster(nodes=2, vbuckets=64, replicas=1, password="s3cret", server_version=version, tls=tls)


def test_what_an_sdk_writes_is_there(sdk: Sdk, version: str, tls: bool) -> None:
    with pair(version, tls=tls) as cluster:
        found = sdk.do("documents", cluster, tls=tls, **REPLICA_LOOKUPS.get(version, {})).state
        assert found == truth_by_path(cluster)
        assert found.documents == DOCUMENTS
        assert cluster.truth()[b"text"].value == b"abc"
        assert cluster.truth()[b"counter"].value == b"6"
        assert cluster.truth()[b"made"].value == b'{"x":1}'


def test_an_sdk_scans_documents(sdk: Sdk, scanning: str, tls: bool) -> None:
    with pair(scanning, tls=tls) as cluster:
        assert sdk.do("scan", cluster, tls=tls).state == truth_by_path(cluster)
        assert len(cluster.truth()) == 100


def test_an_sdk_is_ready_within_about_a_second(sdk: Sdk, version: str, tls: bool) -> None:
    with pair(version, tls=tls) as cluster:
        assert min(sdk.do("connect", cluster, tls=tls).ready for _ in range(3)) < READY


def test_a_durable_write_with_too_few_copies_is_impossible(sdk: Sdk, version: str) -> None:
    with Cluster(nodes=2, vbuckets=64, replicas=1, password="s3cret", server_version=version) as cluster:
        # No node is left for the replica.
        cluster.failover(1)
        sdk.do("impossible", cluster)
        assert not cluster.truth()
