"""Compare the instructions of the hot loop with recorded ones: `python -m bench.recorded`.

callgrind counts the instructions of fixed workloads, as in `bench/compare.py`, with the extension of this environment.
The exit code is 1 if one takes over 3 % more per row than `bench/instructions.json` says, unless the section
"Unreleased" of CHANGELOG.md has a line that allows it: with the name of the workload in quotes, and the number of
instructions. `--record` writes the counts of now, under the same condition.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.compare import ROOT, TOLERATED, Build, counted, make_workloads
from dcp.bench import report

RECORDED = ROOT / "bench/instructions.json"
CHANGELOG = ROOT / "CHANGELOG.md"
# It mostly copies bytes, in a number of instructions that depends on where memory lies, and differs by 5 %.
UNSTEADY = {"value 1024"}
_UNRELEASED = re.compile(r"^## \[Unreleased\]$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ALLOWED = re.compile(r'"([^"\n]+)"[^"\n]*?([\d,]*\d(?:\.\d+)?) instructions')


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and compare. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.recorded", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write the counts of now")
    chosen = parser.parse_args(arguments)
    if not shutil.which("valgrind"):
        parser.error("valgrind is not installed: apt-get install valgrind (Debian, Ubuntu)")
    recorded = json.loads(RECORDED.read_text("utf-8")) if RECORDED.exists() else {"compiler": None, "instructions": {}}
    compiler = report.build()["compiler"]
    found = count()
    print("\n".join(f"{number:9.1f}  {name}" for name, number in found.items()))
    problems: list[str] = []
    if recorded["compiler"] in (None, compiler):
        problems = grown(recorded["instructions"], found, allowed(CHANGELOG.read_text("utf-8")))
    elif not chosen.record:
        print(f"not compared: counts of {recorded['compiler']} are recorded, the extension is built by {compiler}")
    print("\n".join(problems))
    if chosen.record and not problems:
        rounded = {name: round(number, 1) for name, number in found.items()}
        RECORDED.write_text(json.dumps({"compiler": compiler, "instructions": rounded}, indent=1) + "\n", "utf-8")
    return int(bool(problems))


def count() -> dict[str, float]:
    """Return the instructions per row of all steady workloads, with the extension of this environment."""
    build = Build("this tree", Path(sys.executable))
    with TemporaryDirectory(prefix="dcp-recorded-") as folder:
        workloads = [workload for workload in make_workloads(Path(folder)) if workload["name"] not in UNSTEADY]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            counts = list(pool.map(lambda workload: counted(build, workload, Path(folder)), workloads))
    return {workload["name"]: number for workload, number in zip(workloads, counts, strict=True)}


def allowed(changelog: str) -> dict[str, float]:
    """Return the instructions per row that the unreleased part of a changelog allows, by workload."""
    section = _UNRELEASED.search(changelog)
    # A line may be broken.
    text = re.sub(r"\n +", " ", section[1]) if section else ""
    return {name: float(number.replace(",", "")) for name, number in _ALLOWED.findall(text)}


def grown(recorded: Mapping[str, float], found: Mapping[str, float], allowed: Mapping[str, float]) -> list[str]:
    """Return a line for each workload that takes too many instructions."""
    problems = []
    for name, number in found.items():
        before = recorded.get(name, number)
        if number > (1 + TOLERATED) * max(before, allowed.get(name, 0)):
            problems.append(
                f"{name}: {before:.1f} instructions a row before, {number:.1f} now ({number / before - 1:+.1%}; the "
                f"limit is {TOLERATED:+.0%}). Make it cheaper: `python bench/compare.py main HEAD` compares revisions. "
                f'If it is worth it, add a line to "Unreleased" in CHANGELOG.md that says why, with '
                f'"{name}" and "{number:.0f} instructions", then run `python -m bench.recorded --record`'
            )
    return problems


if __name__ == "__main__":
    sys.exit(main())
