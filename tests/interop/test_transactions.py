"""Transactions of SDKs, and what a consumer sees of them."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, NamedTuple

import pytest

import dcp
from dcp.embedded import Cluster
from tests.interop.programs import TRANSACTION_RECORDS, Sdk, truth_by_path

RELEASES = ("7.0", "7.2", "7.6", "8.0")


class Change(NamedTuple):
    """Version of a document as a consumer receives it."""

    event: str
    value: bytes
    xattrs: dict[str, Any]

    @property
    def staged(self) -> Any:
        """Operation that a transaction has staged in the document."""
        return self.xattrs["txn"]["op"]["type"]


def changes(cluster: Cluster) -> dict[bytes, list[Change]]:
    """Return all versions of each document, in order."""
    found: dict[bytes, list[Change]] = defaultdict(list)
    with dcp.connect(cluster.url) as client:
        columns = ["event", "key", "value", "xattrs"]
        for batch in client.stream(end="now", columns=columns, history=True, xattrs="map"):
            for row in batch.to_arrow().to_pylist():
                xattrs = {name: json.loads(text) for name, text in row["xattrs"] or ()}
                found[row["key"]].append(Change(row["event"], row["value"], xattrs))
    return found


def do(sdk: Sdk, job: str, cluster: Cluster) -> None:
    """Let an SDK do transactions; compare what it reads then with what is there."""
    assert sdk.do(job, cluster).state == truth_by_path(cluster)


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_transaction_is_committed(sdk: Sdk, version: str, replicas: int) -> None:
    with Cluster(nodes=2, vbuckets=16, replicas=replicas, password="s3cret", server_version=version) as cluster:
        do(sdk, "transactions", cluster)
        assert json.loads(cluster.truth()[b"replaced"].value) == {"n": 2}
        assert json.loads(cluster.truth()[b"inserted"].value) == {"n": 3}
        assert b"removed" not in cluster.truth()


@pytest.mark.parametrize("version", RELEASES)
def test_a_transaction_is_rolled_back(sdk: Sdk, version: str) -> None:
    with Cluster(nodes=2, vbuckets=16, password="s3cret", server_version=version) as cluster:
        do(sdk, "rollback", cluster)
        assert json.loads(cluster.truth()[b"kept"].value) == {"n": 1}
        assert b"never" not in cluster.truth()


@pytest.mark.parametrize("version", RELEASES)
def test_two_transactions_change_a_document_one_after_the_other(sdk: Sdk, version: str) -> None:
    with Cluster(nodes=2, vbuckets=16, password="s3cret", server_version=version) as cluster:
        do(sdk, "conflict", cluster)
        assert json.loads(cluster.truth()[b"shared"].value) == {"n": 2}


def test_a_consumer_sees_what_is_staged_and_what_is_committed(sdk: Sdk) -> None:
    with Cluster(nodes=2, vbuckets=16, replicas=1, password="s3cret", history=True) as cluster:
        do(sdk, "transactions", cluster)
        seen = changes(cluster)
    before, staged, after = seen[b"replaced"]
    assert [json.loads(one.value) for one in (before, staged, after)] == [{"n": 1}, {"n": 1}, {"n": 2}]
    assert (staged.staged, staged.xattrs["txn"]["op"]["stgd"]) == ("replace", {"n": 2})
    assert (before.xattrs, after.xattrs) == ({}, {})
    # An insert is staged in a tombstone, whose xattr is one of users.
    staged, after = seen[b"inserted"]
    assert (staged.event, staged.value, staged.staged) == ("deletion", b"", "insert")
    assert staged.xattrs["txn"]["op"]["stgd"] == {"n": 3}
    assert (after.event, json.loads(after.value), after.xattrs) == ("mutation", {"n": 3}, {})
    _, staged, after = seen[b"removed"]
    assert (staged.event, staged.staged, after.event, after.xattrs) == ("mutation", "remove", "deletion", {})
    # The record of the attempt says which documents it is about, and becomes COMMITTED before they are.
    (attempts,) = [all for key, all in seen.items() if key.startswith(TRANSACTION_RECORDS + b"atr-")]
    states = [attempt["st"] for change in attempts for attempt in change.xattrs.get("attempts", {}).values() if attempt]
    assert states[0] == "PENDING"
    assert "COMMITTED" in states


def test_a_consumer_sees_that_what_was_staged_is_removed(sdk: Sdk) -> None:
    with Cluster(nodes=2, vbuckets=16, replicas=1, password="s3cret", history=True) as cluster:
        do(sdk, "rollback", cluster)
        seen = changes(cluster)
    before, staged, after = seen[b"kept"]
    assert [json.loads(one.value) for one in (before, staged, after)] == [{"n": 1}] * 3
    assert (staged.staged, after.xattrs) == ("replace", {})
    staged, after = seen[b"never"]
    assert (staged.event, after.event, staged.staged, after.xattrs) == ("deletion", "deletion", "insert", {})
