"""`dcp bench`: measures the speed of this package on this machine."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path

import click

from dcp.bench import BENCHES, SPARK
from dcp.cli.arguments import SIZE

# Repetitions, and bytes for each of them.
_FULL, _QUICK = (15, 64 << 20), (3, 16 << 20)


@click.command()
@click.option("--quick", is_flag=True, help="Fewer repetitions of fewer bytes: a first impression, not a result.")
@click.option("--only", type=click.Choice((*BENCHES, *SPARK)), help="Run one benchmark.  [default: all but Spark's]")
@click.option(
    "--repetitions",
    type=click.IntRange(1),
    help=f"Repetitions of each measurement.  [default: {_FULL[0]}; with --quick, {_QUICK[0]}]",
)
@click.option(
    "--bytes",
    "total",
    type=SIZE,
    metavar="SIZE",
    help=f"Bytes for each repetition, such as 64m.  [default: {_FULL[1] >> 20}m; with --quick, {_QUICK[1] >> 20}m]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for bench.txt, bench.json and bench.svg.  [default: a temporary one]",
)
@click.option("--json", "as_json", is_flag=True, help="Print only the results, as one JSON object.")
def bench(
    quick: bool, only: str | None, repetitions: int | None, total: int | None, out: Path | None, as_json: bool
) -> None:
    """Measure the speed on this machine, against baselines.

    It measures decoding, encoding, the embedded cluster, the client, and Spark.

    Baselines are a copy of the same bytes, a decoder in plain Python, and a loop that discards what it receives.
    A measurement and its baseline alternate, so that other load on the machine affects both. The plot needs
    matplotlib; `--only spark` and `--only spark_documents` need Java.

    \b
    Example:
      dcp bench --quick --only decode
      dcp bench --out results
      dcp bench --only socket --json | jq '.measurements[].ratios'
    """
    from dcp.bench import run

    # The default action would skip the cleanup of subprocesses.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    turns, size = _QUICK if quick else _FULL
    measurements = []
    for measurement in run.measure([only] if only else BENCHES, repetitions or turns, total or size):
        measurements.append(measurement)
        if not as_json:
            click.echo(f"{measurement.bench}: {measurement.case.name}")
    directory = out or Path(tempfile.mkdtemp(prefix="dcp-bench-"))
    has_plot = run.write(directory, measurements)
    if as_json:
        click.echo(json.dumps(run.found(measurements)))
        return
    click.echo(f"\n{run.tables(measurements)}")
    click.echo(f"written to {directory}")
    if has_plot is None and only in (None, "decode"):
        click.echo("no plot: matplotlib is not installed; pip install 'dcp-arrow[examples]'")
