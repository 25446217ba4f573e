"""Run tests on a copy of the code in which one line is another."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
# Seconds after which a test that did not end has noticed that something stands still: those of a test that takes a few
# seconds, on a machine that is busy. After the second number, all tests of a mutant have.
ONE_TEST, ALL_TESTS = 40, 300
# The same for tests with Spark.
LONGEST = 900

_OPTIONS = [
    *("-x", "-q", "-p", "no:cacheprovider", "--tb=no", "--hypothesis-seed=0"),
    # The libraries below are there before it could rewrite them.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
]
# A server that has imported the libraries is forked for each mutant: to import them takes longer than most tests. What
# is tested is imported after the fork.
_LIBRARIES = [
    *("pytest", "_hypothesis_pytestplugin", "hypothesis.strategies", "pytest_timeout", "xdist", "coverage"),
    *("pyarrow.parquet", "pyarrow.compute", "numpy", "click.testing", "rich.live", "rich.table", "cramjam"),
    *("scramp", "dpkt", "flatbuffers", "prometheus_client", "cryptography.x509"),
]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(_LIBRARIES)


# Instead of the name of a test.
NO_START = "the tests do not start"


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


def build(source: Path) -> str:
    """Build the extension of a copy of the code, without optimisation. Return what the build says if it fails."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source.parent)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--force", "--inplace"]
    environment = {**os.environ, "DCP_BUILD": "debug"}
    done = subprocess.run(command, cwd=source.parent, env=environment, capture_output=True, text=True, check=False)
    return (done.stderr[-2000:] or "it says nothing") if done.returncode else ""


def run_tests(source: Path, tests: Sequence[str], limit: float = ALL_TESTS, each: float = ONE_TEST) -> Result:
    """Run tests on a copy of the code, up to the first that fails or cannot be loaded.

    limit, each: seconds after which all of them, or one, have noticed that something stands still. Raises RuntimeError
    if there are no such tests.
    """
    begun = time.monotonic()
    printed = source.parent / "printed"
    process = _CONTEXT.Process(target=_run, args=(source, [*_OPTIONS, f"--timeout={each:g}", *tests], printed))
    process.start()
    process.join(limit)
    ended = process.exitcode is not None
    # It leads a group: commands that its tests have started end with it.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    seconds = time.monotonic() - begun
    if not ended:
        return Result(True, seconds, "no end")
    output = printed.read_text("utf-8", "replace")
    if process.exitcode == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"{' '.join(tests)}: there are no such tests: {output[-2000:]}")
    failed = [line.split()[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    noticed = process.exitcode != 0
    return Result(noticed, seconds, failed[0] if failed else NO_START * noticed)


def _run(source: Path, arguments: Sequence[str], printed: Path) -> None:
    """Run pytest in this process, and end it."""
    os.setsid()
    os.chdir(ROOT)
    with printed.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.path.insert(0, str(source))
    # Bytecode would be taken for that of a line changed within the same second.
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(source.parent / "hypothesis")
    code = pytest.main([*arguments])
    sys.stdout.flush()
    # Threads that a mutant has left are not waited for.
    os._exit(code)
