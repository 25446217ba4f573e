"""Rules for src/dcp, checked by reading the source: imports, names of classes, openings of docstrings.

Each rule yields its violations as `file:line: what is wrong` for any source tree. The end of this file shows that each
rule finds a violation in a tree that has one.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import dcp
from tests.alone import Importer, importer
from tests.rooms import EVERYTHING, MAY_IMPORT, SOURCE

OUTSIDE = frozenset(["client", "embedded", "sync", "spark", "bench", "cli"])
SOCKETS = ["socket", "ssl", "select", "selectors", "asyncio", "subprocess"]
CLOCKS_AND_THREADS = ["time", "threading", "concurrent", "multiprocessing"]

# Optional libraries: the rooms that may import them. `import dcp` works without any of them.
LIBRARIES: dict[str, frozenset[str]] = {
    "numpy": frozenset(["columns", "sync", "spark", "bench", "cli"]),
    "pyarrow": frozenset(["columns", "sync", "polars", "spark", "bench", "cli"]),
    "deltalake": frozenset(["sync"]),
    "duckdb": frozenset(["sync", "bench"]),
    "pyiceberg": frozenset(["sync"]),
    "fsspec": frozenset(["sync"]),
    "polars": frozenset(["polars", "bench"]),
    "pandas": frozenset(["spark"]),
    "pyspark": frozenset(["spark", "bench", "cli"]),
    "prometheus_client": frozenset(["metrics"]),
    "scramp": frozenset(["session", "embedded"]),
}
# Libraries that every installation has: the rooms that may import them.
REQUIRED = {"dns": frozenset(["client"]), "scramp": frozenset(["session", "embedded"])}
LIBRARIES |= REQUIRED
# Imported only on request, so what they need may be imported at the top of their modules.
LOADED_ON_REQUEST = frozenset(["spark", "bench", "cli", "metrics", "polars", "pytest_plugin"])


class Import(NamedTuple):
    where: str
    room: str
    target: str
    at_import: bool
    """Whether it runs when the module is imported: neither in a function nor under TYPE_CHECKING."""


def modules(source: Path) -> list[Path]:
    return sorted((source / "dcp").rglob("*.py"))


def module_name(source: Path, path: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(source: Path, path: Path) -> str:
    return path.relative_to(source / "dcp").parts[0].removesuffix(".py")


def where(source: Path, path: Path, line: int) -> str:
    return f"{path.relative_to(source.parent)}:{line}"


def targets(node: ast.Import | ast.ImportFrom, package: list[str]) -> Iterator[str]:
    """Yield the modules that an import statement names, as absolute names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = package[: len(package) - node.level + 1] if node.level else []
    module = ".".join([*base, *([node.module] if node.module else [])])
    if module == "dcp":
        yield from (f"dcp.{alias.name}" for alias in node.names)
    else:
        yield module


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def statements(node: ast.AST, at_import: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_import
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(child)
        yield from statements(child, at_import and not deferred)


def imports(source: Path) -> Iterator[Import]:
    for path in modules(source):
        package = list(path.relative_to(source).parent.parts)
        for node, at_import in statements(ast.parse(path.read_text("utf-8"))):
            for target in targets(node, package):
                yield Import(where(source, path, node.lineno), room_of(source, path), target, at_import)


def rooms_without_a_place(source: Path) -> Iterator[str]:
    for path in modules(source):
        if (room := room_of(source, path)) not in MAY_IMPORT:
            yield f"{where(source, path, 1)}: {room} has no place in the order of imports"


def imports_against_the_order(source: Path) -> Iterator[str]:
    for found in imports(source):
        if found.target.partition(".")[0] != "dcp":
            continue
        room = found.target.partition(".")[2].partition(".")[0]
        room = room if room in MAY_IMPORT else "__init__"
        if room not in MAY_IMPORT.get(found.room, EVERYTHING):
            yield f"{found.where}: {found.room} may not import {found.target}"


def imports_of_the_outside(source: Path) -> Iterator[str]:
    for found in imports(source):
        if found.target.partition(".")[0] in (*SOCKETS, *CLOCKS_AND_THREADS) and found.room not in OUTSIDE:
            rooms = ", ".join(sorted(OUTSIDE))
            yield f"{found.where}: {found.target} belongs in {rooms}; here, take what it knows as an argument"


def misplaced_libraries(source: Path) -> Iterator[str]:
    for found in imports(source):
        library = found.target.partition(".")[0]
        if library == "dcp" or library in sys.stdlib_module_names:
            continue
        if library in LIBRARIES and found.room not in LIBRARIES[library]:
            yield f"{found.where}: {library} belongs in {', '.join(sorted(LIBRARIES[library]))}"
        elif found.at_import and library not in REQUIRED and found.room not in LOADED_ON_REQUEST:
            yield f"{found.where}: {library} is optional; import it in the function that needs it"


def code_in_the_front_door(source: Path) -> Iterator[str]:
    path = source / "dcp" / "__init__.py"
    for position, node in enumerate(ast.parse(path.read_text("utf-8")).body):
        docstring = position == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        # Public names are imported on first use, and at once by type checkers.
        lazy = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        known = name in ("TYPE_CHECKING", "__all__", "__version__")
        if not (docstring or lazy or known or isinstance(node, ast.Import | ast.ImportFrom)):
            yield f"{where(source, path, node.lineno)}: only imports, __all__ and __version__ belong here"


def promises_to_keep_in_sync(source: Path) -> Iterator[str]:
    for path in sorted(p for p in source.rglob("*") if p.suffix in (".py", ".pyi", ".pyx", ".pxd", ".h")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if re.search(r"\b(keep|kept|must be|stay)\b.*\bin[ -]sync", line, re.IGNORECASE):
                yield f"{where(source, path, number)}: derive one from the other, or write the test that compares them"


def class_names_with_two_meanings(source: Path) -> Iterator[str]:
    first: dict[str, str] = {}
    for path in modules(source):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                place = where(source, path, node.lineno)
                if first.setdefault(node.name, place) != place:
                    yield f"{place}: {node.name} is a class in {first[node.name]} already; give this one its own name"


# Openings that describe around the thing instead of naming it.
ROUNDABOUT = re.compile(r"(What|Whether|Where|Who|How|Of|That|Says)\b")


def roundabout_docstrings(source: Path) -> Iterator[str]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for path in modules(source):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, documented) else None
            if text and (opening := ROUNDABOUT.match(text)):
                line = getattr(node, "lineno", 1)
                yield f"{where(source, path, line)}: begin with an imperative or a noun phrase, not {opening[1]!r}"


Rule = Callable[[Path], Iterator[str]]

RULES: list[Rule] = [
    rooms_without_a_place,
    imports_against_the_order,
    imports_of_the_outside,
    misplaced_libraries,
    code_in_the_front_door,
    promises_to_keep_in_sync,
    class_names_with_two_meanings,
    roundabout_docstrings,
]


@pytest.mark.parametrize("rule", RULES)
def test_the_source_has_no(rule: Rule) -> None:
    assert modules(SOURCE)
    assert list(rule(SOURCE)) == []


@pytest.fixture(scope="module")
def problem_with() -> Iterator[Importer]:
    with importer() as chosen:
        yield chosen


@pytest.mark.parametrize("name", [module_name(SOURCE, p) for p in modules(SOURCE) if p.name != "__main__.py"])
def test_every_module_imports_alone(name: str, problem_with: Importer) -> None:
    problem = problem_with(name)
    missing = re.search(r"^ModuleNotFoundError: No module named '(?!dcp)(\w+)", problem, re.MULTILINE)
    if missing and name.split(".")[1:2] in [[room] for room in LOADED_ON_REQUEST]:
        pytest.skip(f"{missing[1]} is not installed")
    assert not problem


def test_the_public_names_are_sorted() -> None:
    # Constants, classes, functions: the order that ruff keeps.
    kinds = [(not name.isupper(), name[0].islower(), name) for name in dcp.__all__]
    assert kinds == sorted(set(kinds))


def test_every_public_name_exists() -> None:
    assert [name for name in dcp.__all__ if not hasattr(dcp, name)] == []


# For each rule, ways to break it: a file, its text, and the violation.
BROKEN: dict[Rule, list[tuple[str, str, str]]] = {
    rooms_without_a_place: [("attic.py", "", "attic.py:1: attic has no place")],
    imports_against_the_order: [
        ("errors.py", "import dcp._codec", "errors.py:1: errors may not import dcp._codec"),
        ("wire/layout.py", "\nfrom ..columns import schema", "layout.py:2: wire may not import dcp.columns"),
        ("wire/__init__.py", "from ..session import x", "wire may not import dcp.session"),
        ("wire/frame.py", "import dcp", "wire may not import dcp"),
        ("position.py", "from dcp import cluster_map", "position may not import dcp.cluster_map"),
        ("cluster_map.py", "from .session.flow import x", "cluster_map may not import dcp.session.flow"),
        ("session/flow.py", "from dcp import Frame", "session may not import dcp.Frame"),
        ("client/url.py", "def f():\n    import dcp.embedded", "url.py:2: client may not import dcp.embedded"),
        ("embedded/node.py", "from ..session import sasl", "embedded may not import dcp.session"),
    ],
    imports_of_the_outside: [
        ("session/flow.py", "from time import monotonic", "flow.py:1: time belongs in"),
        (
            "cluster_map.py",
            "def f():\n    import concurrent.futures",
            "cluster_map.py:2: concurrent.futures belongs in",
        ),
    ],
    misplaced_libraries: [
        ("columns/batch.py", "import numpy as np", "batch.py:1: numpy is optional"),
        ("columns/batch.py", "class B:\n    from pyarrow import compute", "batch.py:2: pyarrow is optional"),
        ("wire/frame.py", "def f():\n    import pyarrow", "frame.py:2: pyarrow belongs in"),
        ("client/copy.py", "import pyspark.sql", "copy.py:1: pyspark belongs in bench, cli, spark"),
        ("session/sasl.py", "import dpkt", "sasl.py:1: dpkt is optional"),
        ("embedded/tls.py", "import cryptography", "tls.py:1: cryptography is optional"),
        ("wire/frame.py", "import scramp", "frame.py:1: scramp belongs in embedded, session"),
    ],
    code_in_the_front_door: [
        ("__init__.py", '"""Text."""\n\nprint("hello")', "__init__.py:3: only imports"),
        ("__init__.py", "def f(): ...", "__init__.py:1: only imports"),
    ],
    promises_to_keep_in_sync: [("wire/dcp.py", "\n# Keep in sync with upr2.py", "wire/dcp.py:2: derive one")],
    class_names_with_two_meanings: [
        ("wire/frame.py", "class Frame: ...\n\nclass A:\n    class Frame: ...", "frame.py:4: Frame is a class in")
    ],
    roundabout_docstrings: [
        ("wire/frame.py", 'def f():\n    """What it is."""', "frame.py:1: begin with an imperative or a noun phrase"),
        ("cli/tail.py", '"""Whether it ends."""', "tail.py:1: begin with"),
    ],
}

SOUND = {
    "__init__.py": '"""Text."""\n\nfrom .wire import Frame\n\n__all__ = ["Frame"]\n__version__ = "1"\n',
    "wire/__init__.py": "from . import frame\nfrom ..errors import DcpError\nfrom .dcp import DCP\n",
    "columns/schema.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyarrow\n",
    "columns/batch.py": "from .. import _codec\nfrom ..wire import layout\ndef f():\n    import numpy.linalg\n",
    "embedded/node.py": "import socket\nfrom dcp import cluster_map, position\n",
    "session/flow.py": "from dcp.cluster_map import owner\nfrom dcp import columns\n",
    "session/sasl.py": "import scramp\n",
    "spark/source.py": "import pyspark.sql\nimport time\nfrom dcp import embedded, connect\n",
    "cli/tail.py": "import click\nimport dcp\n",
    "cluster_map.py": "# The server keeps its nodes synchronous.\n",
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "src" / "dcp" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root / "src"


@pytest.mark.parametrize(
    ("rule", "name", "text", "violation"), [(rule, *case) for rule, cases in BROKEN.items() for case in cases]
)
def test_a_rule_finds_what_breaks_it(tmp_path: Path, rule: Rule, name: str, text: str, violation: str) -> None:
    found = list(rule(tree(tmp_path, {name: text})))
    assert len(found) == 1
    assert violation in found[0]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_accepts_a_sound_tree(tmp_path: Path, rule: Rule) -> None:
    assert list(rule(tree(tmp_path, SOUND))) == []


def test_every_rule_is_shown_to_fail() -> None:
    assert list(BROKEN) == RULES
