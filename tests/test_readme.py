"""Examples of the README and of the first pages run, and print what these show."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.pages import FIRST, PAGES, README, ROOT, Example, examples, output

pytest_plugins = ["pytester"]

EXAMPLES = {(page.stem, name): example for page in FIRST for name, example in examples(page).items()}
DOCUMENTS = ROOT / "docs" / "documents.md"


def test_the_readme_has_an_example_for_each_kind_of_user() -> None:
    assert list(examples(README)) == ["A table in Spark", "Polars, DuckDB and Arrow", "A test fixture"]
    assert len(README.read_text("utf-8").splitlines()) < 200


TESTS = {" ".join(name): example for name, example in EXAMPLES.items() if example.is_test}
PROGRAMS = {
    " ".join(name): example for name, example in EXAMPLES.items() if not (example.is_test or example.needs_spark)
}


@pytest.mark.parametrize("example", PROGRAMS.values(), ids=PROGRAMS)
def test_an_example_prints_the_output_below_it(example: Example) -> None:
    for library in ("pyarrow", "polars", "duckdb"):
        if library == "pyarrow" or f"import {library}" in example.code:
            pytest.importorskip(library, reason="the example needs it")
    assert output(example.code) == example.prints


@pytest.mark.parametrize("name", examples(DOCUMENTS))
def test_an_example_of_the_page_on_documents_prints_the_output_below_it(name: str) -> None:
    pytest.importorskip("pyarrow", reason="the example needs it")
    example = examples(DOCUMENTS)[name]
    assert output(example.code) == example.prints


@pytest.mark.parametrize("example", TESTS.values(), ids=TESTS)
def test_the_example_of_a_test_passes(pytester: pytest.Pytester, example: Example) -> None:
    pytest.importorskip("pyarrow", reason="the example uses Arrow's own library")
    pytester.makepyfile(example.code)
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines([f"*{example.prints.strip()}*"])


@pytest.mark.parametrize("page", [page for page in PAGES if ">>> " in page.read_text("utf-8")], ids=lambda p: p.name)
def test_a_session_on_a_page_is_reproduced(monkeypatch: pytest.MonkeyPatch, page: Path) -> None:
    pytest.importorskip("pyarrow", reason="the examples use Arrow's own library")
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 5
    assert not failed


@pytest.mark.parametrize(("page", "lines"), [("README.md", 3), ("docs/command-line.md", 5)])
def test_a_page_shows_a_capture_as_it_is_printed(page: str, lines: int) -> None:
    pytest.importorskip("click", reason="the command line is an extra")
    from click.testing import CliRunner

    from dcp.cli.commands import dcp as command

    shown = re.split(r"\n\$ |\n```", (ROOT / page).read_text("utf-8").partition("\nseconds ")[2])[0].splitlines()[1:]
    printed = CliRunner().invoke(command, ["inspect", str(ROOT / "tests/captures/couchbase-xattr.pcapng")]).output
    assert len(shown) == lines
    assert {line.rstrip() for line in printed.splitlines()} >= set(shown)
