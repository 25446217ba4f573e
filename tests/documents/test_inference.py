"""A schema is inferred from a sample of documents, and fits all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dcp
from dcp.client.schema_inference import _Seen
from dcp.columns.document_schema import DEEPEST, document_type
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


def type_of(*values: Any) -> str:
    """Return the type of some values at one path."""
    seen = _Seen()
    for value in values:
        seen.add(value)
    return seen.type()


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ([None], "json"),
        ([None, True], "boolean"),
        ([True, 1], "json"),
        ([-(1 << 63) - 1], "decimal(38,0)"),
        ([1, 10**38 - 1, 1 - 10**38], "decimal(38,0)"),
        ([1, 2.5, 10**38], "json"),
        ([-(1 << 53), 2.5], "double"),
        ([-(1 << 53) - 1, 2.5], "json"),
        (["a", "2026-01-01"], "string"),
        (["a", "2026-01-01", "2026-01-01T00:00Z"], "string"),
        (["2026-01-01", "2026-01-01"], "date"),
        (["a", 1], "json"),
        ([{}], "json"),
        ([{"a": 1}, []], "json"),
        ([{"a": {}}, {"a": {}}], "struct<a json>"),
        # A schema cannot name it.
        ([{"": 1}], "json"),
        ([{"": 1, "a": 1}], "struct<a bigint>"),
        ([[], []], "array<json>"),
        ([[1], [2.5, None]], "array<double>"),
        ([[[1]], [["a"]]], "array<array<json>>"),
    ],
)
def test_values_of_several_types_have_the_narrowest_for_all(values: list[Any], type: str) -> None:
    assert type_of(*values) == type


@pytest.mark.parametrize(
    ("count", "repeated", "type"),
    [
        (101, 1, "map<string, bigint>"),
        (100, 1, "struct"),
        # A tenth of the objects, and one, may have a name of a map.
        (1000, 101, "map<string, bigint>"),
        (1000, 102, "struct"),
    ],
)
def test_an_object_with_many_names_that_few_objects_have_is_a_map(count: int, repeated: int, type: str) -> None:
    objects = [{f"n{number}": 1} for number in range(count - repeated + 1)] + [{"n0": 1}] * (repeated - 1)
    assert type_of(*objects).partition("<n")[0] == type


def test_a_map_is_wide_enough_for_large_numbers_of_any_member() -> None:
    numbers = [0.5] * 100 + [(1 << 53) + 1]
    assert type_of(*({f"n{number}": value} for number, value in enumerate(numbers))) == "map<string, json>"


def test_documents_that_are_maps_themselves_have_the_type_of_their_members() -> None:
    with Cluster(vbuckets=1) as cluster:
        for number in range(101):
            cluster.upsert(f"k{number}", json.dumps({f"n{number}": 1.5}))
        found = dcp.infer_schema(cluster.url)
        assert str(found) == "map<string, double>"
        assert found.paths == {"document": {"object": 101}, "[*]": {"double": 101}}
        with dcp.connect(cluster.url) as client, client.stream(end="now", document=str(found)) as stream:
            assert [row["error"] for batch in stream for row in batch.to_arrow().to_pylist()] == [None] * 101


def test_no_schema_is_deeper_than_schemas_may_be() -> None:
    value: Any = 1
    for _ in range(100):
        value = {"a": value}
    seen = _Seen()
    seen.add(value)
    assert str(document_type(seen.field_list())).count("struct<") == DEEPEST - 2
    # What is below is not even kept.
    assert len([*seen.paths()]) == DEEPEST + 2


@pytest.mark.parametrize("sample", [0, -1])
def test_an_empty_sample_is_refused(sample: int) -> None:
    with pytest.raises(dcp.UsageError, match=f"sample: expected 1 or more documents, found {sample}"):
        dcp.infer_schema("couchbase://host/bucket", sample=sample)


def test_a_sample_of_one_document_is_enough() -> None:
    with Cluster(vbuckets=1) as cluster:
        for number in range(3):
            cluster.upsert(f"k{number}", '{"x": 1}')
        assert dcp.infer_schema(cluster.url, sample=1).documents == 1


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


@pytest.mark.parametrize("values", [[], [b"\x89PNG", b"[1]", b"{}", b'{"": 1}']])
def test_without_objects_there_is_no_schema(values: list[bytes]) -> None:
    with Cluster(vbuckets=4) as cluster:
        for number, value in enumerate(values):
            cluster.upsert(f"k{number}", value)
        with pytest.raises(dcp.UsageError, match="sample: expected documents to infer a schema from, found"):
            dcp.infer_schema(cluster.url)
