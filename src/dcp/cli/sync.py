"""`dcp sync`: keeps a table equal to a bucket, or to some of its collections."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import click
from rich.live import Live
from rich.table import Table

import dcp
from dcp.cli import INTERRUPTED
from dcp.cli.arguments import INTERVAL, TargetName, WrongValue
from dcp.cli.client_log import client_log, log_options
from dcp.cli.document_args import document_options
from dcp.cli.login import url_argument
from dcp.cli.stop_signals import stop_signals
from dcp.cli.terminal import console, counted
from dcp.errors import DcpError, UsageError
from dcp.sync import Sync, SyncProgress, open_target
from dcp.sync.engine import next_pause
from dcp.sync.state import TableContent
from dcp.sync.target import SyncTarget
from dcp.sync.targets import FORMATS

log = logging.getLogger("dcp.sync")

# Seconds between two looks for signals.
_WAIT = 0.2


@click.command()
@url_argument
@click.argument("target", type=TargetName())
@click.option("--format", "format", type=click.Choice(FORMATS), help="Kind of table.  [default: by suffix of TARGET]")
@click.option("--table", help="Name of the table in a DuckDB file.  [default: documents]")
@click.option("--scope", help="Only this scope. It also completes the names given with --collection.")
@click.option("--collection", "collections", multiple=True, help="Only this scope.collection; repeatable.")
@click.option(
    "--schema",
    metavar="DDL",
    help="Schema of the documents, such as 'id bigint, customer struct<city string>': a column for each field, and "
    "`error` says what did not fit. Without it, `value` has the JSON text.",
)
@click.option(
    "--infer",
    is_flag=True,
    help="Take the schema of a new table from a sample of its documents. The table keeps it: fields that appear later "
    "are not in it.",
)
@click.option("--follow", is_flag=True, help="Apply new changes until interrupted, instead of stopping at the present.")
@click.option(
    "--commit-every",
    "interval",
    type=INTERVAL,
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="Time between two transactions, such as 10s or 5m. Many changes begin one earlier.",
)
@click.option(
    "--persisted-only/--no-persisted-only",
    default=True,
    show_default=True,
    help="Apply only changes that every copy has on disk, so that no failover takes them back.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@log_options
@click.pass_context
def sync(
    ctx: click.Context,
    url: str,
    target: str,
    format: str | None,
    table: str | None,
    scope: str | None,
    collections: tuple[str, ...],
    schema: str | None,
    infer: bool,
    follow: bool,
    interval: float,
    persisted_only: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Keep a table equal to a bucket, or to some of its collections. Run it again to apply what is new.

    TARGET is FILE.duckdb, DIRECTORY.delta, FILE.parquet, each of the last two also as URL of an object store, or
    iceberg://CATALOG/NAMESPACE.TABLE with a catalog of PyIceberg's configuration. Credentials come from where these
    libraries take them, and are not stored.

    The table has one row for each document that exists. A transaction applies inserts, updates, deletions,
    expirations, dropped collections, and what a failover took back, together with the checkpoint that covers them:
    after a crash at any moment nothing is missing or repeated. A table keeps its selection and schema: they may be
    left out when the command is run again. Only one sync at a time may write to a table. A table of a bucket that was
    deleted and created again is refused: name a new table, or drop it.

    \b
    Example:
      dcp sync couchbase://localhost/travel travel.duckdb
      dcp sync couchbase://localhost/travel s3://lake/hotels.delta --collection inventory.hotel --infer --follow
      dcp sync couchbase://localhost/travel iceberg://prod/travel.route --schema 'id bigint, airline string'
      duckdb travel.duckdb -c "select collection, count(*) from documents group by all"
    """
    if infer and schema is not None:
        raise click.UsageError("--schema and --infer: expected one of them, found both")
    ddl = document_options(schema, None).get("schema")
    started = time.monotonic()
    with (
        client_log(verbose=verbose, quiet=quiet),
        closing(_open(target, format, table)) as opened,
        stop_signals() as signals,
        _connected(url, signals, follow=follow) as client,
    ):
        before = opened.load() if infer else None
        if before is not None and before.content.schema is None:
            raise UsageError(f"--infer: {opened.shown} has documents as JSON text, and keeps them: name a new table")
        if infer and before is None:
            ddl = str(dcp.infer_schema(url, scope=scope, collections=collections or None))
            click.echo(f"schema: {ddl}", err=True)
        engine = Sync(
            client,
            opened,
            TableContent(scope, collections, ddl),
            persisted_only=persisted_only,
            interval=interval,
            stopped=lambda: bool(signals),
        )
        with _display(client, engine, opened):
            engine.follow() if follow else engine.run()
        _summarise(engine.progress, opened, time.monotonic() - started, as_json=as_json)
    if signals and not follow:
        click.echo("interrupted: what arrived is in the table; run it again to continue", err=True)
        ctx.exit(INTERRUPTED)


def _open(target: str, format: str | None, table: str | None) -> SyncTarget:
    """Return the target. A wrong name is wrong usage, whatever the cluster is."""
    try:
        return open_target(target, format, table)
    except UsageError as error:
        raise WrongValue(str(error)) from None


def _connected(url: str, signals: list[int], *, follow: bool) -> dcp.Client:
    """Return a client. With `follow`, wait for a cluster that cannot be reached, until there is a signal."""
    pause = 0.0
    while True:
        try:
            return dcp.connect(url)
        except DcpError as error:
            if not follow or not error.retriable or signals:
                raise
            log.warning("%s; trying again", error)
        pause = next_pause(pause)
        until = time.monotonic() + pause
        while not signals and time.monotonic() < until:
            time.sleep(_WAIT)


@contextmanager
def _display(client: dcp.Client, engine: Sync, target: SyncTarget) -> Iterator[None]:
    """Show the progress of a run, if standard error is a terminal."""

    def drawn() -> Table:
        progress, lag = engine.progress, client.stats().lag
        table = Table.grid(padding=(0, 2))
        for name, text in (
            ("table", target.shown),
            ("rows", f"{progress.rows:,} written, {progress.deleted:,} deleted, {progress.pending:,} pending"),
            ("lag", "unknown" if lag is None else counted(lag.items, "change")),
            ("transactions", f"{progress.transactions:,}"),
            ("last error", progress.last_error or "none"),
        ):
            table.add_row(name, text)
        return table

    shown = console(to_stderr=True)
    # Live draws it four times a second. The summary replaces it.
    with Live(get_renderable=drawn, console=shown, transient=True) if shown.is_terminal else nullcontext():
        yield


def _summarise(progress: SyncProgress, target: SyncTarget, seconds: float, *, as_json: bool) -> None:
    """Print what was applied."""
    rows = target.count()
    if as_json:
        found: dict[str, Any] = {
            "events": dict(progress.events),
            "written": progress.rows,
            "deleted": progress.deleted,
            "restarts": progress.restarts,
            "transactions": progress.transactions,
            "rows": rows,
            "seconds": round(seconds, 3),
            "table": target.shown,
        }
        click.echo(json.dumps(found))
        return
    events = ", ".join(counted(number, event) for event, number in progress.events.most_common())
    total = counted(sum(progress.events.values()), "change")
    click.echo(
        f"{total}{f' ({events})' if events else ''} in {seconds:.1f} s, {counted(progress.transactions, 'transaction')}"
    )
    click.echo(f"{counted(rows, 'row')} in {target.shown}")
