"""`dcp copy`: changes into files, to go on from where it ended."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import dcp
from dcp.checkpoint import Checkpoint
from dcp.cli import INTERRUPTED
from dcp.cli.changes import Names
from dcp.cli.parts import Output
from dcp.cli.positions import end_of, start_of
from dcp.cli.terminal import console, counted
from dcp.cli.writers import FORMATS, format_of
from dcp.client.row_format import ROLLBACK
from dcp.errors import LocalProtocolError

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 65_536
# How long a wait for changes lasts before it is asked whether to stop.
_PATIENCE = 0.5


@click.command()
@click.argument("url")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--format", "format", type=click.Choice(list(FORMATS)), help="Default: what the suffix of OUT says.")
@click.option("--from", "start", metavar="beginning|now|TIME|FILE", help="For a new OUT. Default: beginning.")
@click.option("--to", "end", metavar="now|TIME|FILE", help="Default: now. FILE: a checkpoint, and its snapshot's rest.")
@click.option("--scope", help="Only this scope, or the scope of --collection.")
@click.option("--collection", "collections", multiple=True, help="Only this one, as scope.collection; repeatable.")
@click.option("--follow", is_flag=True, help="Go on for ever, where --to is an end otherwise.")
@click.option("--max-rows-per-file", "most", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option(
    "--commit-every",
    "interval",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow, close files after so long.",
)
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON.")
@click.pass_context
def copy(
    ctx: click.Context,
    url: str,
    out: Path,
    format: str | None,
    start: str | None,
    end: str | None,
    scope: str | None,
    collections: tuple[str, ...],
    follow: bool,
    most: int,
    interval: float,
    as_json: bool,
) -> None:
    """Copy changes into the directory OUT, and go on there when run again.

    OUT gets files part-00000001.parquet and so on; where the bucket has several collections, each has a
    directory of the form collection=scope.name. The checkpoint is beside them, and is replaced when the files
    it speaks of are safe on the disk: whatever happens, no change is missing or there twice. One copy at a time
    may write to OUT.

    A row with the event `rollback` says that the cluster lost changes: of its vbucket, undo the rows above its
    seqno, up to its snapshot_end, in all files of a lower number. It begins a file of a new number. In a
    partitioned OUT, it is in the partition of null.

    \b
    Example:
      dcp copy couchbase://me:secret@localhost/travel travel.parquet
      dcp copy couchbase://me:secret@localhost/travel day.parquet --from 2026-11-01T00:00Z --to 2026-11-02T00:00Z
      dcp copy couchbase://me:secret@localhost/travel hotels.ndjson --collection inventory.hotel --follow
      duckdb -c "from read_parquet('travel.parquet/**/part-*.parquet', hive_partitioning = true)"
    """
    if follow and end is not None:
        raise click.UsageError("--follow and --to: expected one of them, found both")
    until = None if follow else end_of(end or "now")
    with closing(Output(out, format or format_of(out))) as output:
        stopped = _run(output, url, start, until, scope, collections, most=most, interval=interval, as_json=as_json)
    if stopped and not follow:
        click.echo("interrupted: what is copied is safe; run it again to go on", err=True)
        ctx.exit(INTERRUPTED)


def _run(
    output: Output,
    url: str,
    start: str | None,
    end: str | datetime | Checkpoint | None,
    scope: str | None,
    collections: tuple[str, ...],
    *,
    most: int,
    interval: float,
    as_json: bool,
) -> bool:
    """Copy, and say what was copied; whether somebody asked to stop."""
    if output.checkpoint is not None and start is not None:
        raise LocalProtocolError(
            f"{output.directory}: has a checkpoint of its own; leave out --from, or name a new directory"
        )
    begin = output.checkpoint or start_of(start or "beginning")
    started = time.monotonic()
    with (
        dcp.connect(url) as client,
        client.stream(
            begin,
            end,
            scope=scope,
            collections=collections or None,
            batch_rows=min(most, _BATCH_ROWS),
            xattrs="map",
        ) as stream,
        _stopping() as stopped,
        _Meter(client.high_seqnos(), stream.checkpoint, follow=end is None) as meter,
    ):
        output.begin(stream.checkpoint, Names(client))
        _copy(stream, output, meter, stopped, most, interval if end is None else None)
        total = stream.counters
    _summarise(output, time.monotonic() - started, total.rollbacks, as_json=as_json)
    return bool(stopped)


def _copy(
    stream: dcp.ChangeStream, output: Output, meter: _Meter, stopped: list[int], most: int, interval: float | None
) -> None:
    behind = stream.checkpoint
    due = None if interval is None else time.monotonic() + interval
    while not stopped:
        if due is not None and interval is not None and time.monotonic() >= due:
            if output.rows:
                output.commit(behind)
            due = time.monotonic() + interval
        try:
            batch = stream.next(_PATIENCE)
        except TimeoutError:
            continue
        if batch is None:
            break
        table = _table(batch)
        if output.rows and (_is_rollback(table) or not output.has_room(table.num_rows, most)):
            output.commit(behind)
        output.add(table)
        behind = stream.checkpoint
        meter.at(behind)
    # Without rows, too: streams that had nothing for this filter are further than they were.
    output.commit(behind)


def _table(batch: dcp.Batch) -> pa.Table:
    import pyarrow

    return pyarrow.table(batch)


def _is_rollback(table: pa.Table) -> bool:
    """A rollback is a batch of its own."""
    return table.num_rows == 1 and bool(table.column("event")[0].as_py() == ROLLBACK)


@contextmanager
def _stopping() -> Iterator[list[int]]:
    """The signals that asked to stop. The second one does not ask."""
    asked: list[int] = []

    def ask(number: int, _: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Meter:
    """How far it is, on a terminal."""

    def __init__(self, highs: Mapping[int, int], start: Checkpoint, *, follow: bool) -> None:
        shown = console(to_stderr=True)
        self._start = _sum(start)
        self._progress = Progress(
            TextColumn("{task.completed:,} of {task.total:,} seqnos" if not follow else "{task.completed:,} seqnos"),
            *(() if follow else (BarColumn(), TimeRemainingColumn())),
            TimeElapsedColumn(),
            console=shown,
            disable=not shown.is_terminal,
            transient=True,
        )
        behind = sum(start.lag({vbucket: highs.get(vbucket, 0) for vbucket in start.by_vbucket()}).values())
        self._task: TaskID = self._progress.add_task("copy", total=behind)

    def __enter__(self) -> _Meter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def at(self, checkpoint: Checkpoint) -> None:
        self._progress.update(self._task, completed=_sum(checkpoint) - self._start)


def _sum(checkpoint: Checkpoint) -> int:
    return sum(position.seqno for position in checkpoint)


def _summarise(output: Output, seconds: float, rollbacks: int, *, as_json: bool) -> None:
    rows = sum(output.events.values())
    if as_json:
        found: dict[str, Any] = {
            "rows": rows,
            "events": dict(output.events),
            "files": output.files,
            "bytes": output.bytes,
            "rollbacks": rollbacks,
            "seconds": round(seconds, 3),
            "checkpoint": str(output.place),
        }
        click.echo(json.dumps(found))
        return
    events = ", ".join(counted(number, event) for event, number in output.events.most_common())
    click.echo(f"{counted(rows, 'change')}{f' ({events})' if events else ''} in {seconds:.1f} s")
    click.echo(
        f"{counted(output.files, 'file')} of {output.format}, {counted(output.bytes, 'byte')}, in {output.directory}"
    )
    click.echo(f"checkpoint: {output.place}")
