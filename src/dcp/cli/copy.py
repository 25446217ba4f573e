"""`dcp copy`: copies changes into files, and resumes where the run before ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import dcp
from dcp.checkpoint import Checkpoint, filter_of
from dcp.cli import INTERRUPTED
from dcp.cli.arguments import INTERVAL, OutputPath
from dcp.cli.checkpoint_args import parse_end, parse_start
from dcp.cli.client_log import client_log, log_options
from dcp.cli.copy_output import CopyOutput
from dcp.cli.document_args import document_options
from dcp.cli.file_formats import FORMATS
from dcp.cli.json_rows import CollectionNames
from dcp.cli.login import url_argument
from dcp.cli.stop_signals import stop_signals
from dcp.cli.terminal import console, counted
from dcp.client.filters import bucket_checkpoint
from dcp.client.options import Use, options_of
from dcp.client.row_format import ROLLBACK
from dcp.columns.path_columns import PATH_COLUMNS
from dcp.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 65_536
# Columns by which rows are divided, and a rollback is undone.
_NEEDED = ("event", "vbucket", "seqno", "collection_id")
# Longest wait for changes, in seconds: signals and the commit interval are checked in between.
_WAIT = 0.5
# Seconds between two positions that the progress bar shows: adding up the seqnos of all vbuckets takes a while.
_PROGRESS_INTERVAL = 0.1


@click.command()
@url_argument
@click.argument("out", type=OutputPath())
@click.option("--format", "format", type=click.Choice(list(FORMATS)), help="File format.  [default: by suffix of OUT]")
@click.option(
    "--from", "start", metavar="beginning|now|TIME|FILE", help="Where a new OUT starts.  [default: beginning]"
)
@click.option(
    "--to",
    "end",
    metavar="now|TIME|FILE",
    help="Where to stop. FILE is a checkpoint; the rest of its snapshot is included.  [default: now]",
)
@click.option("--scope", help="Copy only this scope. It also completes the names given with --collection.")
@click.option("--collection", "collections", multiple=True, help="Copy only this scope.collection; repeatable.")
@click.option(
    "--schema",
    metavar="DDL",
    help="Schema of the documents, such as 'id bigint, customer struct<city string>': a column `document` of that type "
    "replaces `value`, and `error` says what did not fit.",
)
@click.option(
    "--where",
    metavar="CONDITION",
    help="Copy only documents for which it is true, such as \"type = 'order' and total > 100\", deletions, and values "
    "that are no JSON.",
)
@click.option(
    "--columns",
    metavar="NAMES",
    help="Only these columns, such as key,value,cas, and those by which a rollback is undone: event, vbucket, seqno, "
    "collection_id.",
)
@click.option("--follow", is_flag=True, help="Copy new changes until interrupted, instead of stopping at --to.")
@click.option(
    "--max-rows-per-file",
    "max_rows",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Start a new file after this many rows.",
)
@click.option(
    "--commit-every",
    "interval",
    type=INTERVAL,
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="With --follow, commit files at this interval, such as 500ms, 60s or 5m.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@log_options
@click.pass_context
def copy(
    ctx: click.Context,
    url: str,
    out: str,
    format: str | None,
    start: str | None,
    end: str | None,
    scope: str | None,
    collections: tuple[str, ...],
    schema: str | None,
    where: str | None,
    columns: str | None,
    follow: bool,
    max_rows: int,
    interval: float,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Copy changes into files in the directory OUT. Run it again to copy what is new.

    OUT is a path, or a URL of an object store or file system, such as s3://lake/travel.parquet, gs://, abfs:// or
    hdfs://. Its credentials come from where the tools of that store take them.

    OUT gets files part-00000001.parquet and so on. If the bucket has several collections, each has a subdirectory
    collection=scope.name. OUT also holds the checkpoint, which is replaced once the files that it covers are safe
    on disk: after a crash, no change is missing or duplicated. Only one copy at a time may write to OUT.

    The first run fixes the format, the documents and the columns of OUT: give later runs the same --format, --scope,
    --collection, --where, --schema and --columns. A copy of a bucket that was deleted and created again is refused:
    copy into a new directory, or remove OUT.

    A row with event `rollback` reports that a failover lost changes: discard the rows of its vbucket with a seqno
    above its seqno, up to its snapshot_end, in all files with a lower number. It is the first row of a new file. In
    a partitioned OUT it is in the partition for null.

    TIME has a UTC offset, or is a time before now such as 1h. --from is inclusive, --to exclusive.

    \b
    Example:
      dcp copy couchbase://localhost/travel travel.parquet
      dcp copy couchbase://localhost/travel day.parquet --from 2026-11-01T00:00Z --to 2026-11-02T00:00Z
      dcp copy couchbase://localhost/travel hotels.ndjson --collection inventory.hotel --follow
      dcp copy couchbase://localhost/travel routes.parquet --where "type = 'route'" --schema 'id int, stops int'
      duckdb -c "from read_parquet('travel.parquet/**/part-*.parquet', hive_partitioning = true)"
    """
    if follow and end is not None:
        raise click.UsageError("--follow and --to: expected one of them, found both")
    until = None if follow else parse_end(end or "now")
    with client_log(verbose=verbose, quiet=quiet), closing(CopyOutput(out, format)) as output:
        options = document_options(schema, where) | ({"columns": columns} if columns is not None else {})
        stopped = _run(output, url, start, until, scope, collections, options, max_rows, interval, as_json=as_json)
    if stopped and not follow:
        click.echo("interrupted: all copied changes are committed; run it again to resume", err=True)
        ctx.exit(INTERRUPTED)


def _run(
    output: CopyOutput,
    url: str,
    start: str | None,
    end: str | datetime | Checkpoint | None,
    scope: str | None,
    collections: tuple[str, ...],
    options: Mapping[str, str],
    max_rows: int,
    interval: float,
    *,
    as_json: bool,
) -> bool:
    """Copy, and print a summary. Return True if a signal stopped the copy."""
    if output.checkpoint is not None and start is not None:
        raise UsageError(f"{output.shown}: has a checkpoint of its own; leave out --from, or name a new directory")
    # A copy resumes from its own checkpoint, whatever the defaults are.
    begin = output.checkpoint or parse_start(start or "beginning")
    started = time.monotonic()
    with dcp.connect(url) as client:
        if output.checkpoint is not None:
            _check_source(output.shown, output.checkpoint, client, scope, collections)
        # Asked before the stream is open: a node that sends rows answers late, and nothing takes the rows meanwhile.
        names = CollectionNames(client)
        highs = client.heads(scope=scope, collections=collections or None).high_seqnos
        with (
            client.stream(
                begin,
                end,
                scope=scope,
                collections=collections or None,
                batch_rows=min(max_rows, _BATCH_ROWS),
                columns=_columns(options.get("columns")),
                # Xattrs as a map: Parquet readers have no use for their binary section.
                xattrs="map",
                document=options.get("schema"),
                where=options.get("where"),
            ) as stream,
            stop_signals() as signals,
            _ProgressBar(highs, stream.checkpoint, follow=end is None) as progress,
        ):
            output.begin(stream.checkpoint, names, options)
            _copy(stream, output, progress, signals, max_rows, interval if end is None else None)
            total = stream.counters
    _summarise(output, time.monotonic() - started, total.rollbacks, as_json=as_json)
    return bool(signals)


def _check_source(
    shown: str, before: Checkpoint, client: dcp.Client, scope: str | None, collections: tuple[str, ...]
) -> None:
    """Raise CheckpointError or UsageError unless a copy is of this bucket, and of these collections."""
    # The bucket first: one that was recreated may lack the collections.
    remedy = "copy into a new directory, or remove this one with its files and checkpoint to copy all again"
    before.check_bucket(bucket_checkpoint(client.map), holder=shown, remedy=remedy)
    expected, found = map(filter_of, (before, client.positions(scope=scope, collections=collections or None)))
    if found != expected:
        raise UsageError(
            f"{shown}: expected {expected}, as it was begun with, found {found}; copy the same as before, or into a "
            "new directory; a collection that was dropped and created again is another one"
        )


def _columns(names: str | None) -> list[str] | None:
    """Return the columns to copy; None for the default ones."""
    if names is None:
        return None
    chosen = options_of(Use.STREAM)["columns"].read(names)
    if in_directories := {*PATH_COLUMNS} & {*chosen}:
        raise UsageError(f"columns: expected collection_id for {in_directories.pop()!r}: directories have the names")
    return [*dict.fromkeys([*_NEEDED, *chosen])]


def _copy(
    stream: dcp.ChangeStream,
    output: CopyOutput,
    progress: _ProgressBar,
    signals: list[int],
    max_rows: int,
    interval: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Copy batches until the stream ends or a signal arrives. interval: seconds between commits; None for none."""
    # Returns the position after all rows that were added to the output. It moves without rows, too.
    added = stream.deferred_checkpoint()
    due = None if interval is None else clock() + interval
    while not signals:
        if due is not None and interval is not None and clock() >= due:
            if output.rows:
                output.commit(added())
            due = clock() + interval
        try:
            batch = stream.next(_WAIT)
        except TimeoutError:
            added = stream.deferred_checkpoint()
            continue
        if batch is None:
            added = stream.deferred_checkpoint()
            break
        table = _table(batch)
        # A rollback starts a new file, so that "all files with a lower number" says exactly what it undoes.
        if output.rows and (_is_rollback(table) or not output.has_room(table.num_rows, max_rows)):
            output.commit(added())
        output.add(table)
        added = stream.deferred_checkpoint()
        progress.update(added)
    # Also without rows: with a filter, positions advance over changes that are not copied.
    output.commit(added())


def _table(batch: dcp.Batch) -> pa.Table:
    """Return a batch as an Arrow table."""
    import pyarrow

    # Not `pyarrow.table`, which imports pandas: half a second before the first row.
    return pyarrow.Table.from_batches([batch.to_arrow()])


def _is_rollback(table: pa.Table) -> bool:
    """True if a batch is a rollback, which is always a batch of one row."""
    return table.num_rows == 1 and bool(table.column("event")[0].as_py() == ROLLBACK)


class _ProgressBar:
    """Progress of a copy in seqnos, shown if standard error is a terminal."""

    def __init__(self, highs: Mapping[int, int], start: Checkpoint, *, follow: bool) -> None:
        shown = console(to_stderr=True)
        self._start = _total_seqnos(start)
        self._due = 0.0
        self._progress = Progress(
            TextColumn("{task.completed:,} of {task.total:,} seqnos" if not follow else "{task.completed:,} seqnos"),
            *(() if follow else (BarColumn(), TimeRemainingColumn())),
            TimeElapsedColumn(),
            console=shown,
            disable=not shown.is_terminal,
            # The summary replaces the bar.
            transient=True,
        )
        backlog = sum(start.lag({vbucket: highs.get(vbucket, 0) for vbucket in start.by_vbucket()}).values())
        self._task: TaskID = self._progress.add_task("copy", total=backlog)

    def __enter__(self) -> _ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, checkpoint: Callable[[], Checkpoint]) -> None:
        """Show that the copy has reached a position, a few times a second."""
        if not self._progress.disable and time.monotonic() >= self._due:
            self._progress.update(self._task, completed=_total_seqnos(checkpoint()) - self._start)
            self._due = time.monotonic() + _PROGRESS_INTERVAL


def _total_seqnos(checkpoint: Checkpoint) -> int:
    """Return the sum of all seqnos."""
    return sum(position.seqno for position in checkpoint)


def _summarise(output: CopyOutput, seconds: float, rollbacks: int, *, as_json: bool) -> None:
    """Print what was copied."""
    rows = sum(output.events.values())
    if as_json:
        found: dict[str, Any] = {
            "rows": rows,
            "events": dict(output.events),
            "files": output.files,
            "bytes": output.bytes,
            "rollbacks": rollbacks,
            "seconds": round(seconds, 3),
            "checkpoint": output.checkpoint_path,
        }
        click.echo(json.dumps(found))
        return
    events = ", ".join(counted(number, event) for event, number in output.events.most_common())
    click.echo(f"{counted(rows, 'change')}{f' ({events})' if events else ''} in {seconds:.1f} s")
    click.echo(
        f"{counted(output.files, 'file')} of {output.format}, {counted(output.bytes, 'byte')}, in {output.shown}"
    )
    click.echo(f"checkpoint: {output.checkpoint_path}")
