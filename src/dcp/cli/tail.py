"""`dcp tail`: prints changes as they arrive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

import dcp
from dcp.cli.checkpoint_args import parse_end, parse_start
from dcp.cli.client_log import client_log, log_options
from dcp.cli.document_args import document_options
from dcp.cli.json_rows import CollectionNames, lines, objects
from dcp.cli.login import url_argument
from dcp.cli.terminal import readable, uses_colour
from dcp.client.row_format import PURGED, ROLLBACK
from dcp.columns.plan import events_of
from dcp.printable import printable
from dcp.wire.dcp import DCP

if TYPE_CHECKING:
    import pyarrow as pa

# Rows that the client adds: they have a vbucket and a seqno, and no key.
_CLIENT_EVENTS = {ROLLBACK: "discard all changes above", PURGED: "deletions above may be missing"}
EVENTS = (*events_of(DCP, None), *_CLIENT_EVENTS)
_COLUMNS = ("timestamp", "event", "vbucket", "seqno", "cas", "rev_seqno", "flags", "expiry", "datatype")
_COLOURS = {"deletion": "red", "expiration": "yellow", ROLLBACK: "magenta", PURGED: "magenta"}
_LAYOUT = "{:<23}  {:<10}  {:>7}  {:>8}  {:<17}  {}"
# The fixed columns fill most of a line, so a change gets up to two.
_MAX_LINES = 2


@click.command()
@url_argument
@click.option(
    "--from",
    "start",
    default="now",
    show_default=True,
    metavar="beginning|now|TIME|FILE",
    help="Where to start. FILE is a checkpoint.",
)
@click.option(
    "--to",
    "end",
    metavar="now|TIME|FILE",
    help="Where to stop. FILE is a checkpoint.  [default: never]",
)
@click.option("--scope", help="Print only this scope. It also completes the names given with --collection.")
@click.option("--collection", "collections", multiple=True, help="Print only this scope.collection; repeatable.")
@click.option(
    "--event", "events", multiple=True, type=click.Choice(EVENTS), help="Print only this kind of change; repeatable."
)
@click.option(
    "--key", "pattern", help="Print only keys that match a pattern: * is any text, ? any character, [ab] one of these."
)
@click.option(
    "--schema",
    metavar="DDL",
    help="Schema of the documents, such as 'id bigint, customer struct<city string>': print it in that form instead of "
    "the value, and what did not fit.",
)
@click.option(
    "--where",
    metavar="CONDITION",
    help="Print only documents for which it is true, such as \"type = 'order' and total > 100\", deletions, and values "
    "that are no JSON.",
)
@click.option("--max", "max_rows", type=click.IntRange(1), help="Stop after this many changes.")
@click.option("--hex", "as_hex", is_flag=True, help="Print values in hexadecimal.")
@click.option("--no-values", is_flag=True, help="Print no values. They are not read either.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line, with 64-bit numbers as text.")
@log_options
def tail(
    url: str,
    start: str,
    end: str | None,
    scope: str | None,
    collections: tuple[str, ...],
    events: tuple[str, ...],
    pattern: str | None,
    schema: str | None,
    where: str | None,
    max_rows: int | None,
    as_hex: bool,
    no_values: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Print changes as they arrive, until Ctrl-C or --to.

    A rollback is printed as well: all changes of its vbucket above its seqno are undone.

    TIME has a UTC offset, or is a time before now such as 1h. --from is inclusive, --to exclusive.

    \b
    Example:
      dcp tail couchbase://localhost/travel --from beginning --to now
      dcp tail couchbase://localhost/travel --from 2026-11-01T00:00Z --to 2026-11-01T06:00+01:00
      dcp tail couchbase://localhost/travel --collection inventory.hotel --event deletion
      dcp tail couchbase://localhost/travel --key 'airline_*' --json | jq .value
      dcp tail couchbase://localhost/travel --where "type = 'hotel' and city = 'Paris'" --schema 'name string'
    """
    if as_hex and no_values:
        raise click.UsageError("--hex and --no-values: expected one of them, found both")
    if schema is not None and (as_hex or no_values):
        raise click.UsageError("--schema: expected it without --hex and --no-values, found one of them")
    options = document_options(schema, where)
    columns = [*_COLUMNS, "collection_id", "key", *(() if no_values or schema is not None else ("value",))]
    begin, until = parse_start(start), parse_end(end)
    with (
        client_log(verbose=verbose, quiet=quiet),
        dcp.connect(url) as client,
        client.stream(
            begin,
            until,
            scope=scope,
            collections=collections or None,
            columns=columns,
            document=options.get("schema"),
            where=options.get("where"),
        ) as stream,
    ):
        names = CollectionNames(client)
        show = _as_json if as_json else _as_text
        if not as_json:
            click.echo(_LAYOUT.format("time (UTC)", "event", "vbucket", "seqno", "collection", "key  value"))
        for table in _filtered(stream, frozenset(events), pattern, max_rows):
            click.echo(show(objects(table, names), as_hex), nl=False, color=uses_colour())


def _filtered(
    stream: dcp.ChangeStream, events: frozenset[str], pattern: str | None, max_rows: int | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that match the options."""
    for batch in stream:
        table = batch.to_arrow()
        if events or pattern is not None:
            table = table.filter(_matches(table, events, pattern))
        if max_rows is not None:
            table = table.slice(0, max_rows)
            max_rows -= table.num_rows
        if table.num_rows:
            yield table
        if max_rows == 0:
            return


def _matches(table: pa.RecordBatch, events: frozenset[str], pattern: str | None) -> pa.Array:
    """Return which rows match. Rows that the client adds have no key, and match every pattern."""
    import pyarrow

    cells = zip(table.column("event").to_pylist(), table.column("key").to_pylist(), strict=True)
    matches = [
        (not events or event in events)
        and (pattern is None or event in _CLIENT_EVENTS or fnmatchcase(key.decode(errors="replace"), pattern))
        for event, key in cells
    ]
    return pyarrow.array(matches, pyarrow.bool_())


def _hexadecimal(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its value in hexadecimal."""
    return row | {"value": row["value"].hex()} if "value" in row else row


def _as_json(rows: Iterator[dict[str, Any]], as_hex: bool) -> str:
    """Return rows as lines of JSON."""
    return lines(map(_hexadecimal, rows) if as_hex else rows)


def _as_text(rows: Iterator[dict[str, Any]], as_hex: bool) -> str:
    """Return rows as lines of a table. Only on a terminal are they cut."""
    # Into a file or pipe, values are never cut.
    room = _MAX_LINES * shutil.get_terminal_size().columns if uses_colour() else None
    return "".join(_line(_hexadecimal(row) if as_hex else row, room) + "\n" for row in rows)


def _line(row: dict[str, Any], room: int | None) -> str:
    """Return a row as a line of at most `room` characters; None is no limit."""
    event = row["event"]
    value = row.get("value", b"")
    if event in _CLIENT_EVENTS:
        time, text = "", f"seqno {row['seqno']}: {_CLIENT_EVENTS[event]}"
    else:
        time = row["timestamp"][:23].replace("T", " ")
        text = readable(row["key"].encode()) if "key" in row else f"0x{row['key_hex']}"
    text += f"  {readable(value) if isinstance(value, bytes) else value}" if value else ""
    if "document" in row:
        text += f"  {printable(json.dumps(row['document'], ensure_ascii=False))}"
    if "error" in row:
        text += f"  ({printable(row['error'])})"
    line = _LAYOUT.format(time, event, row["vbucket"], row["seqno"], row.get("collection", ""), text)
    if room is not None and len(line) > room:
        line = line[: room - 1] + "…"
    return click.style(line, fg=_COLOURS.get(event))
