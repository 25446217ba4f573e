"""`dcp checkpoint`: look at positions, compare and convert them, and ask a cluster whether they hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
from rich.table import Table

import dcp
from dcp.checkpoint import Checkpoint, CheckpointFile
from dcp.cli.positions import NATIVE, as_json, load
from dcp.cli.terminal import console, counted
from dcp.foreign_checkpoints import FORMATS
from dcp.position import FailoverLog, StreamPosition

KINDS = (NATIVE, *FORMATS)
# What a shell gets where the answer is no.
NO = 3

_FILE = click.argument("file", type=click.Path(path_type=Path))
_KIND = click.option(
    "--format", "kind", type=click.Choice(KINDS), default=NATIVE, show_default=True, help="Whose it is."
)
_JSON = click.option("--json", "as_text", is_flag=True, help="For machines; 64-bit numbers as text.")


@click.group()
def checkpoint() -> None:
    """Positions of streams: show, diff, convert, verify.

    A FILE is a checkpoint, or the directory that dcp copy wrote.

    \b
    Example:
      dcp checkpoint show travel.parquet
      dcp checkpoint convert offsets.json --format kafka-connect travel.json
      dcp checkpoint verify travel.json couchbase://me:secret@localhost/travel
    """


@checkpoint.command()
@_FILE
@_KIND
@_JSON
def show(file: Path, kind: str, as_text: bool) -> None:
    """Print what a checkpoint says.

    \b
    Example:
      dcp checkpoint show travel.parquet --json
    """
    found = load(file, kind)
    if as_text:
        click.echo(json.dumps(as_json(found)))
        return
    changes = sum(position.seqno for position in found)
    whose = f" of bucket {found.bucket} ({found.bucket_uuid or 'uuid unknown'})" if found.bucket else ""
    console().print(f"{counted(len(found), 'vbucket')}{whose}, {counted(changes, 'seqno')} in all")
    table = _table("vbucket", "seqno", "snapshot", "vbuuid", "manifest", "histories")
    for at in found:
        window = "complete" if at.complete else f"{at.snapshot_start} to {at.snapshot_end}"
        table.add_row(
            str(at.vbucket), str(at.seqno), window, f"{at.vbuuid:x}", f"{at.manifest_uid:x}", str(len(at.failover_log))
        )
    console().print(table)


@checkpoint.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@_KIND
@_JSON
def diff(before: Path, after: Path, kind: str, as_text: bool) -> None:
    """Print which vbuckets moved from BEFORE to AFTER. Exit code 3 if any did.

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
            table.add_row(str(vbucket), str(one), str(other), f"{items:+}", "the same" if same else "[red]another")
        if rows:
            console().print(table)
    if rows:
        raise SystemExit(NO)


@checkpoint.command()
@_FILE
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@_KIND
@click.option("--to", "target", type=click.Choice(KINDS), default=NATIVE, show_default=True, help="Whose OUT is to be.")
def convert(file: Path, out: Path, kind: str, target: str) -> None:
    """Write FILE as another consumer keeps its positions, or theirs as ours.

    Where a format has no snapshot of a position, the vbucket begins again: nothing is lost.

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
@click.argument("url")
@_KIND
@_JSON
def verify(file: Path, url: str, kind: str, as_text: bool) -> None:
    """Ask a cluster whether it can go on from FILE. Exit code 3 if a vbucket would have to go back.

    \b
    Example:
      dcp checkpoint verify travel.json couchbase://me:secret@localhost/travel
    """
    found = load(file, kind)
    with dcp.connect(url) as client:
        found.check(
            Checkpoint((), client.map.num_vbuckets, client.map.name, client.map.uuid, found.scope, found.collections)
        )
        logs, highs = client.failover_logs(), client.high_seqnos()
    verdicts = [verdict(at, logs.get(at.vbucket), highs.get(at.vbucket, 0)) for at in found]
    back = [one for one in verdicts if one.back_to is not None or one.problem]
    if as_text:
        click.echo(json.dumps([_told(one) for one in verdicts]))
    else:
        console().print(f"{len(verdicts) - len(back):,} of {counted(len(verdicts), 'vbucket')} can go on")
        table = _table("vbucket", "seqno", "would go back to", "why")
        for one in back:
            table.add_row(
                str(one.vbucket), str(one.seqno), "" if one.back_to is None else str(one.back_to), one.problem
            )
        if back:
            console().print(table)
    if back:
        raise SystemExit(NO)


class Verdict(NamedTuple):
    """What a producer would say. `back_to` is None where it would go on, or nobody can say."""

    vbucket: int
    seqno: int
    back_to: int | None
    problem: str


def verdict(at: StreamPosition, log: FailoverLog | None, high_seqno: int) -> Verdict:
    """By the rules of producers. What they purged is not known from outside."""
    from dcp.embedded.rollback import Resume, rollback_point

    if log is None:
        return Verdict(at.vbucket, at.seqno, None, "no node has it now")
    asked = at.resume_point()
    resume = Resume(asked.start_seqno, asked.vbuuid, asked.snapshot_start, asked.snapshot_end)
    back_to = rollback_point(resume, log, high_seqno, 0)
    return Verdict(at.vbucket, at.seqno, back_to, "" if back_to is None else " ".join(_reasons(at, log, high_seqno)))


def _reasons(at: StreamPosition, log: FailoverLog, high_seqno: int) -> Iterator[str]:
    end = log.end_of(at.vbuuid, high_seqno)
    if end is None:
        yield f"its history {at.vbuuid:x} is unknown"
    else:
        yield f"its history {at.vbuuid:x} ended at seqno {end}"
    if not at.complete:
        yield f"inside the snapshot {at.snapshot_start} to {at.snapshot_end}"


def _told(one: Verdict) -> dict[str, object]:
    back_to = None if one.back_to is None else str(one.back_to)
    return {"vbucket": one.vbucket, "seqno": str(one.seqno), "back_to": back_to, "problem": one.problem}


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, justify="right" if title in ("vbucket", "seqno", "before", "after") else "left")
    return table
