"""`dcp tail`: changes as they come."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

import dcp
from dcp.cli.changes import Names, lines, objects
from dcp.cli.positions import end_of, start_of
from dcp.cli.terminal import is_colourful, readable
from dcp.client.row_format import PURGED, ROLLBACK
from dcp.columns.plan import events_of
from dcp.wire.dcp import DCP

if TYPE_CHECKING:
    import pyarrow as pa

# What no node says: what a vbucket had above a seqno is undone, or lacks deletions.
_SAYS = {ROLLBACK: "undo what is above", PURGED: "deletions above may be missing"}
EVENTS = (*events_of(DCP, None), *_SAYS)
_COLUMNS = ("timestamp", "event", "vbucket", "seqno", "cas", "rev_seqno", "flags", "expiry", "datatype")
_COLOURS = {"deletion": "red", "expiration": "yellow", ROLLBACK: "magenta", PURGED: "magenta"}
_LAYOUT = "{:<23}  {:<10}  {:>7}  {:>8}  {:<17}  {}"
# A line of the terminal has what is always there, and not much more: a change gets two.
_MOST_LINES = 2


@click.command()
@click.argument("url")
@click.option(
    "--from", "start", default="now", metavar="beginning|now|TIME|FILE", help="Default: now. FILE: a checkpoint."
)
@click.option(
    "--to", "end", metavar="now|TIME|FILE", help="Default: never. FILE: a checkpoint, and its snapshot's rest."
)
@click.option("--scope", help="Only this scope, or the scope of --collection.")
@click.option("--collection", "collections", multiple=True, help="Only this one, as scope.collection; repeatable.")
@click.option("--event", "events", multiple=True, type=click.Choice(EVENTS), help="Only these; repeatable.")
@click.option("--key", "pattern", help="Only keys like this: * and ? stand for any letters, [ab] for one of them.")
@click.option("--max", "most", type=click.IntRange(1), help="End after so many changes.")
@click.option("--hex", "as_hex", is_flag=True, help="Values in hexadecimal.")
@click.option("--no-values", is_flag=True, help="No values.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line; 64-bit numbers as text.")
def tail(
    url: str,
    start: str,
    end: str | None,
    scope: str | None,
    collections: tuple[str, ...],
    events: tuple[str, ...],
    pattern: str | None,
    most: int | None,
    as_hex: bool,
    no_values: bool,
    as_json: bool,
) -> None:
    """Print changes as they come. Ctrl-C ends it.

    A rollback is a change, too: what a vbucket had above its seqno is undone. A TIME has a zone: with two, only
    what was written at the first or later, and before the second.

    \b
    Example:
      dcp tail couchbase://me:secret@localhost/travel --from beginning --to now
      dcp tail couchbase://me:secret@localhost/travel --from 2026-11-01T00:00Z --to 2026-11-01T06:00+01:00
      dcp tail couchbase://me:secret@localhost/travel --collection inventory.hotel --event deletion
      dcp tail couchbase://me:secret@localhost/travel --key 'airline_*' --json | jq .value
    """
    if as_hex and no_values:
        raise click.UsageError("--hex and --no-values: expected one of them, found both")
    columns = [*_COLUMNS, "collection_id", "key", *(() if no_values else ("value",))]
    begin, until = start_of(start), end_of(end)
    with (
        dcp.connect(url) as client,
        client.stream(begin, until, scope=scope, collections=collections or None, columns=columns) as stream,
    ):
        names = Names(client)
        show = _as_json if as_json else _as_text
        if not as_json:
            click.echo(_LAYOUT.format("time", "event", "vbucket", "seqno", "collection", "key  value"))
        for table in _chosen(stream, frozenset(events), pattern, most):
            click.echo(show(objects(table, names), as_hex), nl=False, color=is_colourful())


def _chosen(
    stream: dcp.ChangeStream, events: frozenset[str], pattern: str | None, most: int | None
) -> Iterator[pa.RecordBatch]:
    for batch in stream:
        table = batch.to_arrow()
        if events or pattern is not None:
            table = table.filter(_fitting(table, events, pattern))
        if most is not None:
            table = table.slice(0, most)
            most -= table.num_rows
        if table.num_rows:
            yield table
        if most == 0:
            return


def _fitting(table: pa.RecordBatch, events: frozenset[str], pattern: str | None) -> pa.Array:
    """For each row whether it is wanted. What no node says has no key, and concerns every one."""
    import pyarrow

    cells = zip(table.column("event").to_pylist(), table.column("key").to_pylist(), strict=True)
    fits = [
        (not events or event in events)
        and (pattern is None or event in _SAYS or fnmatchcase(key.decode(errors="replace"), pattern))
        for event, key in cells
    ]
    return pyarrow.array(fits, pyarrow.bool_())


def _hexadecimal(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"value": row["value"].hex()} if "value" in row else row


def _as_json(rows: Iterator[dict[str, Any]], as_hex: bool) -> str:
    return lines(map(_hexadecimal, rows) if as_hex else rows)


def _as_text(rows: Iterator[dict[str, Any]], as_hex: bool) -> str:
    room = _MOST_LINES * shutil.get_terminal_size().columns if is_colourful() else None
    return "".join(_line(_hexadecimal(row) if as_hex else row, room) + "\n" for row in rows)


def _line(row: dict[str, Any], room: int | None) -> str:
    event = row["event"]
    value = row.get("value", b"")
    if event in _SAYS:
        time, says = "", f"seqno {row['seqno']}: {_SAYS[event]}"
    else:
        time = row["timestamp"][:23].replace("T", " ")
        says = readable(row["key"].encode()) if "key" in row else f"0x{row['key_hex']}"
    says += f"  {readable(value) if isinstance(value, bytes) else value}" if value else ""
    text = _LAYOUT.format(time, event, row["vbucket"], row["seqno"], row.get("collection", ""), says)
    if room is not None and len(text) > room:
        text = text[: room - 1] + "…"
    return click.style(text, fg=_COLOURS.get(event))
