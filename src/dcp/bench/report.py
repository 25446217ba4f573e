"""Report of a run: tables as text, and JSON with the machine, versions and build."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

from dcp import _codec
from dcp.bench.bench_decode import COPY, MEMCPY, ONE_HASH, ONE_THREAD, STRUCT, TWO_HASHES, TWO_THREADS
from dcp.bench.bench_documents import ALL, DUCKDB, ORJSON
from dcp.bench.bench_encode import DECODE, ENCODE
from dcp.bench.bench_producer import PRODUCER, SENDALL
from dcp.bench.bench_socket import BARE, CLIENT
from dcp.bench.bench_spark import FLOOR, READ, SOURCE
from dcp.bench.bench_spark_documents import FROM_JSON, TYPED
from dcp.bench.budgets import Verdict
from dcp.bench.timing import Measurement

# Source tree that this is run from. An installed package has none.
_ROOT = Path(__file__).parents[3]
_SETUP = _ROOT / "setup.py"

# Ratios in the last columns of a table: speed of the first contender relative to the second.
RATIOS = {
    "decode": ((COPY, MEMCPY), (COPY, STRUCT)),
    "threads": ((TWO_THREADS, ONE_THREAD), (TWO_HASHES, ONE_HASH)),
    "documents": ((ALL, DUCKDB), (ALL, ORJSON)),
    "encode": ((ENCODE, DECODE), (ENCODE, STRUCT)),
    "producer": ((PRODUCER, SENDALL),),
    "socket": ((CLIENT, BARE),),
    "spark_documents": ((TYPED, FROM_JSON),),
    "spark": ((READ, FLOOR), (SOURCE, FLOOR)),
}

# ------------------------------------------------------------------------------------------ table


def table(measurements: Iterable[Measurement]) -> str:
    """Return tables of ns per row, GB/s, and ratios with their quartiles."""
    parts = []
    for bench, group in groupby(measurements, lambda measurement: measurement.bench):
        found = list(group)
        names = list(dict.fromkeys(name for measurement in found for name in measurement.samples))
        parts.append(aligned([[f"{bench}: ns per row", *names, "noise"], *(_times(m, names) for m in found)]))
        ratios = RATIOS[bench]
        head = [f"{bench}: GB/s of wire bytes", *names, *(f"{one} / {other}" for one, other in ratios)]
        parts.append(aligned([head, *(_speeds(m, names, ratios) for m in found)]))
    return "\n\n".join(parts)


def _times(measurement: Measurement, names: list[str]) -> list[str]:
    """Return a row of ns per row, and the noise."""
    samples = [measurement.samples.get(name) for name in names]
    noise = max(sample.noise for sample in measurement.samples.values())
    return [measurement.case.name, *(_short(s.best) if s else "-" for s in samples), f"{noise:.0%}"]


def _speeds(measurement: Measurement, names: list[str], ratios: Sequence[tuple[str, str]]) -> list[str]:
    """Return a row of GB/s and ratios."""
    samples = [measurement.samples.get(name) for name in names]
    speeds = [_short(sample.throughput) if sample else "-" for sample in samples]
    return [measurement.case.name, *speeds, *(_ratio(measurement, *pair) for pair in ratios)]


def _ratio(measurement: Measurement, one: str, other: str) -> str:
    """Return a ratio with its quartiles."""
    speed, quartiles = measurement.speed(one, other), measurement.range(one, other)
    if speed is None or quartiles is None:
        return "-"
    return f"{_short(speed)} ({_short(quartiles[0])}-{_short(quartiles[1])})"


def _short(number: float) -> str:
    """Return a number with three digits."""
    return f"{number:.2f}" if number < 10 else f"{number:.1f}" if number < 100 else f"{number:.0f}"


def aligned(rows: list[list[str]]) -> str:
    """Return rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    # Names are aligned to the left, numbers to the right.
    for first, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *padded]).rstrip())
    return "\n".join(lines)


_VERDICTS = {True: "met", False: "MISSED", None: "no core was free"}


def budget_table(verdicts: Iterable[Verdict]) -> str:
    """Return a table of budgets."""
    rows = [["budget", "bound", "found", ""]]
    for verdict in verdicts:
        budget = verdict.budget
        sign = "<=" if budget.at_most else ">="
        found = f"{_short(verdict.found)} {budget.unit}" if verdict.found is not None else "-"
        rows.append([budget.what, f"{sign} {budget.bound:g} {budget.unit}", found, _VERDICTS[verdict.met]])
    return aligned(rows)


# ------------------------------------------------------------------------------------------- JSON


def as_json(measurements: Iterable[Measurement], verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """Return all results, with the machine and versions."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "build": build(),
        "measurements": [_measured(measurement) for measurement in measurements],
        "budgets": [
            {
                "what": verdict.budget.what,
                "bound": verdict.budget.bound,
                "at_most": verdict.budget.at_most,
                "unit": verdict.budget.unit,
                "found": verdict.found,
                "met": verdict.met,
            }
            for verdict in verdicts
        ],
    }


def _measured(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement for JSON."""
    samples = {
        name: asdict(sample) | {"ns_per_row": sample.best, "gb_per_second": sample.throughput, "noise": sample.noise}
        for name, sample in measurement.samples.items()
    }
    return {
        "bench": measurement.bench,
        "name": measurement.case.name,
        "case": asdict(measurement.case),
        "samples": samples,
        "ratios": {
            f"{one} / {other}": {"median": speed, "quartiles": measurement.range(one, other)}
            for one, other in RATIOS[measurement.bench]
            if (speed := measurement.speed(one, other)) is not None
        },
    }


def commit() -> str | None:
    """Return the revision of the source tree, with + if files differ from it; None outside of a repository."""
    if not _SETUP.exists():
        return None
    try:
        ran = subprocess.run(
            # --exclude=* ignores tags: always a hash, which a shallow clone has as well.
            ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()


def machine() -> dict[str, Any]:
    """Describe the machine."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "caches": _caches(),
        "system": platform.platform(),
    }


def _cpu_model() -> str:
    """Return the name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.*)", cpuinfo.read_text("utf-8"), re.MULTILINE) if cpuinfo.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _caches() -> dict[str, str]:
    """Return the sizes of the first core's caches; empty unless on Linux."""
    return {
        f"L{(cache / 'level').read_text().strip()} {(cache / 'type').read_text().strip().lower()}": (cache / "size")
        .read_text()
        .strip()
        for cache in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
        if (cache / "size").exists()
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the libraries; None for those that are not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "cython": _cython()}
    for name in ("dcp-arrow", "pyarrow", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _cython() -> str | None:
    """Return the version of Cython that built the extension, from a module that it names after itself."""
    found = (re.fullmatch(r"_cython_(\d+_\d+_\w+)", name) for name in list(sys.modules))
    return next((match[1].replace("_", ".") for match in found if match), None)


def build() -> dict[str, str | None]:
    """Return the compiler that built the extension, from its signature, and the flags of a build on this machine."""
    # GCC and clang write their version into a section of every object file.
    signed = re.search(rb"(GCC: \([^\0]*|clang version [^\0]*)\0", Path(str(_codec.__file__)).read_bytes())
    lists = re.findall(r"COMPILE = \[(.*)\]", _SETUP.read_text("utf-8") if _SETUP.exists() else "")
    own = [re.findall('"(.*?)"', listed) for listed in lists]
    platform_own = [flags for flags in own if flags[0].startswith("/") == (sys.platform == "win32")]
    return {
        "compiler": signed[1].decode() if signed else None,
        "python_flags": sysconfig.get_config_var("CFLAGS"),
        "environment_flags": os.environ.get("CFLAGS"),
        "own_flags": " ".join(platform_own[0]) if platform_own else None,
    }
