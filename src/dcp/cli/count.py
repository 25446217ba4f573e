"""`dcp count`: prints high seqnos of a bucket, and the backlog of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click
from rich.progress import track
from rich.table import Table

import dcp
from dcp.checkpoint import Checkpoint
from dcp.cli.arguments import LocalPath
from dcp.cli.checkpoint_args import load
from dcp.cli.login import url_argument
from dcp.cli.terminal import console, counted
from dcp.client.filters import bucket_checkpoint
from dcp.cluster_map import format_vbuckets
from dcp.wire.memcached import Status

# A collection on which the user has no privilege at all is unknown to it.
_REFUSED = (Status.EACCESS, Status.UNKNOWN_COLLECTION)


@click.command()
@url_argument
@click.option("--collection", "chosen", multiple=True, help="Count only this scope.collection; repeatable.")
@click.option(
    "--checkpoint",
    "file",
    type=LocalPath(path_type=Path),
    help="Checkpoint FILE, or output of dcp copy, whose backlog to print.",
)
@click.option("--vbuckets", "each", is_flag=True, help="Print every vbucket, besides the totals.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with 64-bit numbers as text.")
def count(url: str, chosen: tuple[str, ...], file: Path | None, each: bool, as_json: bool) -> None:
    """Print high seqnos, and the backlog of a checkpoint.

    The seqnos are those of the bucket and of each of its collections.

    Each change of a vbucket gets the next seqno, so seqnos count changes, not documents: a document may have changed
    many times. The creation and the drop of a scope or collection are a change of every vbucket. The high seqno of a
    collection is that of the last change in it, its creation included. The backlog of a checkpoint is the number of
    seqnos after it.

    \b
    Example:
      dcp count couchbase://localhost/travel
      dcp count couchbase://localhost/travel --checkpoint travel.parquet --vbuckets
    """
    checkpoint = None if file is None else load(file)
    with dcp.connect(url) as client:
        highs = _readable_highs(client)
        lag = {} if checkpoint is None else _backlog(client, checkpoint, highs)
        ahead = [] if checkpoint is None or highs is None else _ahead(checkpoint, highs)
        names = client.collections()
        unknown = sorted(set(chosen) - set(names.values()))
        if unknown:
            raise dcp.UsageError(f"collection {unknown[0]!r}: expected {', '.join(names.values()) or 'none'}")
        wanted = {number: name for number, name in names.items() if not chosen or name in chosen}
        shown = console(to_stderr=True)
        of_collections, refused = {}, []
        for number, name in track(
            wanted.items(), "collections", console=shown, transient=True, disable=not shown.is_terminal
        ):
            try:
                if (highs_of := _collection_highs(client, number)) is not None:
                    of_collections[name] = highs_of
            except dcp.ServerError as error:
                if error.status not in _REFUSED:
                    raise
                refused.append(name)
        owners = {vbucket: client.map.owner(vbucket) for vbucket in range(client.map.num_vbuckets)}
        bucket = client.map.name
    if highs is None and not of_collections:
        raise dcp.UsageError(
            f"the user may read neither the seqnos of bucket {bucket!r} nor those of a collection "
            f"({', '.join(refused) or 'it has none'}); grant the role data_dcp_reader"
        )
    missing = [vbucket for vbucket, owner in owners.items() if owner is None]
    if as_json:
        click.echo(json.dumps(_object(highs, of_collections, lag, ahead, missing, refused)))
        return
    for line in _totals(highs, lag, ahead, missing):
        console().print(line)
    if highs is None:
        console().print(f"bucket {bucket}: not readable for this user; grant the role data_dcp_reader on it")
    if refused:
        console().print(f"not readable for this user: {', '.join(refused)}")
    if of_collections:
        console().print(_collections(of_collections))
    if each and highs is not None:
        console().print(_vbuckets(highs, of_collections, lag))


def _readable_highs(client: dcp.Client) -> dict[int, int] | None:
    """Return the high seqnos of the bucket; None for a user that may read only some of its collections."""
    try:
        return client.high_seqnos()
    except dcp.ServerError as error:
        if error.status != Status.EACCESS:
            raise
        return None


def _collection_highs(client: dcp.Client, number: int) -> dict[int, int] | None:
    """Return the high seqnos of a collection; None if the server is older than 7.0 and does not report them."""
    try:
        return client.high_seqnos(number)
    except dcp.ServerError as error:
        # Older servers refuse the collection id in the request, instead of ignoring it.
        if error.status != Status.EINVAL:
            raise
        return None


def _backlog(client: dcp.Client, checkpoint: Checkpoint, highs: Mapping[int, int] | None) -> Mapping[int, int]:
    """Return the number of seqnos after a checkpoint, by vbucket, up to the last change of its collections."""
    known = client.map
    checkpoint.check_bucket(bucket_checkpoint(known), remedy="it has no backlog in this one")
    # Changes of other collections after the checkpoint are no backlog of its consumer.
    if checkpoint.collections:
        highs = dict.fromkeys(range(known.num_vbuckets), 0) | client.high_seqnos(checkpoint.collections)
    if highs is None:
        raise dcp.UsageError(
            f"the checkpoint is of all collections, and the user may not read the seqnos of bucket {known.name!r}; "
            "grant the role data_dcp_reader on it"
        )
    return checkpoint.lag(highs)


def _ahead(checkpoint: Checkpoint, highs: Mapping[int, int]) -> list[int]:
    """Return the vbuckets of which the checkpoint has more than the cluster, so that changes were lost."""
    return [here.vbucket for here in checkpoint if here.seqno > highs.get(here.vbucket, here.seqno)]


def _object(
    highs: Mapping[int, int] | None,
    collections: Mapping[str, Mapping[int, int]],
    lag: Mapping[int, int],
    ahead: list[int],
    missing: list[int],
    refused: list[str],
) -> dict[str, object]:
    """Return the result for JSON."""
    return {
        "seqnos": None if highs is None else str(sum(highs.values())),
        "lag": str(sum(lag.values())) if lag else None,
        "vbuckets": {str(vbucket): str(seqno) for vbucket, seqno in (highs or {}).items()},
        "vbuckets_ahead": ahead,
        "vbuckets_missing": missing,
        "vbucket_lag": {str(vbucket): str(backlog) for vbucket, backlog in lag.items()},
        "collections": {
            name: {str(vbucket): str(seqno) for vbucket, seqno in found.items()} for name, found in collections.items()
        },
        "collections_refused": refused,
    }


def _totals(highs: Mapping[int, int] | None, lag: Mapping[int, int], ahead: list[int], missing: list[int]) -> list[str]:
    """Return the totals as lines of text."""
    lines = [] if highs is None else [f"{counted(sum(highs.values()), 'seqno')} in {counted(len(highs), 'vbucket')}"]
    if lag:
        lagging = [vbucket for vbucket, items in lag.items() if items]
        lines.append(f"{counted(sum(lag.values()), 'seqno')} behind, in {counted(len(lagging), 'vbucket')}")
    if ahead:
        lines.append(
            f"{counted(len(ahead), 'vbucket')} of the checkpoint ahead of the cluster, which has lost changes: "
            f"{format_vbuckets(ahead)}; dcp checkpoint verify says from where they resume"
        )
    if missing:
        lines.append(f"{counted(len(missing), 'vbucket')} without an active node: {format_vbuckets(missing)}")
    return lines


def _collections(found: Mapping[str, Mapping[int, int]]) -> Table:
    """Return a table with a row for each collection."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("collection")
    for title in ("vbuckets with changes", "highest seqno"):
        table.add_column(title, justify="right")
    for name, highs in found.items():
        table.add_row(name, f"{sum(map(bool, highs.values())):,}", f"{max(highs.values(), default=0):,}")
    return table


def _vbuckets(highs: Mapping[int, int], collections: Mapping[str, Mapping[int, int]], lag: Mapping[int, int]) -> Table:
    """Return a table with a row for each vbucket."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("vbucket", "seqno", *(["behind"] if lag else []), *collections):
        table.add_column(title, justify="right")
    for vbucket, high in sorted(highs.items()):
        behind = [str(lag.get(vbucket, 0))] if lag else []
        table.add_row(str(vbucket), str(high), *behind, *(str(found.get(vbucket, 0)) for found in collections.values()))
    return table
