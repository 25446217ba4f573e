"""The reference of the docs site has every public name, and each has a docstring. `make docs` checks the rest."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.pages import ROOT

MODULES = ("dcp", "dcp.embedded", "dcp.metrics", "dcp.polars", "dcp.spark", "dcp.sync")
LIBRARIES = {"dcp.metrics": "prometheus_client", "dcp.polars": "polars", "dcp.spark": "pyspark"}
REFERENCE = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs/reference").glob("*.md"))
SHOWN = set(re.findall(r"^::: ([\w.]+)$", REFERENCE, re.MULTILINE))


def public(module: str) -> dict[str, Any]:
    """Return the public names of a module with what they stand for, but for those that it has of another one."""
    if module in LIBRARIES:
        pytest.importorskip(LIBRARIES[module])
    found = import_module(module)
    names = getattr(found, "__all__", None) or [
        name for name, value in vars(found).items() if inspect.isfunction(value) and value.__module__ == module
    ]
    others = {} if module == "dcp" else public("dcp")
    return {name: getattr(found, name) for name in names if not name.startswith("_") and name not in others}


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name(module: str) -> None:
    assert [name for name in public(module) if f"{module}.{name}" not in SHOWN] == []


def undocumented(path: str, value: Any) -> Iterator[str]:
    if not inspect.getdoc(value):
        yield path
    if inspect.isclass(value):
        for name, member in vars(value).items():
            is_code = inspect.isroutine(member) or isinstance(member, property)
            if is_code and not name.startswith("_") and not inspect.getdoc(getattr(value, name)):
                yield f"{path}.{name}"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    found = {name: value for name, value in public(module).items() if callable(value)}
    assert [path for name, value in found.items() for path in undocumented(f"{module}.{name}", value)] == []


def test_the_reference_names_nothing_else() -> None:
    for name in SHOWN - {"dcp.errors"}:
        module, _, last = name.rpartition(".")
        if module in LIBRARIES:
            pytest.importorskip(LIBRARIES[module])
        assert hasattr(import_module(module), last), name
