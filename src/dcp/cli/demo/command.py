"""The command `dcp demo`: its options, its files, and the summary."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from dcp.cli.demo.chart import draw
from dcp.cli.demo.scenario import run_scenario
from dcp.cli.demo.screen import Screen

_DOCUMENTS, _SMALL = 1_000_000, 20_000


@click.command()
@click.option("--small", is_flag=True, help=f"Use {_SMALL:,} documents, and shorten every step.")
@click.option(
    "--documents", type=click.IntRange(1000), help=f"Number of documents to start with.  [default: {_DOCUMENTS:,}]"
)
@click.option("--no-spark", is_flag=True, help="Copy with the Python client alone; needs neither Spark nor Java.")
@click.option("--keep", is_flag=True, help="Keep the Parquet files and Spark's log. Otherwise only the chart stays.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="New directory for the files.  [default: a temporary one]",
)
@click.option("--seed", default=1, show_default=True, help="Seed of the documents and writes.")
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as one JSON object.")
def demo(
    small: bool, documents: int | None, no_spark: bool, keep: bool, out: Path | None, seed: int, as_json: bool
) -> None:
    """Copy a bucket into Parquet with Spark, through a failover.

    Then compare the copy with the cluster, and add up its orders from typed columns.

    Everything runs on this machine: an embedded cluster in this process, on the loopback interface, and a Spark
    session of its own. The Parquet files have every change. A failover that loses changes adds rollback rows, which
    report what to undo.

    \b
    Example:
      dcp demo
      dcp demo --small --no-spark
      dcp demo --keep --out demo
    """
    if out is not None and out.exists():
        raise click.BadParameter(f"expected a new directory, found {out}, which exists", param_hint="--out")
    # Like Ctrl-C, SIGTERM has to end Spark and remove the files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    screen = Screen(quiet=as_json)
    with _files(out, keep=keep) as directory:
        count = documents or (_SMALL if small else _DOCUMENTS)
        facts, monitor = run_scenario(screen, directory, count=count, seed=seed, short=small, with_spark=not no_spark)
        chart = directory / "demo.svg"
        title = f"{facts['rows']:,} changes of a bucket into Parquet, by {monitor.copier.name}"
        chart.write_text(draw(title, monitor.samples, monitor.events), "utf-8")
    facts |= {"picture": str(chart), "parquet": str(directory / "changes") if keep else None}
    if as_json:
        click.echo(json.dumps(facts))
    else:
        screen.print()
        screen.table(_summary(facts, screen))
    if facts["differing"]:
        raise SystemExit(1)


@contextmanager
def _files(out: Path | None, *, keep: bool) -> Iterator[Path]:
    """Create the directory. A failure removes it; success without `keep` leaves only the chart."""
    if out is not None:
        out.mkdir(parents=True)
    directory = out or Path(tempfile.mkdtemp(prefix="dcp-demo-"))
    try:
        yield directory
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if not keep:
        for part in directory.iterdir():
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)


def _summary(facts: dict[str, Any], screen: Screen) -> list[tuple[str, str]]:
    """Return the lines of the summary."""
    received, parquet = (f"{facts[name] / 1e6:,.0f} MB" for name in ("bytes_received", "bytes_parquet"))
    speed = f"{facts['rows_per_second']:,} rows/s, {facts['bytes_per_second'] / 1e6:,.0f} MB/s"
    return [
        *(
            ("" if number else "orders", f"{row['status']:<10}{row['orders']:>9,}{Decimal(row['total']):>18,}")
            for number, row in enumerate(facts["orders"])
        ),
        ("rows", f"{facts['rows']:,}, {facts['undone']:,} of them undone by rollbacks"),
        ("bytes", f"{received} received, {parquet} of Parquet"),
        ("speed", f"{speed}, during the first read"),
        ("time", f"{sum(facts['seconds'].values()):.0f} s: {screen.shares()}"),
        ("parquet", facts["parquet"] or "removed; use --keep to keep it"),
        ("chart", facts["picture"]),
    ]
