"""The command: its options, its files, and the summary."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from dcp.cli.demo.picture import draw
from dcp.cli.demo.screen import Screen
from dcp.cli.demo.story import tell

_MANY, _FEW = 1_000_000, 20_000


@click.command()
@click.option("--small", is_flag=True, help=f"{_FEW:,} documents, and a shorter while of everything.")
@click.option("--documents", type=click.IntRange(1000), help=f"How many to begin with.  [default: {_MANY:,}]")
@click.option("--no-spark", is_flag=True, help="Copy with the Python client alone: neither Spark nor Java is needed.")
@click.option("--keep", is_flag=True, help="Leave the Parquet and Spark's log; otherwise only the picture stays.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="A new directory for the files.  [default: a temporary one]",
)
@click.option("--seed", default=1, show_default=True, help="The same seed makes the same documents.")
@click.option("--json", "as_json", is_flag=True, help="Only the summary, as a JSON object.")
def demo(
    small: bool, documents: int | None, no_spark: bool, keep: bool, out: Path | None, seed: int, as_json: bool
) -> None:
    """Copy a bucket into Parquet with Spark, follow it through a failover, and hold the copy against the cluster.

    Everything runs here: the cluster in this process, on the loopback interface, and a Spark of its own. The Parquet
    has every change, and a rollback is one of them: it says what the cluster has lost.

    \b
    Example:
      dcp demo
      dcp demo --small --no-spark
      dcp demo --keep --out demo
    """
    if out is not None and out.exists():
        raise click.BadParameter(f"expected a new directory, found {out}, which is there", param_hint="--out")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    screen = Screen(quiet=as_json)
    with _files(out, keep=keep) as directory:
        count = documents or (_FEW if small else _MANY)
        facts, course = tell(screen, directory, count=count, seed=seed, short=small, with_spark=not no_spark)
        picture = directory / "demo.svg"
        title = f"{facts['rows']:,} changes of a bucket into Parquet, by {course.copier.name}"
        picture.write_text(draw(title, course.samples, course.marks), "utf-8")
    facts |= {"picture": str(picture), "parquet": str(directory / "changes") if keep else None}
    if as_json:
        click.echo(json.dumps(facts))
    else:
        screen.say()
        screen.table(_summary(facts, screen))
    if facts["differing"]:
        raise SystemExit(1)


@contextmanager
def _files(out: Path | None, *, keep: bool) -> Iterator[Path]:
    """A new directory, which a failure takes with it, and a success without `keep` leaves with the picture alone."""
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
    received, parquet = (f"{facts[name] / 1e6:,.0f} MB" for name in ("bytes_received", "bytes_parquet"))
    speed = f"{facts['rows_per_second']:,} rows/s, {facts['bytes_per_second'] / 1e6:,.0f} MB/s"
    return [
        ("rows", f"{facts['rows']:,}, of which rollbacks undid {facts['undone']:,}"),
        ("bytes", f"{received} received, {parquet} of Parquet"),
        ("speed", f"{speed}, while all was read"),
        ("time", f"{sum(facts['seconds'].values()):.0f} s: {screen.shares()}"),
        ("parquet", facts["parquet"] or "removed: --keep leaves it"),
        ("picture", facts["picture"]),
    ]
