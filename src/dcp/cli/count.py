"""`dcp count`: how far a bucket is, and how far somebody is behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
from rich.progress import track
from rich.table import Table

import dcp
from dcp.checkpoint import Checkpoint
from dcp.cli.positions import load
from dcp.cli.terminal import console, counted
from dcp.cluster_map import format_vbuckets
from dcp.wire.memcached import Status


@click.command()
@click.argument("url")
@click.option("--collection", "chosen", multiple=True, help="Only this one, as scope.collection; repeatable.")
@click.option("--checkpoint", "file", type=click.Path(path_type=Path), help="Whose lag to tell: a checkpoint.")
@click.option("--vbuckets", "each", is_flag=True, help="Every vbucket, besides the totals.")
@click.option("--json", "as_json", is_flag=True, help="For machines; 64-bit numbers as text.")
def count(url: str, chosen: tuple[str, ...], file: Path | None, each: bool, as_json: bool) -> None:
    """Print the high seqnos of a bucket and of its collections, and how far a checkpoint is behind.

    A seqno counts the changes of its vbucket since it was made; documents are fewer, since each may have changed
    often. The high seqno of a collection is that of the last change in it.

    \b
    Example:
      dcp count couchbase://me:secret@localhost/travel
      dcp count couchbase://me:secret@localhost/travel --checkpoint travel.parquet --vbuckets
    """
    checkpoint = None if file is None else load(file)
    with dcp.connect(url) as client:
        highs = client.high_seqnos()
        lag = {} if checkpoint is None else _lag(client, checkpoint, highs)
        names = client.collections()
        unknown = sorted(set(chosen) - set(names.values()))
        if unknown:
            raise dcp.LocalProtocolError(f"collection {unknown[0]!r}: expected {', '.join(names.values()) or 'none'}")
        wanted = {number: name for number, name in names.items() if not chosen or name in chosen}
        shown = console(to_stderr=True)
        of_collections = {
            name: highs_of
            for number, name in track(
                wanted.items(), "collections", console=shown, transient=True, disable=not shown.is_terminal
            )
            if (highs_of := _of_collection(client, number)) is not None
        }
        owners = {vbucket: client.map.owner(vbucket) for vbucket in range(client.map.num_vbuckets)}
    missing = [vbucket for vbucket, owner in owners.items() if owner is None]
    if as_json:
        click.echo(json.dumps(_told(highs, of_collections, lag, missing)))
        return
    console().print(_totals(highs, lag, missing))
    if of_collections:
        console().print(_collections(of_collections))
    if each:
        console().print(_vbuckets(highs, of_collections, lag))


def _of_collection(client: dcp.Client, number: int) -> dict[int, int] | None:
    """None from a server before 7.0, which does not tell."""
    try:
        return client.high_seqnos(number)
    except dcp.ServerError as error:
        if error.status != Status.EINVAL:
            raise
        return None


def _lag(client: dcp.Client, checkpoint: Checkpoint, highs: Mapping[int, int]) -> Mapping[int, int]:
    """Of a checkpoint of some collections, behind the last changes in those."""
    known = client.map
    checkpoint.check(replace(checkpoint, positions=(), bucket=known.name, bucket_uuid=known.uuid))
    if checkpoint.collections:
        found = [client.high_seqnos(number) for number in checkpoint.collections]
        highs = {vbucket: max(one.get(vbucket, 0) for one in found) for vbucket in highs}
    return checkpoint.lag(highs)


def _told(
    highs: Mapping[int, int], collections: Mapping[str, Mapping[int, int]], lag: Mapping[int, int], missing: list[int]
) -> dict[str, object]:
    return {
        "seqnos": str(sum(highs.values())),
        "lag": str(sum(lag.values())) if lag else None,
        "vbuckets": {str(vbucket): str(seqno) for vbucket, seqno in highs.items()},
        "vbuckets_missing": missing,
        "vbucket_lag": {str(vbucket): str(behind) for vbucket, behind in lag.items()},
        "collections": {
            name: {str(vbucket): str(seqno) for vbucket, seqno in found.items()} for name, found in collections.items()
        },
    }


def _totals(highs: Mapping[int, int], lag: Mapping[int, int], missing: list[int]) -> str:
    text = f"{counted(sum(highs.values()), 'seqno')} in {counted(len(highs), 'vbucket')}"
    if lag:
        behind = [vbucket for vbucket, items in lag.items() if items]
        text += f"\n{counted(sum(lag.values()), 'seqno')} behind, in {counted(len(behind), 'vbucket')}"
    return text + (
        f"\n{counted(len(missing), 'vbucket')} without a node: {format_vbuckets(missing)}" if missing else ""
    )


def _collections(found: Mapping[str, Mapping[int, int]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("collection")
    for title in ("vbuckets with changes", "highest seqno"):
        table.add_column(title, justify="right")
    for name, highs in found.items():
        table.add_row(name, f"{sum(map(bool, highs.values())):,}", f"{max(highs.values(), default=0):,}")
    return table


def _vbuckets(highs: Mapping[int, int], collections: Mapping[str, Mapping[int, int]], lag: Mapping[int, int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("vbucket", "seqno", *(["behind"] if lag else []), *collections):
        table.add_column(title, justify="right")
    for vbucket, high in sorted(highs.items()):
        behind = [str(lag.get(vbucket, 0))] if lag else []
        table.add_row(str(vbucket), str(high), *behind, *(str(found.get(vbucket, 0)) for found in collections.values()))
    return table
