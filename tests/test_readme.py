"""Examples of the README run, and print what the README shows."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from dcp.wire.coverage import rewrite
from tests.pages import PAGES, README, ROOT, examples, output

pytest_plugins = ["pytester"]

EXAMPLES = examples(README)
DOCUMENTS = ROOT / "docs" / "documents.md"


def test_the_readme_has_six_examples() -> None:
    assert list(EXAMPLES) == [
        "Spark: read a bucket",
        "Spark: follow a bucket",
        "Python",
        "Documents as columns",
        "Polars and DuckDB",
        "Test a pipeline",
    ]


@pytest.mark.parametrize(
    ("name", "needs"),
    [("Python", ["pyarrow"]), ("Documents as columns", ["pyarrow"]), ("Polars and DuckDB", ["polars", "duckdb"])],
)
def test_an_example_prints_the_output_below_it(name: str, needs: list[str]) -> None:
    for library in needs:
        pytest.importorskip(library, reason="the example needs it")
    assert output(EXAMPLES[name].code) == EXAMPLES[name].prints


@pytest.mark.parametrize("name", examples(DOCUMENTS))
def test_an_example_of_the_page_on_documents_prints_the_output_below_it(name: str) -> None:
    pytest.importorskip("pyarrow", reason="the example needs it")
    example = examples(DOCUMENTS)[name]
    assert output(example.code) == example.prints


def test_the_example_of_a_test_passes(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pyarrow", reason="the example uses Arrow's own library")
    pytester.makepyfile(EXAMPLES["Test a pipeline"].code)
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines([f"*{EXAMPLES['Test a pipeline'].prints.strip()}*"])


@pytest.mark.parametrize("page", [page for page in PAGES if ">>> " in page.read_text("utf-8")], ids=lambda p: p.name)
def test_a_session_on_a_page_is_reproduced(monkeypatch: pytest.MonkeyPatch, page: Path) -> None:
    pytest.importorskip("pyarrow", reason="the examples use Arrow's own library")
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 5
    assert not failed


def test_the_coverage_tables_are_those_of_the_code() -> None:
    text = README.read_text(encoding="utf-8")
    assert rewrite(text) == text, "run: python -m dcp.wire.coverage README.md"


def test_the_guide_shows_a_capture_as_it_is_printed() -> None:
    pytest.importorskip("click", reason="the command line is an extra")
    from click.testing import CliRunner

    from dcp.cli.commands import dcp as command

    shown = (
        (ROOT / "docs/command-line.md")
        .read_text("utf-8")
        .partition("\nseconds ")[2]
        .partition("\n$ ")[0]
        .splitlines()[1:]
    )
    printed = CliRunner().invoke(command, ["inspect", str(ROOT / "tests/captures/couchbase-xattr.pcapng")]).output
    assert len(shown) == 5
    assert {line.rstrip() for line in printed.splitlines()} >= set(shown)
