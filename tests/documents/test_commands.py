"""`dcp tail` and `dcp copy` with a schema and a condition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dcp.embedded import Cluster
from tests.cli.commands import run

SCHEMA = "n bigint, total decimal(9,2), at date, tags map<string, array<double>>"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(vbuckets=4) as cluster:
        cluster.upsert("order::1", '{"type":"order","n":1,"total":1.10,"at":"2026-11-01","tags":{"a":[1,2.5]}}')
        cluster.upsert("order::2", '{"type":"order","n":"2","total":2}')
        cluster.upsert("note::1", '{"type":"note","n":3}')
        cluster.upsert("image", b"\x89PNG")
        cluster.upsert("gone", "{}")
        cluster.delete("gone")
        yield cluster


def test_tail_prints_typed_documents_for_which_a_condition_is_true(cluster: Cluster) -> None:
    found = run(
        "tail",
        cluster.url,
        "--from",
        "beginning",
        "--to",
        "now",
        "--schema",
        SCHEMA,
        "--where",
        "type = 'order'",
        "--json",
    )
    assert found.exit_code == 0, found.output
    rows = {row["key"]: row for row in map(json.loads, found.stdout.splitlines())}
    assert set(rows) == {"order::1", "order::2", "image", "gone"}
    assert rows["order::1"]["document"] == {"n": 1, "total": "1.10", "at": "2026-11-01", "tags": {"a": [1.0, 2.5]}}
    assert "value" not in rows["order::1"]
    assert rows["order::2"]["document"]["total"] == "2.00"
    assert rows["order::2"]["error"] == 'n: expected bigint, found "2"'
    assert rows["gone"]["event"] == "deletion"
    table = run("tail", cluster.url, "--from", "beginning", "--to", "now", "--schema", "n bigint")
    assert 'order::2  {"n": null}  (n: expected bigint, found "2")' in table.stdout


def test_a_copy_has_typed_columns_and_resumes_with_the_same_options_only(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "orders.parquet"
    options = ("--schema", "n bigint, total decimal(9,2)", "--where", "type = 'order'")
    first = run("copy", cluster.url, str(out), *options)
    assert first.exit_code == 0, first.output
    table = pq.read_table(out)
    assert str(table.schema.field("document").type) == "struct<n: int64, total: decimal128(9, 2)>"
    assert sorted(table["key"].to_pylist()) == [b"gone", b"image", b"order::1", b"order::2"]
    assert run("copy", cluster.url, str(out), *options).exit_code == 0
    for others in ((), options[:2], (*options[:3], "type = 'note'")):
        refused = run("copy", cluster.url, str(out), *others)
        assert refused.exit_code == 1
        assert (
            "expected --schema 'n bigint, total decimal(9,2)' --where \"type = 'order'\", as it was begun with"
            in refused.stderr.replace("\n", " ")
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--schema", "n bigit"), "found 'bigit' at character 3 (did you mean bigint?)"),
        (("--schema", "n of"), "--schema: expected a type: boolean"),
        (("--schema", "n bigint,"), "--schema: expected a name"),
        (("--where", "n ="), "--where: expected a text in quotes, a number, TRUE or FALSE, found the end"),
    ],
)
@pytest.mark.parametrize("command", ["tail", "copy"])
def test_a_wrong_schema_or_condition_is_a_mistake_in_that_flag(
    command: str, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    out = (str(tmp_path / "out"),) if command == "copy" else ()
    found = run(command, "couchbase://localhost/b", *out, *arguments)
    assert found.exit_code == 2
    assert message in found.stderr
    assert not (tmp_path / "out").exists()
