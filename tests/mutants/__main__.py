"""`python -m tests.mutants`: run the tests on mutants of the code, and report those that no test notices.

`known` runs the mutants that were not noticed once, each with the test of its rule. Otherwise mutants are drawn from
those that the rules make of `position`, `session`, `client` and `spark`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import TypeVar

from tests.mutants.known import KNOWN, KnownMutant
from tests.mutants.rules import EQUIVALENTS, Mutant, mutants
from tests.mutants.running import ROOT, Result, copied_source, run_tests

T = TypeVar("T")


# Tests that have to notice the mutants that the rules make. Those that start Spark as a process take too long.
TESTS = [
    *("test_position.py", "test_progress.py", "test_progress_model.py", "test_progress_of_streams.py"),
    *("test_checkpoint.py", "session", "client", "spark"),
]
# Seconds that the tests of one mutant took on the code; slower ones are left out.
MOST_SECONDS = 20.0
NOT = ["test_attempts.py", "test_demo.py", "test_read.py", "test_readme.py", "test_sinks.py", "test_standalone.py"]


def callers() -> dict[str, list[str]]:
    """Return the tests that call each function, the fastest first. Runs them, unless that is known of this tree."""
    state = hashlib.sha256()
    for path in sorted(path for room in ("src", "tests") for path in (ROOT / room).rglob("*.py")):
        if "mutants" not in path.parts:
            state.update(path.read_bytes())
    directory = ROOT / "build" / "mutants" / state.hexdigest()[:16]
    if not directory.is_dir():
        print("noting which tests call which functions ...", flush=True)
        options = ["-q", "-n", "auto", "--dist", "load", "-p", "tests.mutants.calls", f"--calls={directory}"]
        ignored = [f"--ignore=tests/spark/{name}" for name in NOT]
        command = [sys.executable, "-m", "pytest", *options, *ignored, *(f"tests/{path}" for path in TESTS)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            shutil.rmtree(directory, ignore_errors=True)
            raise SystemExit("the tests fail on the code itself: repair that first")
    seconds: dict[str, float] = {}
    found: dict[str, set[str]] = {}
    for path in directory.iterdir():
        noted = json.loads(path.read_text("utf-8"))
        seconds |= noted["seconds"]
        for function, tests in noted["callers"].items():
            found.setdefault(function, set()).update(tests)
    chosen: dict[str, list[str]] = {}
    for function, tests in found.items():
        fastest = sorted(tests, key=lambda test: seconds.get(test, 0.0))
        taken = accumulate(seconds.get(test, 0.0) for test in fastest)
        chosen[function] = [test for test, total in zip(fastest, taken, strict=True) if total <= MOST_SECONDS]
    return chosen


def on_mutant(source: Path, module: str, change: Callable[[str], str], tests: Sequence[str]) -> Result:
    """Run tests on a changed module of a copy of the code."""
    path = source / "dcp" / module
    code = path.read_text("utf-8")
    path.write_text(change(code), "utf-8")
    try:
        return run_tests(source, tests)
    finally:
        path.write_text(code, "utf-8")


def run_known(source: Path, mutant: KnownMutant) -> tuple[bool, str]:
    """Return whether the test of a known mutant notices it, and a line of the report."""
    test = [f"tests/{mutant.test}"]
    whole = run_tests(source, test)
    broken = on_mutant(source, mutant.module, lambda code: code.replace(mutant.code, mutant.mutant), test)
    verdict = "FAILS ON THE CODE" if whole.noticed else "noticed" if broken.noticed else "SURVIVED"
    line = mutant.code.strip().splitlines()[0]
    name = mutant.test.partition("::")[2]
    return verdict == "noticed", f"{verdict:8} {broken.seconds:5.1f} s  {mutant.module}: {line}  ({name})"


def run_drawn(tests: Mapping[str, list[str]], source: Path, mutant: Mutant) -> tuple[bool, str]:
    """Return whether a test that calls the function notices a drawn mutant, and a line of the report."""
    those = tests.get(f"{mutant.module}:{mutant.function}")
    found = on_mutant(source, mutant.module, mutant.applied, those) if those else Result(False, 0.0, "no test calls it")
    verdict = "noticed" if found.noticed else "SURVIVED"
    where = f"{mutant.module}:{mutant.number}: {mutant.line}  ({mutant.rule})"
    return found.noticed, f"{verdict:8} {found.seconds:5.1f} s  {where}  {found.test}"


def report(run: Callable[[Path, T], tuple[bool, str]], chosen: Sequence[T], jobs: int, within: float) -> list[bool]:
    """Run mutants on as many copies of the code, print a line for each, and return which were noticed.

    within: seconds after which no other mutant is begun.
    """
    until = time.monotonic() + within
    with ExitStack() as stack, ThreadPoolExecutor(jobs) as pool:
        copies = SimpleQueue[Path]()
        for _ in range(jobs):
            copies.put(stack.enter_context(copied_source()))

        def one(mutant: T) -> bool | None:
            if time.monotonic() >= until:
                return None
            source = copies.get()
            try:
                noticed, line = run(source, mutant)
            finally:
                copies.put(source)
            print(line, flush=True)
            return noticed

        return [noticed for noticed in pool.map(one, chosen) if noticed is not None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--known", action="store_true", help="run the known mutants instead of drawn ones")
    parser.add_argument("--only", default="", help="only mutants whose module or test has this text")
    parser.add_argument("--count", type=int, default=40, help="number of drawn mutants")
    parser.add_argument("--seed", default="", help="text that decides which are drawn, such as a commit")
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which no other mutant is begun")
    parser.add_argument("--jobs", type=int, default=2, help="number of mutants at a time")
    arguments = parser.parse_args()
    if arguments.known:
        known = [one for one in KNOWN if arguments.only in one.module + one.test]
        Random(arguments.seed).shuffle(known)
        results = report(run_known, known, arguments.jobs, arguments.within)
    else:
        possible = [one for one in mutants(ROOT / "src") if arguments.only in one.module]
        drawn = Random(arguments.seed).sample(possible, min(arguments.count, len(possible)))
        print(f"{len(drawn)} of {len(possible)} mutants; {len(EQUIVALENTS)} equivalents are left out", flush=True)
        results = report(partial(run_drawn, callers()), drawn, arguments.jobs, arguments.within)
    print(f"{sum(results)} of {len(results)} mutants were noticed")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
