"""Figures on pages: `python -m dcp.bench.readme docs/benchmarks.md` runs all benchmarks and writes them.

Each table stands between two markers, `<!-- NAME: from the benchmarks -->` and `<!-- NAME: end -->`. A page has
`speeds`, `budgets` or both.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dcp.bench import BENCHES, SPARK, bench_documents, bench_socket, bench_spark, bench_spark_documents, report
from dcp.bench.bench_decode import COPY, VIEWS
from dcp.bench.bench_documents import ALL, THREE
from dcp.bench.bench_encode import ENCODE
from dcp.bench.bench_socket import CLIENT
from dcp.bench.bench_spark import READ, SOURCE
from dcp.bench.bench_spark_documents import FROM_JSON, TYPED
from dcp.bench.budgets import Verdict, verdicts
from dcp.bench.frames import MIB, Case
from dcp.bench.run import measure
from dcp.bench.timing import Measurement

# Rows of `speeds`: of each benchmark the cases that differ from this one in the value only, and the contenders with
# their titles.
SHOWN = {
    "decode": (Case(in_cache=False), {COPY: "bytes to columns", VIEWS: "bytes to columns, as views"}),
    "documents": (
        bench_documents.CASES[0],
        {ALL: "bytes to columns, documents typed", THREE: "bytes to columns, 3 fields of documents"},
    ),
    "encode": (Case(in_cache=False), {ENCODE: "columns to bytes"}),
    "socket": (bench_socket.CASES[0], {CLIENT: "client: sockets to columns"}),
    "spark": (
        bench_spark.CASES[0],
        {READ: "Spark: `dcp.spark.read` to the `noop` sink", SOURCE: 'Spark: `format("dcp")` to the `noop` sink'},
    ),
    "spark_documents": (
        bench_spark_documents.CASES[0],
        {TYPED: "Spark: `documentSchema` with 8 fields", FROM_JSON: "Spark: bytes, then `from_json` with 8 fields"},
    ),
}

_MET = {True: "yes", False: "**no**", None: "no core was free"}


def rewrite(page: str, measurements: Sequence[Measurement], judged: Iterable[Verdict], command: str) -> str:
    """Return the page with new figures between its markers. Raises ValueError if it has none."""
    tables = {"speeds": [where(command), speeds(measurements)], "budgets": [budgets(judged)]}
    there = [name for name in tables if _start(name) in page]
    if not there:
        raise ValueError(f"expected the markers {_start('speeds')} and {_end('speeds')}")
    for name in there:
        page = replaced(page, _start(name), _end(name), tables[name])
    return page


def _start(name: str) -> str:
    return f"<!-- {name}: from the benchmarks -->"


def _end(name: str) -> str:
    return f"<!-- {name}: end -->"


def replaced(page: str, start: str, end: str, parts: Sequence[str]) -> str:
    """Return the page with new paragraphs between two markers. Raises ValueError if it lacks them."""
    # Everything outside of the markers stays as it is.
    before, found, rest = page.partition(start)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"expected the markers {start} and {end}")
    return "\n\n".join([before + start, *parts, end + after])


def where(command: str) -> str:
    """Describe machine and versions."""
    machine = report.machine()
    versions = ", ".join(f"{name} {number}" for name, number in report.versions().items() if number)
    compiler = report.build()["compiler"] or "unknown compiler"
    return (
        f"`{command}` at {report.commit()}, on {machine['cores']} cores of {machine['cpu']}, "
        f"{platform.system()} {platform.release()}: {versions}, {compiler}. "
        "Figures are the best of several repetitions; ratios are medians over pairs that ran one after the other."
    )


def speeds(measurements: Sequence[Measurement]) -> str:
    """Return the table of speeds."""
    rows = [
        (title, f"{sized.case.value:,}", f"{1e3 / sample.best:.2f}", f"{sample.throughput:.2f}")
        for bench, (case, contenders) in SHOWN.items()
        for contender, title in contenders.items()
        for sized in measurements
        if sized.bench == bench and sized.case == replace(case, value=sized.case.value, total=sized.case.total)
        for sample in [sized.samples[contender]]
    ]
    return markdown(("what", "bytes per value", "million changes per second", "GB/s"), rows)


def budgets(judged: Iterable[Verdict]) -> str:
    """Return the table of budgets."""
    rows = []
    for verdict in judged:
        budget, found = verdict.budget, verdict.found
        shown = "" if found is None else f"{found:.2f} {budget.unit}"
        bound = f"{'≤' if budget.at_most else '≥'} {budget.bound:g} {budget.unit}"
        rows.append((budget.what, bound, shown, _MET[verdict.met]))
    return markdown(("budget", "bound", "found", "met"), rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], len(head) * "|---" + "|", *lines[1:]])


def main() -> None:
    """Run all benchmarks and rewrite the pages."""
    parser = argparse.ArgumentParser(prog="python -m dcp.bench.readme", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--repetitions", type=int, default=15, help="repetitions of each contender")
    parser.add_argument("--bytes", type=int, default=64 * MIB, help="bytes for each repetition")
    chosen = parser.parse_args()
    measurements = list(measure((*BENCHES, *SPARK), chosen.repetitions, chosen.bytes))
    command = shlex.join(["python", "-m", "dcp.bench.readme", *sys.argv[1:]])
    judged = list(verdicts(measurements))
    for page in chosen.pages:
        page.write_text(rewrite(page.read_text("utf-8"), measurements, judged, command), "utf-8")


if __name__ == "__main__":
    main()
