"""The cookbook and the notebook: every program in them runs, and prints what they show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_guide import parse
from tests.pages import ROOT, examples, output

COOKBOOK, NOTEBOOK, COMPOSE = (ROOT / "docs" / name for name in ("cookbook.md", "tour.ipynb", "compose.yaml"))
LIBRARIES = ("deltalake", "duckdb", "matplotlib", "polars", "pyiceberg")


@pytest.mark.parametrize("name", examples(COOKBOOK))
def test_a_recipe_prints_what_the_page_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in LIBRARIES:
        pytest.importorskip(library, reason="the recipes need it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    recipe = examples(COOKBOOK)[name]
    assert output(recipe.code) == recipe.prints


def printed(notebook: dict[str, Any]) -> list[list[str]]:
    """Return the texts that the cells of a notebook show. Pictures differ in their times."""
    return [
        ["".join(found.get("text") or found["data"]["text/plain"]) for found in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_the_notebook_runs_and_shows_what_is_stored_in_it(tmp_path: Path) -> None:
    for library in (*LIBRARIES, "nbclient", "ipykernel"):
        pytest.importorskip(library, reason="the notebook needs it")
    main = (
        "import sys, nbformat, nbclient\n"
        "notebook = nbformat.read(sys.argv[1], 4)\n"
        "nbclient.NotebookClient(notebook, timeout=120, resources={'metadata': {'path': '.'}}).execute()\n"
        "nbformat.write(notebook, 'executed.ipynb')\n"
    )
    subprocess.run([sys.executable, "-c", main, NOTEBOOK], cwd=tmp_path, check=True, timeout=200)
    executed = json.loads((tmp_path / "executed.ipynb").read_text("utf-8"))
    assert printed(executed) == printed(json.loads(NOTEBOOK.read_text("utf-8")))


def test_the_compose_file_names_valid_commands_and_the_ports_of_its_services() -> None:
    yaml = pytest.importorskip("yaml", reason="the S3 server of the tests brings it")
    text = COMPOSE.read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("#   dcp "):
            parse(line.removeprefix("#   ").partition("   ")[0])
    services = yaml.safe_load(text)["services"]
    assert services["couchbase"]["image"] == services["setup"]["image"]
    assert "11210:11210" in services["couchbase"]["ports"]
