"""Run tests on a copy of the code in which one line is another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
# Seconds after which a test that did not end has noticed that something stands still: those of a test that takes a few
# seconds, on a machine that is busy. After the second number, all of a mutant's tests have.
ONE_TEST, ALL_TESTS = 40, 600


class Result(NamedTuple):
    """Outcome of the tests of a mutant.

    noticed: a test failed, or never ended. seconds: how long that took. test: the one that failed, if any.
    """

    noticed: bool
    seconds: float
    test: str


@contextmanager
def copied_source() -> Iterator[Path]:
    """Yield a directory with a copy of `src`. Python takes it instead of the installed package."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        target = Path(directory) / "src"
        # The bytecode stays: no process writes any, and that of a changed module is older than the module.
        shutil.copytree(ROOT / "src", target, ignore=shutil.ignore_patterns("*.egg-info", "_codec.c"))
        yield target


@contextmanager
def changed(path: Path, code: str) -> Iterator[None]:
    """Give a file other content for a while."""
    before, times = path.read_bytes(), path.stat()
    path.write_text(code, "utf-8")
    try:
        yield
    finally:
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def build(source: Path) -> bool:
    """Build the extension of a copy of the code, without optimisation; return whether it is valid code."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source.parent)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--force", "--inplace"]
    done = subprocess.run(
        command, cwd=source.parent, env={**os.environ, "DCP_BUILD": "debug"}, capture_output=True, check=False
    )
    return done.returncode == 0


def run_tests(source: Path, tests: Sequence[str], limit: float = ALL_TESTS) -> Result:
    """Run tests on a copy of the code, up to the first that fails or cannot be loaded.

    Raises RuntimeError if there are no such tests.
    """
    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", f"--timeout={ONE_TEST}", "--hypothesis-seed=0"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    # Bytecode would be taken for that of a line changed within the same second.
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(source.parent / "hypothesis")
    begun = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=limit, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return Result(True, time.monotonic() - begun, "no end")
    if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(
            f"{' '.join(tests)}: pytest ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr}"
        )
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    noticed = done.returncode != 0
    return Result(noticed, time.monotonic() - begun, failed[0] if failed else "the tests do not start" * noticed)
