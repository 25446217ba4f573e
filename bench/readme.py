"""What a run found, as the README shows it: `python -m bench --readme` writes it there."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench import bench_socket, report
from bench.bench_decode import COPY, VIEWS
from bench.bench_encode import ENCODE
from bench.bench_socket import CLIENT
from bench.bench_spark import READ, SOURCE
from bench.budgets import Verdict
from bench.frames import Case
from bench.timing import Measurement

START, END = "<!-- bench: what python -m bench --readme found -->", "<!-- bench: end -->"

# What the README tells of each benchmark: the cases that are like this one but for the value, and our contenders, in
# words for strangers.
SHOWN = {
    "decode": (Case(in_cache=False), {COPY: "bytes to columns", VIEWS: "bytes to columns, as views"}),
    "encode": (Case(in_cache=False), {ENCODE: "columns to bytes"}),
    "socket": (bench_socket.CASES[0], {CLIENT: "client: sockets to columns"}),
    "spark": (Case(), {READ: "Spark: `dcp.spark.read` to nowhere", SOURCE: 'Spark: `format("dcp")` to nowhere'}),
}


def rewrite(page: str, measurements: Sequence[Measurement], verdicts: Iterable[Verdict], command: str) -> str:
    """The page with these figures between its markers."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"expected the markers {START} and {END}")
    parts = [before + START, where(command), speeds(measurements), budgets(verdicts), END + after]
    return "\n\n".join(parts)


def where(command: str) -> str:
    machine = report.machine()
    versions = ", ".join(f"{name} {number}" for name, number in report.versions().items() if number)
    compiler = report.build()["compiler"] or "a compiler without a name"
    return (
        f"`{command}` at {report.commit()}, on {machine['cores']} cores of {machine['cpu']}, "
        f"{platform.system()} {platform.release()}: {versions}, {compiler}. The best of several turns."
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


def budgets(verdicts: Iterable[Verdict]) -> str:
    rows = []
    for verdict in verdicts:
        budget, found = verdict.budget, verdict.found
        shown = "no core was free" if found is None else f"{found:.2f} {budget.unit}"
        rows.append((budget.what, f"{'≤' if budget.at_most else '≥'} {budget.bound:g} {budget.unit}", shown))
    return _table(("what has to be reached", "bound", "found"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], len(head) * "|---" + "|", *lines[1:]])
