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
