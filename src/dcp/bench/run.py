"""Runs benchmarks and writes their results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from dcp.bench import report
from dcp.bench.budgets import verdicts
from dcp.bench.plot import plot
from dcp.bench.timing import Measurement


def measure(benches: Sequence[str], repetitions: int, total: int) -> Iterator[Measurement]:
    """Measure every case of some benchmarks, with about `total` bytes for each repetition."""
    for name in benches:
        yield from import_module(f"dcp.bench.bench_{name}").run(repetitions=repetitions, total=total)


def write(out: Path, measurements: Sequence[Measurement]) -> Path | None:
    """Write tables, JSON and a plot into a directory. Return the plot; None without matplotlib or without `decode`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.txt").write_text(tables(measurements), "utf-8")
    (out / "bench.json").write_text(json.dumps(found(measurements), indent=1), "utf-8")
    if find_spec("matplotlib") is None or all(measurement.bench != "decode" for measurement in measurements):
        return None
    plot(measurements, out / "bench.svg")
    return out / "bench.svg"


def tables(measurements: Sequence[Measurement]) -> str:
    """Return measurements and budgets as text."""
    parts = [report.table(measurements)]
    if judged := verdicts(measurements):
        parts.append(report.budget_table(judged))
    return "\n\n".join(parts) + "\n"


def found(measurements: Sequence[Measurement]) -> dict[str, object]:
    """Return measurements and budgets for JSON."""
    return report.as_json(measurements, verdicts(measurements))
