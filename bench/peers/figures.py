"""Figures of a comparison: table, JSON, plot, and the part of the README."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.consumers import OURS, Peer, Run
from dcp.bench import report
from dcp.bench.frames import KIB
from dcp.bench.readme import markdown, replaced

# Markers of pages: every case of a run, or those with values of 1 KiB.
EVERY, FEW, END = "<!-- peers: every case -->", "<!-- peers: values of 1 KiB -->", "<!-- peers: end -->"
# Share of the time from which on the producer may be what limits the rows per second.
_BUSY = 0.9


@dataclass(frozen=True)
class Case:
    """Bucket that all consumers read: rows with values of `size` bytes, over one kind of connection."""

    mode: str
    size: int
    vbuckets: int
    rows: int

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{self.mode}, {self.size:,} B, {self.vbuckets:,} vbuckets"


@dataclass(frozen=True)
class Comparison:
    """Runs of one case, by the name of the peer."""

    case: Case
    runs: Mapping[str, Sequence[Run]]

    def cpu(self, name: str) -> float:
        """Return CPU seconds per million rows, without those of a process that only connects."""
        runs = self.runs[name]
        used = median(run.cpu for run in runs) - median(run.idle_cpu for run in runs)
        return 1e6 * used / self.case.rows

    def speed(self, name: str) -> float:
        """Return million rows per second."""
        return self.case.rows / median(run.seconds for run in self.runs[name]) / 1e6

    def is_limited(self, name: str) -> bool:
        """Return whether the producer may have limited the speed."""
        return median(run.producer_busy for run in self.runs[name]) >= _BUSY

    def peak_mb(self, name: str) -> float:
        """Return the largest memory in MB."""
        return max(run.peak_mb for run in self.runs[name])

    def lead(self) -> float | None:
        """Return the CPU of the best other peer, in times ours; None without both, or if ours is not measurable."""
        others = [self.cpu(name) for name in self.runs if name != OURS.name]
        ours = self.cpu(OURS.name) if OURS.name in self.runs else 0.0
        return min(others) / ours if others and ours > 0 else None


def table(comparisons: Sequence[Comparison]) -> str:
    """Return the figures as text."""
    parts: list[str] = []
    for title, cell in (
        ("CPU seconds per million rows", lambda found, name: f"{found.cpu(name):.3f}"),
        ("million rows per second", _speed),
        ("largest memory, MB", lambda found, name: f"{found.peak_mb(name):.0f}"),
    ):
        names = list(comparisons[0].runs)
        rows = [[title, *names]]
        rows += [[found.case.name, *(cell(found, name) for name in names)] for found in comparisons]
        if not parts:
            rows[0].append("next best / ours")
            for row, found in zip(rows[1:], comparisons, strict=True):
                row.append(_lead(found))
        parts.append(report.aligned(rows))
    return "\n\n".join(parts) + f"\n\n* The producer used over {_BUSY:.0%} of a core: the consumer may be faster.\n"


def _speed(found: Comparison, name: str) -> str:
    """Return the rows per second, with a mark where the producer may be the limit."""
    return f"{found.speed(name):.2f}{'*' if found.is_limited(name) else ' '}"


def _lead(found: Comparison) -> str:
    """Return the lead of this project."""
    lead = found.lead()
    return "-" if lead is None else f"{lead:.1f}"


def as_json(comparisons: Iterable[Comparison], peers: Iterable[Peer]) -> dict[str, Any]:
    """Return all runs, with the machine and versions."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": report.commit(),
        "machine": report.machine(),
        "versions": versions(peers),
        "comparisons": [
            {
                "case": asdict(found.case),
                "next_best_over_ours": found.lead(),
                "peers": {
                    name: {
                        "cpu_seconds_per_million": found.cpu(name),
                        "million_rows_per_second": found.speed(name),
                        "limited_by_producer": found.is_limited(name),
                        "peak_mb": found.peak_mb(name),
                        "runs": [asdict(run) for run in runs],
                    }
                    for name, runs in found.runs.items()
                },
            }
            for found in comparisons
        ],
    }


def versions(peers: Iterable[Peer]) -> dict[str, str]:
    """Return the versions of the clients, and of what runs them."""
    found = {peer.name: peer.found_version() for peer in peers}
    found["python"] = platform.python_version()
    for tool, command in (("java", ("java", "--version")), ("go", ("go", "version"))):
        if any(tool in peer.tools for peer in peers):
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found[tool] = printed.splitlines()[0].removeprefix("go version ")
    return found


def plot(comparisons: Sequence[Comparison], path: Path) -> bool:
    """Plot CPU seconds per million rows to a file. Return False without matplotlib."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, modes = list(comparisons[0].runs), list(dict.fromkeys(found.case.mode for found in comparisons))
    figure = Figure(figsize=(12, 3.6 * len(modes)), layout="constrained")
    FigureCanvasAgg(figure)
    width = 0.8 / len(names)
    for axes, mode in zip(figure.subplots(len(modes), squeeze=False)[:, 0], modes, strict=True):
        shown = [found for found in comparisons if found.case.mode == mode]
        for i, name in enumerate(names):
            at = [place + (i - (len(names) - 1) / 2) * width for place in range(len(shown))]
            bars = axes.bar(at, [found.cpu(name) for found in shown], width, label=name)
            axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        axes.set_xticks(range(len(shown)), [f"{found.case.size:,} B\n{found.case.vbuckets:,} vb" for found in shown])
        axes.set_title(mode)
        axes.set_ylabel("CPU s per million rows")
        axes.margins(y=0.15)
        axes.grid(axis="y", alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path)
    return True


def rewrite(page: str, comparisons: Sequence[Comparison], peers: Sequence[Peer], command: str) -> str:
    """Return the page with new figures between its markers. Raises ValueError if it lacks them."""
    start = FEW if FEW in page else EVERY
    comparisons = [found for found in comparisons if start is EVERY or found.case.size == KIB]
    machine = report.machine()
    turns = len(next(iter(comparisons[0].runs.values())))
    cells = (
        "Each cell has CPU seconds per million changes · million changes per second · largest memory in MB, medians "
        f"of {turns} turns. The last column has the CPU of the best other client, in times that of dcp-arrow."
    )
    where = (
        f"`{command}` at {report.commit()}, on {machine['cores']} cores of {machine['cpu']}, which the producer "
        f"shares, with {platform.system()} {platform.release()}. Versions: "
        f"{'; '.join(f'{name}: {number}' for name, number in versions(peers).items())}."
    )
    names = list(comparisons[0].runs)
    rows = [
        (
            found.case.name,
            *(f"{found.cpu(name):.2f} · {_speed(found, name).rstrip()} · {found.peak_mb(name):.0f}" for name in names),
            _lead(found),
        )
        for found in comparisons
    ]
    note = f"\\* The producer used over {_BUSY:.0%} of a core: the client may be faster."
    return replaced(page, start, END, [cells, markdown(("", *names, "next best / dcp-arrow"), rows), note, where])
