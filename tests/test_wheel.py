"""Contents of the installed wheel. `make dist` installs one; an editable install has none."""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

FILES = {str(path): Path(str(path.locate())) for path in distribution("dcp-arrow").files or ()}
EXTENSION = [path for name, path in FILES.items() if name.startswith("dcp/_codec.") and path.suffix in (".so", ".pyd")]

pytestmark = pytest.mark.skipif(not EXTENSION, reason="the package is installed as editable")


def test_the_bill_of_materials_names_the_version_of_yyjson() -> None:
    (path,) = (path for name, path in FILES.items() if ".dist-info/sboms/" in name.replace("\\", "/"))
    found = json.loads(path.read_text("utf-8"))
    assert (found["bomFormat"], found["metadata"]["component"]["version"]) == (
        "CycloneDX",
        distribution("dcp-arrow").version,
    )
    (yyjson,) = found["components"]
    assert yyjson["name"] == "yyjson"
    assert tuple(map(int, yyjson["version"].split("."))) >= (0, 10)


def test_the_extension_is_stripped() -> None:
    (extension,) = EXTENSION
    assert extension.stat().st_size < 1 << 20
    if sys.platform == "linux":
        assert b".symtab" not in extension.read_bytes()


def test_only_the_package_is_installed() -> None:
    tops = {name.replace("\\", "/").partition("/")[0] for name in FILES}
    assert {top for top in tops if not top.endswith(".dist-info")} - {"..", "__pycache__"} == {"dcp", "pyspark_dcp"}
    assert [name for name in FILES if name.endswith((".pyx", ".pxi", ".c"))] == []
