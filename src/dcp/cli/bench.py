"""`dcp bench`: how fast it is on this machine."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path

import click

from dcp.bench import BENCHES, SPARK

# Turns, and bytes a turn.
_RESULT, _LOOK = (15, 64 << 20), (3, 16 << 20)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer turns on fewer bytes: a look, not a result.")
@click.option("--only", type=click.Choice((*BENCHES, SPARK)), help=f"One of them.  [default: all but {SPARK}]")
@click.option(
    "--repetitions",
    type=click.IntRange(1),
    help=f"Turns of each contender.  [default: {_RESULT[0]}; with --quick, {_LOOK[0]}]",
)
@click.option(
    "--bytes",
    "total",
    type=click.IntRange(1),
    help=f"Bytes a turn.  [default: {_RESULT[1]}; with --quick, {_LOOK[1]}]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="A directory for bench.txt, bench.json and bench.svg.  [default: a temporary one]",
)
@click.option("--json", "as_json", is_flag=True, help="Only what was found, as a JSON object.")
def bench(
    quick: bool, only: str | None, repetitions: int | None, total: int | None, out: Path | None, as_json: bool
) -> None:
    """Measure decoding, encoding, the embedded cluster and the client, beside what they have to be compared with.

    That is a copy of the same bytes, a loop in Python, a loop that throws away what it receives. They take turns, so
    that what else the machine does befalls all of them. The plot needs matplotlib, and `--only spark` a Java.

    \b
    Example:
      dcp bench --quick --only decode
      dcp bench --out results
      dcp bench --only socket --json | jq '.measurements[].ratios'
    """
    from dcp.bench import run

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    turns, size = _LOOK if quick else _RESULT
    measurements = []
    for measurement in run.measure([only] if only else BENCHES, repetitions or turns, total or size):
        measurements.append(measurement)
        if not as_json:
            click.echo(f"{measurement.bench}: {measurement.case.name}")
    directory = out or Path(tempfile.mkdtemp(prefix="dcp-bench-"))
    drawn = run.write(directory, measurements)
    if as_json:
        click.echo(json.dumps(run.found(measurements)))
        return
    click.echo(f"\n{run.tables(measurements)}")
    click.echo(f"written to {directory}")
    if drawn is None and only in (None, "decode"):
        click.echo("without a plot, which needs matplotlib: pip install 'dcp-arrow[bench]'")
