"""`python -m tests.mutants`: run the tests on mutants, and report which were noticed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.mutants.known import KNOWN, KnownMutant
from tests.mutants.running import copied_source, run_tests


def run_known(source: Path, mutant: KnownMutant) -> bool:
    """Return whether the test passes on the code and fails on the mutant. Print what happened."""
    path, test = source / "dcp" / mutant.module, [f"tests/{mutant.test}"]
    code = path.read_text("utf-8")
    whole = run_tests(source, test)
    path.write_text(code.replace(mutant.code, mutant.mutant), "utf-8")
    try:
        broken = run_tests(source, test)
    finally:
        path.write_text(code, "utf-8")
    verdict = "FAILS ON THE CODE" if whole.noticed else "noticed" if broken.noticed else "SURVIVED"
    line = mutant.code.strip().splitlines()[0]
    print(f"{verdict:8} {broken.seconds:5.1f} s  {mutant.module}: {line}  ({mutant.test.partition('::')[2]})", flush=True)
    return verdict == "noticed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="run only known mutants whose module or test has this text")
    arguments = parser.parse_args()
    chosen = [one for one in KNOWN if arguments.part in one.module + one.test]
    with copied_source() as source:
        results = [run_known(source, mutant) for mutant in chosen]
    print(f"{sum(results)} of {len(results)} noticed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
