"""Runs every benchmark, prints what it found and writes it down."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import bench_decode, bench_encode, bench_producer, bench_socket, bench_spark, readme, report
from bench.budgets import verdicts
from bench.frames import MIB
from bench.plot import plot
from bench.timing import Measurement

BENCHES = (bench_decode, bench_encode, bench_producer, bench_socket)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--out", type=Path, default=report.ROOT / "build/bench", help="where the results go")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions on fewer bytes: a look, not a result")
    parser.add_argument("--only", choices=[name(bench) for bench in BENCHES], help="one benchmark instead of all")
    parser.add_argument("--repetitions", type=int, help="turns of each contender")
    parser.add_argument("--bytes", type=int, help="bytes a turn")
    parser.add_argument("--readme", action="store_true", help="also measure Spark, and write the README's figures anew")
    chosen = parser.parse_args(arguments)
    repetitions = chosen.repetitions or (3 if chosen.quick else 15)
    total = chosen.bytes or (16 * MIB if chosen.quick else 64 * MIB)
    measurements = list(measure(chosen.only, repetitions, total))
    write(chosen.out, measurements)
    if chosen.readme:
        measurements += bench_spark.measured(share=0.1 if chosen.quick else 1)
        command = shlex.join(["python", "-m", "bench", *(sys.argv[1:] if arguments is None else arguments)])
        page = report.ROOT / "README.md"
        page.write_text(readme.rewrite(page.read_text("utf-8"), measurements, verdicts(measurements), command), "utf-8")


def name(bench: object) -> str:
    return str(getattr(bench, "__name__", "")).removeprefix("bench.bench_")


def measure(only: str | None, repetitions: int, total: int) -> Iterator[Measurement]:
    for bench in BENCHES:
        if only in (None, name(bench)):
            for measurement in bench.run(repetitions=repetitions, total=total):
                print(f"{measurement.bench}: {measurement.case.name}", flush=True)
                yield measurement


def write(out: Path, measurements: list[Measurement]) -> None:
    found = verdicts(measurements)
    text = f"{report.table(measurements)}\n\n{report.budget_table(found)}\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / "bench.json").write_text(json.dumps(report.as_json(measurements, found), indent=1), "utf-8")
    (out / "bench.txt").write_text(text, "utf-8")
    drawn = plot(measurements, out / "bench.svg")
    print(f"\n{text}\nwritten to {out}" + ("" if drawn else "; without a plot, which needs matplotlib"))


if __name__ == "__main__":
    main()
