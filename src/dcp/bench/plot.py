"""Plot of a run: throughput by size of value, and the cost of the mixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dcp.bench.bench_decode import COPY, MEMCPY, STRUCT, VIEWS
from dcp.bench.frames import Case
from dcp.bench.timing import Measurement, Sample

_LINES = {
    MEMCPY: ("memcpy of the same bytes", "0.45", "--"),
    VIEWS: ("decode, views", "tab:green", "-"),
    COPY: ("decode", "tab:blue", "-"),
    STRUCT: ("struct loop in Python", "tab:orange", "-"),
}
_BUDGET: dict[str, Any] = {"color": "tab:red", "zorder": 4}


def plot(measurements: Iterable[Measurement], path: Path) -> None:
    """Plot the results of `decode` to a file, in the format of its suffix. Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    decoded = [measurement for measurement in measurements if measurement.bench == "decode"]
    # Without pyplot, which would need a display or a global backend.
    figure = Figure(figsize=(13, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    by_size, by_mix = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_sizes(by_size, {m.case.value: m for m in decoded if _is_plain(m.case)})
    _draw_mixes(by_mix, [m for m in decoded if _is_mix(m.case)])
    figure.savefig(path)


def _draw_sizes(axes: Any, decoded: dict[int, Measurement]) -> None:
    """Draw throughput over the size of values."""
    values = sorted(decoded)
    for name, (label, color, style) in _LINES.items():
        points = [(v, decoded[v].samples[name].throughput) for v in values if name in decoded[v].samples]
        if points:
            axes.plot(*zip(*points, strict=True), style, marker="o", markersize=4, color=color, label=label)
    _draw_budgets(axes, decoded)
    # symlog, since there are values of 0 bytes.
    axes.set_xscale("symlog", base=2, linthresh=16, linscale=0.5)
    axes.set_yscale("log")
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()
    ticks = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xlabel("bytes per value, with keys of 20 bytes")
    axes.set_ylabel("wire bytes in GB/s")
    axes.set_title("Decoding: bytes to columns")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=9)


def _draw_budgets(axes: Any, decoded: dict[int, Measurement]) -> None:
    """Draw each budget as a bar that the contender's line has to be above."""
    wanted: dict[int, tuple[str, Callable[[Sample, Measurement], float]]] = {
        100: ("16 ns per row", lambda sample, _: sample.bytes / sample.rows / 16),
        1024: ("0.40 of memcpy", lambda _, measured: 0.40 * measured.samples[MEMCPY].throughput),
        4096: ("views: memcpy", lambda _, measured: measured.samples[MEMCPY].throughput),
    }
    for value, (text, bound) in wanted.items():
        if value not in decoded:
            continue
        height = bound(decoded[value].samples[COPY], decoded[value])
        axes.plot([value], [height], marker="_", markersize=22, markeredgewidth=2.5, **_BUDGET)
        offset = {"xytext": (0, -13), "textcoords": "offset points", "ha": "center"}
        background = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        axes.annotate(text, (value, height), fontsize=8, color="tab:red", bbox=background, **offset)
    axes.plot([], [], marker="_", markersize=12, markeredgewidth=2.5, linestyle="", label="budget", **_BUDGET)


def _is_plain(case: Case) -> bool:
    """True if a case differs from the default in the size of values only."""
    return case == Case(value=case.value, total=case.total)


def _is_mix(case: Case) -> bool:
    """True for cases of 100-byte values."""
    return case.value == 100 and (case.in_cache or case != Case(in_cache=False, total=case.total))


def _draw_mixes(axes: Any, decoded: list[Measurement]) -> None:
    """Draw ns per row of each mix."""
    names = [measurement.case.name.removeprefix("value 100, ") for measurement in decoded]
    height = 0.38
    for shift, name in ((-height / 2, COPY), (height / 2, VIEWS)):
        times = [measurement.samples[name].best for measurement in decoded]
        bars = axes.barh([i + shift for i in range(len(times))], times, height, color=_LINES[name][1], label=name)
        axes.bar_label(bars, [f"{time:.0f}" for time in times], padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), [name.replace("_", " ").replace("value 100", "plain") for name in names])
    axes.invert_yaxis()
    axes.axvline(16, linestyle=":", **_BUDGET)
    axes.margins(x=0.1)
    axes.set_xlabel("ns per row")
    axes.set_title("Values of 100 bytes")
    axes.legend(loc="upper right", fontsize=9)
