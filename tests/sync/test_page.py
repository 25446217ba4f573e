"""The page about `dcp sync`, and the command that it describes."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from dcp.embedded import Cluster
from dcp.sync.targets import FORMATS
from tests.cli.commands import TIMEOUT, run, start
from tests.cli.sessions import in_a_shell, repeat, session
from tests.pages import ROOT, examples, output
from tests.sync.tables import KINDS, TableOf, rows_of, truth_of

PAGE = ROOT / "docs" / "sync.md"


@pytest.mark.parametrize("heading", examples(PAGE))
def test_an_example_prints_what_the_page_shows(heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = examples(PAGE)[heading]
    assert output(example.code) == example.prints


@in_a_shell
def test_the_session_of_the_page_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeat(session(PAGE, "Try it"), tmp_path, monkeypatch)


def test_the_page_has_every_kind_of_table() -> None:
    assert sorted(FORMATS) == sorted(KINDS)
    page = PAGE.read_text("utf-8")
    assert all(f"| `{name}" in page for name in ("FILE.duckdb", "DIRECTORY.delta", "FILE.parquet", "iceberg://"))


def test_a_run_says_what_it_applied(tmp_path: Path) -> None:
    table = TableOf("duckdb", tmp_path)
    with Cluster(vbuckets=4) as cluster:
        cluster.load(20)
        first = run("sync", cluster.url, table.name)
        assert first.exit_code == 0, first.output
        assert re.search(r"^20 changes \(20 mutations\) in [\d.]+ s, 1 transaction\n20 rows in ", first.stdout)
        cluster.delete("key-0000000003")
        found = json.loads(run("sync", cluster.url, table.name, "--json").stdout)
        assert {name: found[name] for name in ("events", "written", "deleted", "rows", "transactions")} == {
            "events": {"deletion": 1},
            "written": 0,
            "deleted": 1,
            "rows": 19,
            "transactions": 1,
        }
        again = json.loads(run("sync", cluster.url, table.name, "--json").stdout)
        assert (again["transactions"], again["rows"]) == (0, 19)


def test_a_schema_is_inferred_once(tmp_path: Path) -> None:
    table = TableOf("parquet", tmp_path)
    with Cluster(vbuckets=4) as cluster:
        cluster.upsert("a", b'{"id": 1}')
        assert "schema: id bigint" in run("sync", cluster.url, table.name, "--infer").output
        cluster.upsert("b", b'{"id": 2, "more": true}')
        cluster.upsert("c", b'{"id": "3"}')
        assert "schema: " not in run("sync", cluster.url, table.name, "--infer").output
    rows = sorted(table.read().to_pylist(), key=lambda row: row["key"])
    assert [(row["id"], row["error"]) for row in rows] == [
        (1, None),
        (2, None),
        (None, 'id: expected bigint, found "3"'),
    ]
    assert "more" not in rows[0]


def test_a_schema_is_inferred_from_the_documents_of_the_table(tmp_path: Path) -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.create_scope("shop")
        for name in ("order", "item"):
            cluster.create_collection("shop", name)
            cluster.upsert("a", {name: 1}, collection=f"shop.{name}")
        cluster.upsert("a", {"other": 1})
        for options, expected in (
            (["--scope", "shop"], "order bigint, item bigint"),
            (["--scope", "shop", "--collection", "item"], "item bigint"),
            (["--collection", "shop.item"], "item bigint"),
        ):
            out = tmp_path / f"{'-'.join(options)}.parquet"
            found = run("sync", cluster.url, out, "--infer", *options)
            assert f"schema: {expected}\n" in found.output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_asked_to_end_applies_what_has_arrived(tmp_path: Path, number: signal.Signals) -> None:
    table = TableOf("parquet", tmp_path)
    with Cluster(vbuckets=4) as cluster:
        cluster.load(100)
        with start("sync", cluster.url, table.name, "--follow", "--commit-every", "100ms", "--verbose") as sync:
            assert sync.stderr is not None
            for line in sync.stderr:
                if ": transaction 1: " in line:
                    break
            sync.send_signal(number)
            _, errors = sync.communicate(timeout=TIMEOUT)
        assert sync.returncode == 0, errors
        assert rows_of(table.read()) == truth_of(cluster)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("table.csv", "expected a name that ends in .duckdb, .delta, .parquet, or iceberg://"),
        ("iceberg://catalog", "expected iceberg://CATALOG/NAMESPACE.TABLE"),
        ("iceberg://user:s3cret@catalog/a.b", "expected iceberg://CATALOG/NAMESPACE.TABLE"),
        ("iceberg://unknown/a.b", "configure it in ~/.pyiceberg.yaml, or by PYICEBERG_CATALOG__UNKNOWN__URI"),
        ("s3://key:s3cret@lake/a.duckdb", "expected the path of a DuckDB file, found a URL of s3://"),
        ("couchbase://me:s3cret@host/bucket", "expected a table, found the URL of a bucket; check the order"),
        ("s3://key:s3cret@[.delta", "expected a path or a URL, found a malformed URL"),
        ("ftq://key:s3cret@host/a.parquet", "a file system of fsspec"),
    ],
)
def test_what_is_no_table_is_wrong_usage(target: str, message: str) -> None:
    found = run("sync", "couchbase://host/bucket", target)
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert "s3cret" not in found.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--table", "a", "x.parquet"], "table: expected it for a DuckDB file only"),
        (["--table", "dcp_sync", "x.duckdb"], "expected another name than dcp_sync"),
        (["--infer", "--schema", "id int", "x.duckdb"], "expected one of them, found both"),
        (["--format", "iceberg", "x.parquet"], "expected a name that ends in"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], message: str) -> None:
    found = run("sync", "couchbase://host/bucket", *options)
    assert found.exit_code == 2, found.output
    assert message in found.output


def test_several_tables_share_a_file(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "shop.duckdb"
    with Cluster(vbuckets=4) as cluster:
        cluster.create_scope("shop")
        for name, count in (("order", 3), ("item", 5)):
            cluster.create_collection("shop", name)
            cluster.load(count, collection=f"shop.{name}")
            found = run("sync", cluster.url, path, "--table", name, "--collection", f"shop.{name}")
            assert found.exit_code == 0, found.output
    with duckdb.connect(str(path), read_only=True) as database:
        assert database.sql('select (select count(*) from "order"), (select count(*) from item)').fetchall() == [(3, 5)]


def test_a_command_that_follows_waits_for_a_cluster_that_is_away(tmp_path: Path) -> None:
    table = TableOf("duckdb", tmp_path)
    with Cluster(vbuckets=4) as cluster:
        cluster.load(30)
        url = cluster.url
        cluster.crash(0)
        assert run("sync", url, table.name).exit_code == 1
        with start("sync", url, table.name, "--follow", "--commit-every", "100ms", "--verbose") as sync:
            assert sync.stderr is not None
            assert any("trying again" in line for line in sync.stderr)
            cluster.recover(0)
            assert any(": transaction " in line for line in sync.stderr)
            sync.terminate()
            sync.communicate(timeout=TIMEOUT)
            assert sync.returncode == 0
        assert rows_of(table.read()) == truth_of(cluster)


def test_the_schema_of_a_table_with_text_is_not_inferred(tmp_path: Path) -> None:
    table = TableOf("duckdb", tmp_path)
    with Cluster(vbuckets=4) as cluster:
        cluster.upsert("a", {"id": 1})
        assert run("sync", cluster.url, table.name).exit_code == 0
        found = run("sync", cluster.url, table.name, "--infer")
    assert found.exit_code == 1
    assert "has documents as JSON text, and keeps them: name a new table" in found.output
