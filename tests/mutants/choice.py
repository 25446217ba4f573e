"""Choice of the tests that have to notice a mutant: those that run its line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
from coverage import Coverage, CoverageData

from tests.mutants.lines import SOURCE
from tests.mutants.rules import Mutant
from tests.mutants.running import ROOT

# Where it is kept which tests run which lines. It is noted anew for files of tests that have changed, and for those
# that ran a module that has.
KEPT = ROOT / "build" / "mutants"
_UNFINISHED = ".unfinished"
# What the slower tests of a mutant take, in times of what the first ones do.
_SLOWER = 5
# Tests that cannot notice a mutant within seconds, or that say nothing about one line: they start Spark, programs in
# other languages or hundreds of schedules, or compare all modules.
NOT = [
    *("interop", "soak", "chaos", "model", "mutants", "test_mutants.py", "test_architecture.py"),
    *("spark/test_attempts.py", "spark/test_demo.py", "spark/test_read.py", "spark/test_readme.py"),
    *("spark/test_sinks.py", "spark/test_standalone.py", "spark/test_stream_by_chance.py"),
]
# Tests with Spark, and random schedules, which have to notice what no other test of these rooms does, however long they
# take.
_CHAOS = "tests/chaos/test_chaos.py::test_no_change_is_lost[0]"
LAST = {
    "session/": ["tests/model/test_model.py", _CHAOS],
    "position.py": ["tests/model/test_model.py", _CHAOS],
    "client/follow/": [_CHAOS],
    "spark/": ["tests/spark/test_read.py", "tests/spark/test_stream.py", "tests/spark/test_triggers.py"],
    "spark/java.py": ["tests/spark/test_connect.py"],
    "spark/map_in_arrow.py": ["tests/spark/test_connect.py"],
    "spark/tables.py": ["tests/spark/test_tables.py", "tests/spark/test_sinks.py", "tests/spark/test_connect.py"],
    "cli/demo/": ["tests/spark/test_demo.py"],
}


class Choice:
    """Tests by the line that they run, the fastest first.

    most: seconds that the first tests of one mutant may take on the code. jobs: number of processes that note it.
    among: files and directories of the tests to choose from.
    """

    def __init__(self, most: float, jobs: int, among: Sequence[Path]) -> None:
        self.most = most, _SLOWER * most
        self._seconds: dict[str, float] = {}
        self._data = list[tuple[CoverageData, set[str]]]()
        for directory, files in _noted(_test_files(), among, jobs):
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

    def tests(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Return the tests for a mutant, and more of them for a mutant that these do not notice.

        The tests of other lines of the module come last: what runs when it is imported, or once, is noted for the first
        of its tests only.
        """
        noted = self.lines(mutant.module)
        first, last = mutant.statement
        found = set[str]().union(*(noted.get(line, ()) for line in range(first, last + 1))) - {""}
        others = set[str]().union(*noted.values()) - found - {""}
        return self._within([*self._fastest(found), *self._fastest(others)])

    @staticmethod
    def last(mutant: Mutant) -> list[str]:
        """Return tests for a mutant that no other test notices."""
        return [test for room, tests in LAST.items() if mutant.module.startswith(room) for test in tests]

    def _lines(self, module: str) -> dict[int, set[str]]:
        """Return the tests that run each line of a module. The one without a name is an import."""
        found = defaultdict[int, set[str]](set)
        for data, tests in self._data:
            for line, contexts in data.contexts_by_lineno(str(SOURCE / module)).items():
                found[line].update(tests.intersection(contexts) | ({""} if "" in contexts else set()))
        return found

    def _fastest(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self._seconds[test], test))

    def _within(self, tests: list[str]) -> tuple[list[str], list[str]]:
        """Return those that can run within the limits. A slow one is left out, and keeps no fast one from running."""
        chosen: tuple[list[str], list[str]] = [], []
        left = [*self.most]
        for test in tests:
            place = next((place for place in (0, 1) if self._seconds[test] <= left[place]), None)
            if place is not None:
                left[place] -= self._seconds[test]
                chosen[place].append(test)
        return chosen


def _test_files() -> dict[str, str]:
    """Return the files of tests, and a digest of each."""
    left_out = {ROOT / "tests" / name for name in NOT}
    return {
        path.relative_to(ROOT).as_posix(): _digest(path)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if not left_out.intersection((path, *path.parents))
    }


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _noted(files: dict[str, str], among: Sequence[Path], jobs: int) -> Iterator[tuple[Path, set[str]]]:
    """Yield directories of notes, and the files of tests that each is to be believed of. Runs the tests that lack."""
    wanted = {path.resolve() for path in among}
    left = {path: state for path, state in files.items() if wanted.intersection((ROOT / path, *(ROOT / path).parents))}
    if not left:
        raise SystemExit(f"--tests: expected files or directories of tests, found {', '.join(map(str, among))}")
    chosen = frozenset(left)
    digest = cache(_digest)
    for directory in KEPT.glob("*/"):
        if directory.suffix == _UNFINISHED:
            # Of a run that was interrupted.
            shutil.rmtree(directory)
            continue
        # Digests of each file of tests, and of the modules that it ran.
        known: dict[str, tuple[str, dict[str, str]]] = json.loads((directory / "files").read_text("utf-8"))
        those = {
            path
            for path, (state, modules) in known.items()
            if files.get(path) == state and all(digest(SOURCE / name) == each for name, each in modules.items())
        }
        if those:
            left = {path: state for path, state in left.items() if path not in those}
            yield directory, those & chosen
        else:
            shutil.rmtree(directory)
    # By room, so that an interruption loses one of them.
    rooms = defaultdict[str, dict[str, str]](dict)
    for path, state in left.items():
        rooms[path.rpartition("/")[0]][path] = state
    for room, those_left in rooms.items():
        print(f"noting which lines {len(those_left)} files of {room} run ...", flush=True)
        begun = time.monotonic()
        yield _note(those_left, jobs), set(those_left)
        print(f"noted in {time.monotonic() - begun:.0f} s", flush=True)


def _note(files: dict[str, str], jobs: int) -> Path:
    """Run files of tests, and return the directory of the notes."""
    KEPT.mkdir(parents=True, exist_ok=True)
    # Digests before the run: what changes during it is noted again.
    before = {path.relative_to(SOURCE).as_posix(): _digest(path) for path in SOURCE.rglob("*.py")}
    directory = KEPT / sha256("".join([*files.values(), *before.values()]).encode()).hexdigest()[:16]
    unfinished = directory.with_suffix(_UNFINISHED)
    options = ["-q", "-n", str(jobs), "--dist", "load", "-p", "tests.mutants.lines", f"--lines={unfinished}"]
    command = [sys.executable, "-m", "pytest", *options, "--hypothesis-seed=0", *files]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == pytest.ExitCode.TESTS_FAILED:
        print("tests that fail on the code itself are left out", flush=True)
    elif code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit("the tests do not run: repair that first")
    noted = Coverage(data_file=unfinished / "lines", config_file=False)
    noted.combine([str(path) for path in unfinished.glob("*.lines*")])
    noted.save()
    ran = {path: (state, dict[str, str]()) for path, state in files.items()}
    for module, digest in before.items():
        contexts = set[str]().union(*noted.get_data().contexts_by_lineno(str(SOURCE / module)).values())
        for path in {context.partition("::")[0] for context in contexts} & ran.keys():
            ran[path][1][module] = digest
    (unfinished / "files").write_text(json.dumps(ran), "utf-8")
    return unfinished.rename(directory)
