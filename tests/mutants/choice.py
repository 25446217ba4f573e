"""Choice of the tests that have to notice a mutant: those that run its line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

from tests.mutants.lines import SOURCE
from tests.mutants.rules import Mutant
from tests.mutants.running import ROOT

# Where it is kept which tests run which lines. It is noted anew for files of tests that have changed, and for all of
# them when the code has.
KEPT = ROOT / "build" / "mutants"
# Tests that cannot notice a mutant within seconds, or that say nothing about one line: they start Spark, programs in
# other languages or hundreds of schedules, or compare all modules.
NOT = [
    *("interop", "soak", "chaos", "model", "mutants", "test_mutants.py", "test_architecture.py"),
    *("spark/test_attempts.py", "spark/test_demo.py", "spark/test_read.py", "spark/test_readme.py"),
    *("spark/test_sinks.py", "spark/test_standalone.py", "spark/test_java.py", "spark/test_stream_by_chance.py"),
]


class Choice:
    """Tests by the line that they run, the fastest first.

    most: seconds that the tests of one mutant may take on the code; slower ones are left out.
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._seconds: dict[str, float] = {}
        self._data = list[tuple[CoverageData, set[str]]]()
        for directory, files in _noted(_test_files()):
            tests = set[str]()
            for path in directory.glob("*.json"):
                seconds: dict[str, float] = json.loads(path.read_text("utf-8"))
                known = {test: each for test, each in seconds.items() if test.partition("::")[0] in files}
                self._seconds |= known
                tests.update(known)
            data = CoverageData(str(directory / "lines"))
            data.read()
            self._data.append((data, tests))
        self.lines = cache(self._lines)

    def tests(self, mutant: Mutant) -> list[str]:
        """Return the tests for a mutant. If its line runs only when the module is imported, those of its module."""
        noted = self.lines(mutant.module)
        first, last = mutant.statement
        found = set[str]().union(*(noted.get(line, ()) for line in range(first, last + 1)))
        if found == {""}:
            found = found.union(*noted.values())
        return self._fastest(found - {""})

    def _lines(self, module: str) -> dict[int, set[str]]:
        """Return the tests that run each line of a module. The one without a name is an import."""
        found = defaultdict[int, set[str]](set)
        for data, tests in self._data:
            for line, contexts in data.contexts_by_lineno(str(SOURCE / module)).items():
                found[line].update(tests.intersection(contexts) | ({""} if "" in contexts else set()))
        return found

    def _fastest(self, tests: Iterable[str]) -> list[str]:
        fastest = sorted(tests, key=lambda test: (self._seconds[test], test))
        taken = accumulate(self._seconds[test] for test in fastest)
        return [test for test, total in zip(fastest, taken, strict=True) if total <= self.most]


def _test_files() -> dict[str, str]:
    """Return the files of tests, and the state of each: its text, and that of the code."""
    code = sha256(b"".join(path.read_bytes() for path in sorted(SOURCE.rglob("*.py"))))
    left_out = {ROOT / "tests" / name for name in NOT}
    return {
        path.relative_to(ROOT).as_posix(): sha256(code.digest() + path.read_bytes()).hexdigest()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not left_out.intersection((path, *path.parents))
    }


def _noted(files: dict[str, str]) -> Iterator[tuple[Path, set[str]]]:
    """Yield directories of notes, and the files of tests that each is to be believed of. Runs the tests that lack."""
    left = dict(files)
    for directory in KEPT.glob("*/"):
        known: dict[str, str] = json.loads((directory / "files").read_text("utf-8"))
        if those := {path for path, state in known.items() if left.get(path) == state}:
            left = {path: state for path, state in left.items() if path not in those}
            yield directory, those
        else:
            shutil.rmtree(directory)
    if left:
        print(f"noting which lines the tests of {len(left)} files run ...", flush=True)
        begun = time.monotonic()
        yield _note(left), set(left)
        print(f"noted in {time.monotonic() - begun:.0f} s", flush=True)


def _note(files: dict[str, str]) -> Path:
    """Run files of tests, and return the directory of the notes."""
    KEPT.mkdir(parents=True, exist_ok=True)
    directory = KEPT / sha256("".join(files.values()).encode()).hexdigest()[:16]
    unfinished = directory.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    options = ["-q", "-n", "auto", "--dist", "load", "-p", "tests.mutants.lines", f"--lines={unfinished}"]
    command = [sys.executable, "-m", "pytest", *options, "--hypothesis-seed=0", *files]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == pytest.ExitCode.TESTS_FAILED:
        print("tests that fail on the code itself are left out", flush=True)
    elif code:
        raise SystemExit("the tests do not run: repair that first")
    noted = Coverage(data_file=unfinished / "lines", config_file=False)
    noted.combine([str(path) for path in unfinished.glob("*.lines*")])
    noted.save()
    (unfinished / "files").write_text(json.dumps(files), "utf-8")
    return unfinished.rename(directory)
