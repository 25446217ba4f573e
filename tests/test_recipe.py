"""The recipe for conda says what pyproject.toml says."""

from __future__ import annotations

import re

import pytest

import dcp
from tests.pages import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def listed(name: str) -> list[str]:
    """Return a list of requirements of pyproject.toml, as conda writes them."""
    found = re.search(rf"^{name} = \[(.*)\]$", PROJECT, re.MULTILINE)
    assert found
    return [re.sub(r"(?=[<>=])", " ", one, count=1).lower() for one in re.findall(r'"(.*?)"', found[1])]


def test_the_recipe_has_the_version_and_the_requirements_of_the_project() -> None:
    yaml = pytest.importorskip("yaml", reason="the S3 server of the tests brings it")
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text("utf-8"))
    assert recipe["context"]["version"] == dcp.__version__
    needs = recipe["requirements"]
    assert {*needs["run"]} == {"python", "yyjson", *listed("dependencies")}
    # The package `yyjson` of conda is the C library, that of the package index brings its sources.
    built_with = {one for one in listed("requires") if not one.startswith("yyjson")}
    assert {*needs["host"]} == {"python", "pip", "yyjson", *built_with}
    assert {*needs["run_constraints"]} <= {*listed("arrow"), *listed("spark")}
    assert recipe["build"]["python"]["entry_points"] == ["dcp = dcp.cli:main"]
