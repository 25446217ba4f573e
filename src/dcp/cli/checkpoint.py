"""`dcp checkpoint`: shows, compares and converts checkpoints, and verifies them against a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
from rich.table import Table
from rich.text import Text

import dcp
from dcp.checkpoint import CheckpointFile
from dcp.cli.arguments import LocalPath
from dcp.cli.checkpoint_args import NATIVE, as_json, load
from dcp.cli.login import url_argument
from dcp.cli.terminal import console, counted
from dcp.client.filters import bucket_checkpoint
from dcp.foreign_checkpoints import FORMATS
from dcp.position import FailoverLog, StreamPosition

KINDS = (NATIVE, *FORMATS)
# Exit code of a negative result: 1 and 2 mean failure and wrong usage.
NEGATIVE = 3

_FILE = click.argument("file", type=LocalPath(path_type=Path))
_KIND = click.option(
    "--format", "kind", type=click.Choice(KINDS), default=NATIVE, show_default=True, help="Format of the input."
)
_JSON = click.option("--json", "as_text", is_flag=True, help="Print JSON, with 64-bit numbers as text.")


@click.group()
def checkpoint() -> None:
    """Show, compare, convert and verify checkpoints of streams.

    FILE is a checkpoint, or a directory that dcp copy wrote.

    \b
    Example:
      dcp checkpoint show travel.parquet
      dcp checkpoint convert offsets.json --format kafka-connect travel.json
      dcp checkpoint verify travel.json couchbase://localhost/travel
    """


@checkpoint.command()
@_FILE
@_KIND
@_JSON
def show(file: Path, kind: str, as_text: bool) -> None:
    """Print the position of each vbucket in a checkpoint.

    \b
    Example:
      dcp checkpoint show travel.parquet --json
    """
    found = load(file, kind)
    if as_text:
        click.echo(json.dumps(as_json(found)))
        return
    changes = sum(position.seqno for position in found)
    bucket = f" of bucket {found.bucket} ({found.bucket_uuid or 'uuid unknown'})" if found.bucket else ""
    console().print(f"{counted(len(found), 'vbucket')}{bucket}, {counted(changes, 'seqno')} in all")
    table = _table("vbucket", "seqno", "snapshot", "vbuuid", "manifest", "histories")
    for at in found:
        window = "complete" if at.complete else f"{at.snapshot_start} to {at.snapshot_end}"
        table.add_row(
            str(at.vbucket), str(at.seqno), window, f"{at.vbuuid:x}", f"{at.manifest_uid:x}", str(len(at.failover_log))
        )
    console().print(table)


@checkpoint.command()
@click.argument("before", type=LocalPath(path_type=Path))
@click.argument("after", type=LocalPath(path_type=Path))
@_KIND
@_JSON
def diff(before: Path, after: Path, kind: str, as_text: bool) -> None:
    """Print the vbuckets whose positions differ between BEFORE and AFTER. Exit code 3 if there are any.

    \b
    Example:
      dcp checkpoint diff monday.json tuesday.json
    """
    differences = load(before, kind).diff(load(after, kind))
    rows = [
        (
            difference.vbucket,
            difference.before.seqno if difference.before else 0,
            difference.after.seqno if difference.after else 0,
            difference.items,
            difference.same_history,
        )
        for difference in differences
    ]
    if as_text:
        names = ("vbucket", "before", "after", "items", "same_history")
        found = [dict(zip(names, (v, str(b), str(a), str(i), same), strict=True)) for v, b, a, i, same in rows]
        click.echo(json.dumps(found))
    else:
        moved = sum(items for *_, items, _ in rows)
        console().print(f"{counted(len(rows), 'vbucket')} differ, by {moved:+,} seqnos")
        table = _table("vbucket", "before", "after", "seqnos", "history")
        for vbucket, one, other, items, same in rows:
            table.add_row(
                str(vbucket), str(one), str(other), f"{items:+}", "same" if same else Text("other", style="red")
            )
        if rows:
            console().print(table)
    if rows:
        raise SystemExit(NEGATIVE)


@checkpoint.command()
@_FILE
@click.argument("out", type=LocalPath(path_type=Path, dir_okay=False))
@_KIND
@click.option(
    "--to", "target", type=click.Choice(KINDS), default=NATIVE, show_default=True, help="Format of the output."
)
def convert(file: Path, out: Path, kind: str, target: str) -> None:
    """Convert the checkpoint FILE from and to the format of another consumer.

    Where a format lacks the snapshot of a position, the vbucket restarts from seqno 0: nothing is lost.

    \b
    Example:
      dcp checkpoint convert offsets.json travel.json --format kafka-connect
      dcp checkpoint convert travel.json offsets.json --to go-dcp
    """
    found = load(file, kind)
    if target == NATIVE:
        CheckpointFile(out).save(found)
    else:
        out.write_text(found.to_foreign(target), "utf-8")
    click.echo(f"{counted(len(found), 'vbucket')} from {kind} to {target}: {out}")


@checkpoint.command()
@_FILE
@url_argument
@_KIND
@_JSON
def verify(file: Path, url: str, kind: str, as_text: bool) -> None:
    """Check if a cluster can resume from FILE. Exit code 3 if any vbucket would be rolled back.

    \b
    Example:
      dcp checkpoint verify travel.json couchbase://localhost/travel
    """
    found = load(file, kind)
    with dcp.connect(url) as client:
        # Collections are not compared: verify is about positions.
        found.check_bucket(bucket_checkpoint(client.map), remedy="none of its positions is valid in this one")
        logs, highs = client.failover_logs(), client.high_seqnos()
    results = [check_resume(at, logs.get(at.vbucket), highs.get(at.vbucket, 0)) for at in found]
    failed = [one for one in results if one.back_to is not None or one.problem]
    if as_text:
        click.echo(json.dumps([_object(one) for one in results]))
    else:
        console().print(f"{len(results) - len(failed):,} of {counted(len(results), 'vbucket')} can resume")
        table = _table("vbucket", "seqno", "rollback to", "reason")
        for one in failed:
            table.add_row(
                str(one.vbucket), str(one.seqno), "" if one.back_to is None else str(one.back_to), one.problem
            )
        if failed:
            console().print(table)
    if failed:
        raise SystemExit(NEGATIVE)


class ResumeCheck(NamedTuple):
    """Predicted answer to a stream request: `back_to` is the seqno of a rollback, `problem` the reason.

    back_to is None if the node would accept the request. With a problem, no node could be asked.
    """

    vbucket: int
    seqno: int
    back_to: int | None
    problem: str


def check_resume(at: StreamPosition, log: FailoverLog | None, high_seqno: int) -> ResumeCheck:
    """Predict the answer by the rules of producers. Purges are ignored, since purge seqnos are not asked for."""
    # The embedded cluster has the rules of the servers. Imported here, since only `verify` needs it.
    from dcp.embedded.rollback import Resume, rollback_point

    if log is None:
        return ResumeCheck(at.vbucket, at.seqno, None, "the vbucket has no active node")
    request = at.resume_point()
    resume = Resume(request.start_seqno, request.vbuuid, request.snapshot_start, request.snapshot_end)
    back_to = rollback_point(resume, log, high_seqno, 0)
    problem = "" if back_to is None else " ".join(_reasons(at, log, high_seqno))
    return ResumeCheck(at.vbucket, at.seqno, back_to, problem)


def _reasons(at: StreamPosition, log: FailoverLog, high_seqno: int) -> Iterator[str]:
    """Yield why a position cannot be resumed from."""
    end = log.end_of(at.vbuuid, high_seqno)
    if end is None:
        yield f"its history {at.vbuuid:x} is unknown"
    else:
        yield f"its history {at.vbuuid:x} ended at seqno {end}"
    if not at.complete:
        yield f"inside the snapshot {at.snapshot_start} to {at.snapshot_end}"


def _object(one: ResumeCheck) -> dict[str, object]:
    """Return a result for JSON."""
    back_to = None if one.back_to is None else str(one.back_to)
    return {"vbucket": one.vbucket, "seqno": str(one.seqno), "back_to": back_to, "problem": one.problem}


def _table(*titles: str) -> Table:
    """Return an empty table; numbers are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="right" if title in ("vbucket", "seqno", "before", "after") else "left")
    return table
