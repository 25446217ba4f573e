"""`python -m tests.mutants`: run the tests on mutants of the code, and report those that no test notices.

`--known` runs the mutants that were not noticed once, each with the test of its rule. Otherwise mutants are drawn from
those that the rules make of all rooms, and each is run with the tests that run its line.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random
from secrets import token_hex
from typing import TypeVar

from tests.mutants.choice import Choice
from tests.mutants.known import KNOWN, KnownMutant
from tests.mutants.rules import EQUIVALENTS, ROOMS, Mutant, codec_mutants, mutants
from tests.mutants.running import (
    ALL_TESTS,
    LONGEST,
    NO_START,
    ONE_TEST,
    ROOT,
    Result,
    build,
    changed,
    copied_source,
    run_tests,
)

T = TypeVar("T")

# Tests that have to notice mutants of the extension, the fastest first.
CODEC_TESTS = [
    *("tests/test_codec.py", "tests/test_vectors.py", "tests/test_document.py", "tests/test_encoder.py"),
    *("tests/test_batch.py", "tests/test_framing.py", "tests/test_transcripts.py", "tests/test_receiving.py"),
    *("tests/test_decoder.py", "tests/test_fuzz.py"),
]


def on_mutant(
    source: Path, module: str, code: str, tests: Sequence[str], limit: float = ALL_TESTS, each: float = ONE_TEST
) -> Result:
    """Run tests on a copy of the code in which a module is another, for no longer than `limit` seconds."""
    with changed(source / "dcp" / module, code):
        return run_tests(source, tests, limit, each)


def run_known(source: Path, mutant: KnownMutant) -> tuple[bool, str]:
    """Return whether the test of a known mutant notices it, and a line of the report."""
    test = [f"tests/{mutant.test}"]
    whole = run_tests(source, test)
    code = (source / "dcp" / mutant.module).read_text("utf-8")
    broken = on_mutant(source, mutant.module, code.replace(mutant.code, mutant.mutant), test)
    verdict = "FAILS ON THE CODE" if whole.noticed else "noticed" if broken.noticed else "SURVIVED"
    line = mutant.code.strip().splitlines()[0]
    name = mutant.test.partition("::")[2]
    return verdict == "noticed", f"{verdict:8} {broken.seconds:5.1f} s  {mutant.module}: {line}  ({name})"


def run_drawn(choice: Choice, source: Path, mutant: Mutant) -> tuple[bool, str]:
    """Return whether a test that runs the line notices a drawn mutant, and a line of the report."""
    # The copy stays as it was when the mutants were drawn.
    code = mutant.applied((source / "dcp" / mutant.module).read_text("utf-8"))
    found, count = Result(False, 0.0, "no test runs it"), 0
    for tests, most in zip(choice.tests(mutant), choice.most, strict=True):
        if tests and not found.noticed:
            # Far longer than they take on the code, whatever else the machine does.
            found = on_mutant(source, mutant.module, code, tests, 60 + 8 * most)
            count += len(tests)
            if found.test == NO_START and run_tests(source, ["--collect-only", *tests]).noticed:
                raise RuntimeError("tests have changed since it was noted which lines they run: begin again")
    if not found.noticed and (last := choice.last(mutant)):
        found = on_mutant(source, mutant.module, code, last, LONGEST, LONGEST)
    verdict = "noticed" if found.noticed else "SURVIVED"
    where = f"{mutant.module}:{mutant.number}: {mutant.line}  ({mutant.rule})"
    return found.noticed, f"{verdict:8} {found.seconds:5.1f} s  {where}  {found.test or f'{count} tests'}"


def run_codec(source: Path, mutant: Mutant) -> tuple[bool, str]:
    """Return whether a test of the extension notices a drawn mutant of it, and a line of the report."""
    path = source / "dcp" / mutant.module
    with changed(path, mutant.applied(path.read_text("utf-8"))):
        found = Result(True, 0.0, "it does not compile") if build(source) else run_tests(source, CODEC_TESTS)
    where = f"{path.name}:{mutant.number}: {mutant.line}  ({mutant.rule})"
    return (
        found.noticed,
        f"{'noticed' if found.noticed else 'SURVIVED':8} {found.seconds:5.1f} s  {where}  {found.test}",
    )


def report(run: Callable[[Path, T], tuple[bool, str]], chosen: Sequence[T], jobs: int, within: float) -> list[bool]:
    """Run mutants on as many copies of the code, print a line for each and the survivors again, and return which were
    noticed.

    within: seconds after which no other mutant is begun.
    """
    begun = time.monotonic()
    until = begun + within
    survivors = list[str]()
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
            if not noticed:
                survivors.append(line)
            return noticed

        results = [noticed for noticed in pool.map(one, chosen) if noticed is not None]
    share = f", {sum(results) / len(results):.0%}" if results else ""
    print(f"{sum(results)} of {len(results)} mutants were noticed{share}, in {time.monotonic() - begun:.0f} s")
    print("\n".join(survivors))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--known", action="store_true", help="run the known mutants instead of drawn ones")
    parser.add_argument("--codec", action="store_true", help="draw from the extension: a minute for each mutant")
    parser.add_argument("--only", default="", help="only mutants whose module, or known ones whose test, has this text")
    parser.add_argument(
        "--tests",
        nargs="+",
        type=Path,
        default=[ROOT / "tests"],
        help="files or directories of tests that may notice drawn mutants: of fewer, it is noted sooner what they run",
    )
    parser.add_argument("--count", type=int, default=40, help="number of drawn mutants")
    parser.add_argument("--seed", default=token_hex(4), help="text that decides which are drawn, such as a commit")
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which no other mutant is begun")
    parser.add_argument("--most", type=float, default=15.0, help="seconds that the first tests of a mutant take")
    parser.add_argument("--jobs", type=int, default=2, help="number of mutants at a time")
    arguments = parser.parse_args()
    print(f"--seed {arguments.seed} draws the same again", flush=True)
    if arguments.known:
        known = [one for one in KNOWN if arguments.only in one.module + one.test]
        if not known:
            parser.error(f"--only: expected a part of a module or of a test, found {arguments.only!r}")
        Random(arguments.seed).shuffle(known)
        results = report(run_known, known, arguments.jobs, arguments.within)
    elif arguments.codec:
        with copied_source() as source:
            if problem := build(source):
                raise SystemExit(f"the extension cannot be built even without a mutant:\n{problem}")
        chosen = Random(arguments.seed).sample(codec_mutants(ROOT / "src"), arguments.count)
        results = report(run_codec, chosen, arguments.jobs, arguments.within)
    else:
        possible = [one for one in mutants(ROOT / "src") if arguments.only in one.module]
        if not possible:
            parser.error(f"--only: expected a part of a module of {', '.join(ROOMS)}, found {arguments.only!r}")
        drawn = Random(arguments.seed).sample(possible, min(arguments.count, len(possible)))
        print(f"{len(drawn)} of {len(possible)} mutants; {len(EQUIVALENTS)} equivalents are left out", flush=True)
        results = report(
            partial(run_drawn, Choice(arguments.most, arguments.jobs, arguments.tests)),
            drawn,
            arguments.jobs,
            arguments.within,
        )
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
