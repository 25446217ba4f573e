"""`dcp count`: how far a bucket is, and how far behind somebody is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dcp.embedded import Cluster
from tests.cli.running import hotel, run


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        hotel(cluster)
        yield cluster


def told(cluster: Cluster, *options: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("count", cluster.url, "--json", *options).output)
    return found


def test_the_totals_come_first(cluster: Cluster) -> None:
    # Each vbucket has the scope and the collection as changes, too.
    assert run("count", cluster.url).output.splitlines()[0] == f"{32 + 2 * 4} seqnos in 4 vbuckets"


def test_high_seqnos_are_those_of_the_last_changes(cluster: Cluster) -> None:
    found = told(cluster)
    for name in ("_default._default", "inventory.hotel"):
        documents = cluster.truth(name).values()
        for vbucket, seqno in found["collections"][name].items():
            last = max((one.seqno for one in documents if one.vbucket == int(vbucket)), default=0)
            # That a collection was made is a change of it.
            assert int(seqno) == last if name == "_default._default" else int(seqno) >= last
    assert list(told(cluster, "--collection", "inventory.hotel")["collections"]) == ["inventory.hotel"]
    lines = run("count", cluster.url, "--vbuckets").output.splitlines()
    assert [line.split()[:2] for line in lines[-4:]] == [[v, s] for v, s in found["vbuckets"].items()]


def test_the_lag_is_what_came_after_a_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    assert run("copy", cluster.url, tmp_path / "out").exit_code == 0
    assert told(cluster, "--checkpoint", tmp_path / "out")["lag"] == "0"
    for n in range(3):
        cluster.upsert(f"later{n}", b"1")
    assert told(cluster, "--checkpoint", tmp_path / "out")["lag"] == "3"
    assert "3 seqnos behind" in run("count", cluster.url, "--checkpoint", tmp_path / "out").output


def test_a_collection_that_is_not_there_is_named_with_those_that_are(cluster: Cluster) -> None:
    result = run("count", cluster.url, "--collection", "inventory.motel")
    assert result.exit_code == 1
    assert "collection 'inventory.motel': expected _default._default, inventory.hotel" in result.output
