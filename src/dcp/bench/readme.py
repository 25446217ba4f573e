"""What a run found, as the README shows it: `python -m dcp.bench.readme README.md` runs all, and writes it there."""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dcp.bench import BENCHES, SPARK, bench_socket, bench_spark, report
from dcp.bench.bench_decode import COPY, VIEWS
from dcp.bench.bench_encode import ENCODE
from dcp.bench.bench_socket import CLIENT
from dcp.bench.bench_spark import READ, SOURCE
from dcp.bench.budgets import Verdict, verdicts
from dcp.bench.frames import MIB, Case
from dcp.bench.run import measure
from dcp.bench.timing import Measurement

START, END = "<!-- bench: what python -m dcp.bench.readme README.md found -->", "<!-- bench: end -->"

# What the README tells of each benchmark: the cases that are like this one but for the value, and our contenders, in
# words for strangers.
SHOWN = {
    "decode": (Case(in_cache=False), {COPY: "bytes to columns", VIEWS: "bytes to columns, as views"}),
    "encode": (Case(in_cache=False), {ENCODE: "columns to bytes"}),
    "socket": (bench_socket.CASES[0], {CLIENT: "client: sockets to columns"}),
    "spark": (
        bench_spark.CASES[0],
        {READ: "Spark: `dcp.spark.read` to nowhere", SOURCE: 'Spark: `format("dcp")` to nowhere'},
    ),
}


def rewrite(page: str, measurements: Sequence[Measurement], judged: Iterable[Verdict], command: str) -> str:
    """The page with these figures between its markers."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"expected the markers {START} and {END}")
    parts = [before + START, where(command), speeds(measurements), budgets(judged), END + after]
    return "\n\n".join(parts)


def where(command: str) -> str:
    machine = report.machine()
    versions = ", ".join(f"{name} {number}" for name, number in report.versions().items() if number)
    compiler = report.build()["compiler"] or "a compiler without a name"
    return (
        f"`{command}` at {report.commit()}, on {machine['cores']} cores of {machine['cpu']}, "
        f"{platform.system()} {platform.release()}: {versions}, {compiler}. "
        "The best of several turns; ratios are the medians over neighbours in time."
    )


def speeds(measurements: Sequence[Measurement]) -> str:
    rows = [
        (what, f"{sized.case.value:,}", f"{1e3 / sample.best:.2f}", f"{sample.throughput:.2f}")
        for bench, (case, contenders) in SHOWN.items()
        for contender, what in contenders.items()
        for sized in measurements
        if sized.bench == bench and sized.case == replace(case, value=sized.case.value, total=sized.case.total)
        for sample in [sized.samples[contender]]
    ]
    return _table(("what", "bytes a value", "million changes a second", "GB/s"), rows)


def budgets(judged: Iterable[Verdict]) -> str:
    rows = []
    for verdict in judged:
        budget, found = verdict.budget, verdict.found
        shown = "no core was free" if found is None else f"{found:.2f} {budget.unit}"
        rows.append((budget.what, f"{'≤' if budget.at_most else '≥'} {budget.bound:g} {budget.unit}", shown))
    return _table(("what has to be reached", "bound", "found"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], len(head) * "|---" + "|", *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dcp.bench.readme", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--repetitions", type=int, default=15, help="turns of each contender")
    parser.add_argument("--bytes", type=int, default=64 * MIB, help="bytes a turn")
    chosen = parser.parse_args()
    measurements = list(measure((*BENCHES, SPARK), chosen.repetitions, chosen.bytes))
    command = shlex.join(["python", "-m", "dcp.bench.readme", *sys.argv[1:]])
    page = chosen.page.read_text("utf-8")
    chosen.page.write_text(rewrite(page, measurements, verdicts(measurements), command), "utf-8")


if __name__ == "__main__":
    main()
