"""A schema is inferred from a sample of documents, and fits all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from tests.cli.commands import run


def document(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "total": number / 2 if number % 2 else number,
        "customer": {"city": "Graz", "zip": None if number % 3 else "1"},
        "lines": [{"sku": "a", "count": 1}] * (number % 3),
        "created": "2026-01-01T00:00:00Z",
        "day": "2026-01-01",
        "when": "2026-01-01" if number % 2 else "2026-01-01T00:00Z",
        "mixed": number if number % 2 else "a",
        "empty": [],
        "none": None,
        "a.b": True,
        "by": {f"user {number}": 1.5},
    }


SCHEMA = (
    "id bigint, total double, customer struct<city string, zip string>, lines array<struct<sku string, count bigint>>, "
    "created timestamp, day date, when string, mixed json, empty array<json>, none json, `a.b` boolean, "
    "by map<string, double>"
)


def test_an_inferred_schema_fits_the_documents_of_the_sample() -> None:
    with Cluster(vbuckets=4) as cluster:
        for number in range(300):
            cluster.upsert(f"k{number}", json.dumps(document(number)))
        cluster.upsert("image", b"\x89PNG")
        found = dcp.infer_schema(cluster.url)
        assert str(found) == SCHEMA
        assert (found.documents, found.not_json) == (301, 1)
        assert found.paths["total"] == {"bigint": 150, "double": 150}
        assert found.paths["customer.zip"] == {"null": 200, "string": 100}
        assert found.paths["lines[].sku"] == {"string": 300}
        assert found.paths["by[*]"] == {"double": 300}
        with dcp.connect(cluster.url) as client, client.stream(end="now", columns=["key"], document=SCHEMA) as stream:
            wrong = [row["key"] for batch in stream for row in batch.to_arrow().to_pylist() if row["error"]]
        assert wrong == [b"image"]
        shown = run("schema", cluster.url)
        assert shown.stdout.splitlines()[0] == SCHEMA
        assert "301 documents, 1 of them no JSON" in shown.stdout
        assert json.loads(run("schema", cluster.url, "--json", "--sample", 5).stdout)["documents"] == 5
        assert "\n1 document, 0 of them no JSON\n" in run("schema", cluster.url, "--key", "k7").stdout


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ([1, 2.5], "double"),
        ([2**53, 2.5], "double"),
        ([2**53 + 1, 2.5], "json"),
        ([2**63 - 1, -(2**63)], "bigint"),
        ([1, 2**63], "decimal(38,0)"),
        ([2**63, 2.5], "json"),
        ([10**38], "double"),
    ],
)
def test_no_inferred_type_rounds_whole_numbers_below_39_digits(values: list[float], type: str) -> None:
    with Cluster(vbuckets=1) as cluster:
        for number, value in enumerate(values):
            cluster.upsert(f"{number}", json.dumps({"a": value, "m": [value]}))
        assert str(dcp.infer_schema(cluster.url)) == f"a {type}, m array<{type}>"


def test_what_was_seen_of_members_of_a_map_is_joined() -> None:
    """Objects with many names of their own are maps, whose values have what any of them has."""
    with Cluster(vbuckets=2) as cluster:
        for number in range(300):
            value = {"n": number} if number % 2 else {"n": 0.5, "tags": ["a"], "deep": {"x": number}}
            cluster.upsert(f"k{number}", json.dumps({"by": {f"user {number}": value}}))
        found = dcp.infer_schema(cluster.url)
        assert str(found) == "by map<string, struct<n double, tags array<string>, deep struct<x bigint>>>"
        assert found.paths["by[*].n"] == {"bigint": 150, "double": 150}
        assert found.paths["by[*].tags[]"] == {"string": 150}
        assert found.paths["by[*].deep.x"] == {"bigint": 150}


def test_the_sample_has_as_many_documents_as_requested() -> None:
    with Cluster(nodes=2, vbuckets=16) as cluster:
        for number in range(100):
            cluster.upsert(f"k{number}", '{"x":1}')
        # More than either node has, and less than both have.
        found = dcp.infer_schema(cluster.url, sample=80)
        assert (found.documents, found.paths["x"]) == (80, {"bigint": 80})


def test_no_more_is_read_than_the_sample_needs() -> None:
    with Cluster(nodes=2, vbuckets=16) as cluster, cluster.fault("silent", node=1):
        for number in range(100):
            cluster.upsert(f"k{number}", '{"x":1}')
        # The whole bucket would never arrive.
        assert dcp.infer_schema(cluster.url, sample=10).documents == 10


def test_documents_may_be_chosen_by_key_and_condition() -> None:
    with Cluster(vbuckets=4) as cluster:
        cluster.upsert("a1", '{"type":"a","x":1}')
        cluster.upsert("b1", '{"type":"b","y":1}')
        cluster.upsert("b2", '{"type":"c","z":1}')
        assert str(dcp.infer_schema(cluster.url, only_keys="b*", where="type = 'b'")) == "type string, y bigint"


@pytest.mark.parametrize("values", [[], [b"\x89PNG", b"[1]", b"{}"]])
def test_without_objects_there_is_no_schema(values: list[bytes]) -> None:
    with Cluster(vbuckets=4) as cluster:
        for number, value in enumerate(values):
            cluster.upsert(f"k{number}", value)
        with pytest.raises(dcp.UsageError, match="sample: expected documents to infer a schema from, found"):
            dcp.infer_schema(cluster.url)
