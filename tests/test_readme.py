"""What the README shows is what a reader gets."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from dcp.wire.coverage import rewrite

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def test_the_examples_print_what_the_readme_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", reason="the examples use Arrow's own library")
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(README), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 5
    assert not failed


def test_the_coverage_tables_are_those_of_the_code() -> None:
    text = README.read_text(encoding="utf-8")
    assert rewrite(text) == text, "run: python -m dcp.wire.coverage README.md"


def test_the_demo_prints_the_lines_that_the_readme_shows() -> None:
    pytest.importorskip("click", reason="the command line is an extra")
    from click.testing import CliRunner

    from dcp.cli.group import dcp as command

    shown = README.read_text(encoding="utf-8").partition("seconds   from")[2].partition("```")[0].splitlines()[1:]
    printed = CliRunner().invoke(command, ["inspect", str(ROOT / "tests/captures/couchbase-xattr.pcapng")]).output
    assert len(shown) == 5
    assert {line.rstrip() for line in printed.splitlines()} >= set(shown)
