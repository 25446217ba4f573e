"""`dcp count`: high seqnos, and the backlog of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dcp.embedded import Cluster
from dcp.embedded.users import User
from tests.cli.commands import fill_two_collections, run, table


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        fill_two_collections(cluster)
        yield cluster


def counted(cluster: Cluster, *options: str | Path) -> dict[str, Any]:
    """Return the JSON that the command prints."""
    found: dict[str, Any] = json.loads(run("count", cluster.url, "--json", *options).output)
    return found


def test_the_totals_come_first(cluster: Cluster) -> None:
    # The creations of the scope and of the collection are changes of each vbucket.
    assert run("count", cluster.url).output.splitlines()[0] == f"{32 + 2 * 4} seqnos in 4 vbuckets"


def test_high_seqnos_are_those_of_the_last_changes(cluster: Cluster) -> None:
    found = counted(cluster)
    for name in ("_default._default", "inventory.hotel"):
        documents = cluster.truth(name).values()
        for vbucket, seqno in found["collections"][name].items():
            last = max((one.seqno for one in documents if one.vbucket == int(vbucket)), default=0)
            # The creation of a collection counts as its change.
            assert int(seqno) == last if name == "_default._default" else int(seqno) >= last
    assert list(counted(cluster, "--collection", "inventory.hotel")["collections"]) == ["inventory.hotel"]
    lines = run("count", cluster.url, "--vbuckets").output.splitlines()
    assert [line.split()[:2] for line in lines[-4:]] == [[v, s] for v, s in found["vbuckets"].items()]


def test_the_backlog_is_what_follows_a_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    assert run("copy", cluster.url, tmp_path / "out").exit_code == 0
    assert counted(cluster, "--checkpoint", tmp_path / "out")["lag"] == "0"
    for n in range(3):
        cluster.upsert(f"later{n}", b"1")
    assert counted(cluster, "--checkpoint", tmp_path / "out")["lag"] == "3"
    assert "3 seqnos behind" in run("count", cluster.url, "--checkpoint", tmp_path / "out").output


def test_a_checkpoint_of_a_recreated_bucket_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    with Cluster(vbuckets=4) as before:
        assert run("copy", before.url, tmp_path / "out").exit_code == 0
    for arguments, remedy in (
        (("count", cluster.url, "--checkpoint", tmp_path / "out"), "it has no backlog in this one"),
        (("checkpoint", "verify", tmp_path / "out", cluster.url), "none of its positions is valid in this one"),
    ):
        refused = run(*arguments)
        assert refused.exit_code == 1
        assert f"deleted and recreated; {remedy}" in refused.output


def test_the_tables_have_the_numbers_of_the_json(cluster: Cluster, tmp_path: Path) -> None:
    assert run("copy", cluster.url, tmp_path / "out").exit_code == 0
    # Of one vbucket.
    for _ in range(3):
        cluster.upsert("later", b"1")
    found = counted(cluster, "--checkpoint", tmp_path / "out")
    seqnos, names = found["vbuckets"], list(found["collections"])
    shown = run("count", cluster.url, "--vbuckets", "--checkpoint", tmp_path / "out").stdout
    totals = [f"{32 + 2 * 4 + 3} seqnos in 4 vbuckets", "3 seqnos behind, in 1 vbucket"]
    assert shown.splitlines()[:2] == totals
    header, *rows = table(shown, "collection")
    assert header == ["collection", "vbuckets with changes", "highest seqno"]
    assert [row[0] for row in rows] == names
    for title, *cells in rows:
        highs = [int(seqno) for seqno in found["collections"][title].values()]
        assert cells == [str(sum(high > 0 for high in highs)), str(max(highs))]
    assert table(shown, "vbucket") == [
        ["vbucket", "seqno", "behind", *names],
        *(
            [number, seqno, found["vbucket_lag"][number], *(found["collections"][name][number] for name in names)]
            for number, seqno in seqnos.items()
        ),
    ]
    assert table(run("count", cluster.url, "--vbuckets").stdout, "vbucket")[0] == ["vbucket", "seqno", *names]
    assert table(run("count", cluster.url).stdout, "vbucket") == []


def test_the_error_for_an_unknown_collection_lists_the_others(cluster: Cluster) -> None:
    result = run("count", cluster.url, "--collection", "inventory.motel")
    assert result.exit_code == 1
    assert "collection 'inventory.motel': expected _default._default, inventory.hotel" in result.output


@pytest.mark.parametrize(("readable", "exit_code"), [("inventory.hotel", 0), ("inventory.motel", 1)])
def test_a_user_of_one_collection_sees_that_one(readable: str, exit_code: int) -> None:
    reader = User("reader", "s3cret", collections=frozenset({readable}))
    with Cluster(vbuckets=4, password="s3cret", users=[reader]) as cluster:
        fill_two_collections(cluster)
        url = f"couchbase://reader:s3cret@{cluster.addresses[0]}/default"
        shown = run("count", url)
        assert shown.exit_code == exit_code
        assert "grant the role data_dcp_reader" in shown.output
        assert "_default._default" in shown.output
        if not exit_code:
            assert "not readable for this user: _default._default" in shown.output
            found = json.loads(run("count", url, "--json").output)
            assert found["seqnos"] is None
            assert list(found["collections"]) == [readable]
            assert found["collections_refused"] == ["_default._default"]


def test_vbuckets_of_a_checkpoint_that_are_ahead_of_the_cluster_are_named(tmp_path: Path) -> None:
    with Cluster(nodes=2, vbuckets=2, replicas=1) as cluster:
        cluster.load(20)
        assert run("copy", cluster.url, tmp_path / "out").exit_code == 0
        assert counted(cluster, "--checkpoint", tmp_path / "out")["vbuckets_ahead"] == []
        cluster.failover(0, lose=2)
        assert counted(cluster, "--checkpoint", tmp_path / "out")["vbuckets_ahead"] == [0]
        printed = run("count", cluster.url, "--checkpoint", tmp_path / "out").output
        assert "1 vbucket of the checkpoint ahead of the cluster, which has lost changes: 0; dcp checkpoint" in printed


def test_the_backlog_of_a_copy_of_one_collection_has_no_changes_of_others(cluster: Cluster, tmp_path: Path) -> None:
    chosen = ("--collection", "inventory.hotel")
    assert run("copy", cluster.url, tmp_path / "out", *chosen).exit_code == 0
    cluster.load(20, prefix="later-")
    assert counted(cluster, "--checkpoint", tmp_path / "out")["lag"] == "0"
    cluster.upsert("later", b"1", collection="inventory.hotel")
    assert int(counted(cluster, "--checkpoint", tmp_path / "out")["lag"]) >= 1


def test_vbuckets_without_an_active_node_are_named() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=0) as cluster:
        cluster.load(40)
        assert counted(cluster)["vbuckets_missing"] == []
        cluster.failover(1)
        assert counted(cluster)["vbuckets_missing"] == [1, 3]
        assert "2 vbuckets without an active node: 1, 3\n" in run("count", cluster.url).stdout
