"""`dcp schema`: prints a schema that fits a sample of documents, and which types were seen."""

from __future__ import annotations

import json

import click

import dcp
from dcp.cli.login import url_argument
from dcp.cli.terminal import counted
from dcp.printable import printable


@click.command()
@url_argument
@click.option("--scope", help="Only this scope. It also completes the names given with --collection.")
@click.option("--collection", "collections", multiple=True, help="Only this scope.collection; repeatable.")
@click.option("--key", "keys", multiple=True, help="Only this key; * stands for any text. Repeatable.")
@click.option("--where", metavar="CONDITION", help="Only documents for which it is true.")
@click.option(
    "--sample", type=click.IntRange(1), default=10_000, show_default=True, help="Number of documents to look at."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def schema(
    url: str,
    scope: str | None,
    collections: tuple[str, ...],
    keys: tuple[str, ...],
    where: str | None,
    sample: int,
    as_json: bool,
) -> None:
    """Print a schema that fits a sample of documents, and how often which type was seen at each path.

    The first line is for --schema of `dcp copy`, and for `document=` in Python. Fields that have several types are
    `json`, their text as it is stored: choose another type if only few documents differ.

    \b
    Example:
      dcp schema couchbase://localhost/travel --collection inventory.hotel
      dcp schema couchbase://localhost/travel --where "type = 'route'" | head -1 > route.ddl
      dcp copy couchbase://localhost/travel routes.parquet --where "type = 'route'" --schema "$(cat route.ddl)"
    """
    found = dcp.infer_schema(
        url, scope=scope, collections=collections or None, only_keys=keys or None, where=where, sample=sample
    )
    if as_json:
        click.echo(
            json.dumps(
                {"schema": str(found), "documents": found.documents, "not_json": found.not_json, "paths": found.paths}
            )
        )
        return
    click.echo(printable(str(found)))
    click.echo(f"\n{counted(found.documents, 'document')}, {found.not_json:,} of them no JSON\n")
    width = max(len(printable(path)) for path in found.paths)
    for path, types in found.paths.items():
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(types.items(), key=lambda item: -item[1]))
        click.echo(f"{printable(path):<{width}}  {counts}")
