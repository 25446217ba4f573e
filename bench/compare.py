"""Compare the decoding speed of two revisions: `python bench/compare.py BASE HEAD` counts instructions.

BASE and HEAD are revisions of this repository, or directories with other source trees. Each is built in an environment
of its own. callgrind counts the instructions of fixed workloads, which do not depend on other load on the machine. The
exit code is 1 if a workload takes over 3 % more. Times are printed for information.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.callgrind import instructions  # noqa: E402

TOLERATED = 0.03
# The first repetition allocates and learns the size of batches; only the others are counted.
WARM, COUNTED = 1, 4
TIMED, ROUNDS = 20, 5


@dataclass(frozen=True)
class Build:
    """A source tree, installed in an environment of its own."""

    name: str
    python: Path


@dataclass(frozen=True)
class Line:
    """Instructions per row and ns per row of a workload, with both builds."""

    workload: str
    instructions: tuple[float, float]
    nanoseconds: tuple[float, float]

    @property
    def change(self) -> float:
        """Relative change of instructions."""
        base, head = self.instructions
        return head / base - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two revisions. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="revision or directory")
    parser.add_argument("head", help="revision or directory")
    parser.add_argument("--only", default="", metavar="TEXT", help="only workloads with TEXT in their name")
    parser.add_argument("--no-times", action="store_true", help="count instructions only")
    chosen = parser.parse_args(arguments)
    if not shutil.which("valgrind"):
        parser.error("valgrind is not installed: apt-get install valgrind (Debian, Ubuntu)")
    with TemporaryDirectory(prefix="dcp-compare-") as folder:
        base, head = (build(name, Path(folder) / side) for name, side in ((chosen.base, "base"), (chosen.head, "head")))
        workloads = [workload for workload in make_workloads(Path(folder)) if chosen.only in workload["name"]]
        if not workloads:
            parser.error(f"--only {chosen.only}: no workload has this text in its name")
        lines = compare(base, head, workloads, Path(folder), timed=not chosen.no_times)
    print(table(lines, base, head))
    worst = max(line.change for line in lines)
    print(f"\nlargest change {worst:+.1%} instructions; the limit is {TOLERATED:+.0%}")
    return int(worst > TOLERATED)


# ----------------------------------------------------------------------------------------- building


def build(name: str, folder: Path) -> Build:
    """Build and install a revision or directory."""
    print(f"building {name}", flush=True)
    tree = folder / "tree"
    unpack(name, tree)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    environment = {key: value for key, value in os.environ.items() if key != "DCP_BUILD"}
    run([str(python), "-m", "pip", "install", "--quiet", str(tree)], env=environment)
    return Build(name, python)


def unpack(name: str, tree: Path) -> None:
    """Copy the sources, since the build writes into them."""
    if Path(name).is_dir():
        skipped = shutil.ignore_patterns(
            ".git", ".venv*", ".*_cache", ".hypothesis", "build", "dist", "*.so", "_codec.c"
        )
        shutil.copytree(name, tree, ignore=skipped)
        return
    archive = run(["git", "archive", name], cwd=ROOT)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files.getmembers():
            # Without `filter`, which older versions of Python lack: the archive is our own.
            files.extract(member, tree)


def run(command: list[str], **more: Any) -> bytes:
    """Run a command and return its output. If it fails, print its output and exit."""
    ran: subprocess.CompletedProcess[bytes] = subprocess.run(command, capture_output=True, check=False, **more)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}\n{ran.stdout.decode()}{ran.stderr.decode()}")
    return ran.stdout


# ---------------------------------------------------------------------------------------- measuring


def make_workloads(folder: Path) -> list[dict[str, Any]]:
    """Make the workloads with the tables of this tree: the same bytes for both builds."""
    run([sys.executable, "-m", "dcp.bench.frames", str(folder)], cwd=ROOT)
    workloads: list[dict[str, Any]] = json.loads((folder / "workloads.json").read_text("utf-8"))
    return [workload | {"path": str(folder / workload["file"])} for workload in workloads]


def compare(base: Build, head: Build, workloads: list[dict[str, Any]], folder: Path, *, timed: bool) -> list[Line]:
    """Count instructions and measure times of all workloads."""
    print(f"counting the instructions of {len(workloads)} workloads", flush=True)
    jobs = [(build, workload) for workload in workloads for build in (base, head)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = list(pool.map(lambda job: counted(job[0], job[1], folder), jobs))
    times = [timed_both(base, head, workload) if timed else (0.0, 0.0) for workload in workloads]
    return [
        Line(workload["name"], (counts[2 * i], counts[2 * i + 1]), times[i]) for i, workload in enumerate(workloads)
    ]


def counted(build: Build, workload: dict[str, Any], folder: Path) -> float:
    """Return the instructions per row, after the warm-up."""
    few, many = (callgrind(build, workload, repetitions, folder) for repetitions in (WARM, WARM + COUNTED))
    return (many - few) / COUNTED / float(workload["rows"])


def callgrind(build: Build, workload: dict[str, Any], repetitions: int, folder: Path) -> int:
    """Return the instructions of a run of a workload."""
    out = folder / f"{build.python.parents[2].name}-{Path(workload['path']).stem}-{repetitions}.callgrind"
    command = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}"]
    run([*command, *decoding(build, workload, repetitions)], env=os.environ | {"PYTHONHASHSEED": "0"})
    return instructions(out)


def timed_both(base: Build, head: Build, workload: dict[str, Any]) -> tuple[float, float]:
    """Return ns per row of the fastest round, with both builds in turns."""
    rounds = [[float(run(decoding(build, workload, TIMED))) for build in (base, head)] for _ in range(ROUNDS)]
    return min(base_time for base_time, _ in rounds), min(head_time for _, head_time in rounds)


def decoding(build: Build, workload: dict[str, Any], repetitions: int) -> list[str]:
    """Return the command that decodes a workload."""
    # -I: import the installed package, and not one from the working directory.
    script = str(ROOT / "bench/workload.py")
    return [str(build.python), "-I", script, workload["path"], json.dumps(workload["options"]), str(repetitions)]


# --------------------------------------------------------------------------------------------- table


def table(lines: list[Line], base: Build, head: Build) -> str:
    """Return the results as text."""
    width = max(len("instructions per row"), *(len(line.workload) for line in lines))
    rows = [f"base is {base.name}, head is {head.name}", ""]
    rows.append(
        f"{'instructions per row':{width}}  {'base':>9}  {'head':>9}  {'change':>7}  {'base ns':>8}  {'head ns':>8}"
    )
    for line in lines:
        counts = "  ".join(f"{count:9.1f}" for count in line.instructions)
        times = "  ".join(f"{time:8.1f}" if time else f"{'-':>8}" for time in line.nanoseconds)
        mark = "  MORE" if line.change > TOLERATED else ""
        rows.append(f"{line.workload:{width}}  {counts}  {line.change:+7.1%}  {times}{mark}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
