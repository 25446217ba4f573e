"""`dcp inspect`: what a capture, a dump or a line of hex says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from dcp._codec import Splitter
from dcp.cli.capture import Flow, is_capture, streams
from dcp.cli.checkpoint import NO
from dcp.cli.conversation import Conversation
from dcp.cli.terminal import console, counted
from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.errors import DcpError, FrameError
from dcp.wire import DIALECTS
from dcp.wire.describe import describe
from dcp.wire.frame import UNKNOWN, Frame, read_frame, read_opaque
from dcp.wire.layout import Dialect
from dcp.wire.memcached import MAX_FRAME, Feature

# A dialect shows in so many frames.
_ENOUGH = 2000
_BATCH_ROWS = 65_536
_HEX = frozenset(b"0123456789abcdefABCDEF \t\r\n")


class Sighting(NamedTuple):
    """A frame, when and where it was seen, and what rule it breaks if it does."""

    time: float
    flow: Flow
    frame: Frame | None
    violation: str


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--dialect", type=click.Choice(list(DIALECTS)), help="Without, the one that fits best.")
@click.option("--arrow", type=click.Path(path_type=Path, dir_okay=False), help="Write the changes as Arrow IPC, too.")
@click.option("--collections", is_flag=True, help="For --arrow: keys have collection ids, though no HELLO is seen.")
@click.option("--check", is_flag=True, help="Exit code 3 if something breaks a rule.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a frame.")
def inspect(
    file: BinaryIO, dialect: str | None, arrow: Path | None, collections: bool, check: bool, as_json: bool
) -> None:
    """Print the frames in FILE: a pcap or pcapng capture, raw bytes, or hex text; `-` is standard input.

    Both directions of every TCP connection are followed. What breaks a rule is shown with it. No password is shown.

    \b
    Example:
      dcp inspect capture.pcapng
      dcp inspect capture.pcapng --arrow changes.arrow
      dcp inspect capture.pcapng --check
      echo 805c00000000000000000000009896810000000000000000 | dcp inspect -
    """
    data = file.read()
    table = DIALECTS[dialect] if dialect else guess(data)
    seen = list(sightings(data, table))
    if not any(sighting.frame for sighting in seen):
        why = "".join(f": {sighting.violation}" for sighting in seen[:1])
        raise click.ClickException(f"{file.name}: no frames of {table.name} in {counted(len(data), 'byte')}{why}")
    if as_json:
        click.echo("".join(f"{json.dumps(_object(sighting, table.name))}\n" for sighting in seen), nl=False)
    else:
        _print(seen, table.name)
    if arrow is not None:
        rows = write_rows(list(chunks(data)), table, arrow, collections=collections)
        click.echo(f"{counted(rows, 'row')}: {arrow}", err=as_json)
    if check and any(sighting.violation for sighting in seen):
        raise SystemExit(NO)


def _print(seen: list[Sighting], dialect: str) -> None:
    shown = console()
    shown.print(_table(seen, dialect))
    names = Counter(sighting.frame.name for sighting in seen if sighting.frame)
    counts = ", ".join(f"{count} {name}" for name, count in names.most_common())
    shown.print(f"{sum(names.values())} frames of {dialect}: {counts}")
    if wrong := sum(bool(sighting.violation) for sighting in seen):
        shown.print(Text(f"{counted(wrong, 'violation')} of the protocol", style="bold red"))


def guess(data: bytes) -> Dialect:
    """The dialect in which the least is wrong or unknown; the newest where several fit."""
    return min(reversed(DIALECTS.values()), key=lambda dialect: _strangeness(data, dialect))


def _strangeness(data: bytes, dialect: Dialect) -> int:
    """Of the first frames."""
    seen = islice(sightings(data, dialect), _ENOUGH)
    return sum(bool(violation) or frame is None or frame.name == UNKNOWN for _, _, frame, violation in seen)


def sightings(data: bytes, dialect: Dialect) -> Iterator[Sighting]:
    """Every frame in a file. A frame that breaks a rule is shown with it; bytes that are none end their stream."""
    splitters: dict[Flow, Splitter | None] = {}
    talks: dict[frozenset[str], Conversation] = {}
    for time, flow, chunk in chunks(data):
        splitter = splitters.setdefault(flow, Splitter(MAX_FRAME))
        if splitter is None:
            continue
        splitter.feed(chunk)
        talk = talks.setdefault(flow.connection, Conversation())
        try:
            for seen in _frames(splitter, time, flow, dialect):
                broken = "" if seen.violation or seen.frame is None else talk.broken_rule(seen.frame, flow.source)
                yield seen._replace(violation=broken) if broken else seen
        except FrameError as error:
            splitters[flow] = None
            yield Sighting(time, flow, None, f"{error}; the rest of this direction is not read")
    for flow, splitter in splitters.items():
        if splitter is not None and splitter.pending:
            yield Sighting(0.0, flow, None, f"frame at byte {splitter.offset}: the input ends inside it")


def write_rows(chunks: list[tuple[float, Flow, bytes]], dialect: Dialect, path: Path, *, collections: bool) -> int:
    """The changes of each direction that has any, as one file; how many there are."""
    import pyarrow

    schema = pyarrow.schema(Decoder(dialect).schema)
    rows = 0
    with path.open("wb") as file, pyarrow.ipc.new_file(file, schema) as out:
        for flow in dict.fromkeys(flow for _, flow, _ in chunks):
            data = b"".join(chunk for _, of, chunk in chunks if of == flow)
            decoder = Decoder(dialect, collections=collections or _agreed_on_collections(data, dialect))
            decoder.feed(data)
            for batch in _batches(decoder):
                out.write_batch(batch.to_arrow())
                rows += len(batch)
    return rows


def _batches(decoder: Decoder) -> Iterator[Batch]:
    """Until something is wrong, which is shown with the frames."""
    with suppress(DcpError):
        while len(batch := decoder.take(_BATCH_ROWS)):
            yield batch


def _agreed_on_collections(data: bytes, dialect: Dialect) -> bool:
    """Whether an answer to a HELLO says that keys have collection ids."""
    for _, _, frame, violation in sightings(data, dialect):
        if frame is None or violation or frame.name != "hello" or not frame.kind.answers or frame.status:
            continue
        with suppress(DcpError):
            return Feature.COLLECTIONS in frame.body(dialect.name)
    return False


def _frames(splitter: Splitter, time: float, flow: Flow, dialect: Dialect) -> Iterator[Sighting]:
    offset = splitter.offset
    for raw in splitter:
        try:
            yield Sighting(time, flow, read_frame(raw, dialect, offset), "")
        except FrameError as error:
            yield Sighting(time, flow, read_opaque(raw, offset), error.problem)
        offset = splitter.offset


def chunks(data: bytes) -> Iterator[tuple[float, Flow, bytes]]:
    """What a file holds, as (time, direction, bytes)."""
    if is_capture(data):
        yield from streams(data)
    elif data and _HEX.issuperset(data):
        digits = b"".join(data.split()).decode()
        if len(digits) % 2:
            raise click.ClickException(f"hex text: expected an even number of digits, found {len(digits)}")
        yield 0.0, Flow("", ""), bytes.fromhex(digits)
    else:
        yield 0.0, Flow("", ""), data


def _table(seen: list[Sighting], dialect: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    captured = bool(seen[0].flow.source)
    for title in (*(("seconds", "from", "to") if captured else ()), "frame", "vbucket", "opaque", "says"):
        table.add_column(title, no_wrap=title != "says")
    start = seen[0].time
    for time, flow, frame, violation in seen:
        where = (f"{time - start:.6f}", _port(flow.source), _port(flow.target)) if captured else ()
        table.add_row(*where, *_cells(frame, violation, dialect))
    return table


def _port(address: str) -> str:
    return ":" + address.rpartition(":")[2]


def _cells(frame: Frame | None, violation: str, dialect: str) -> tuple[str | Text, ...]:
    wrong = Text(violation, style="red")
    if frame is None:
        return "", "", "", wrong
    name = frame.name + (" response" if frame.kind.answers else "")
    vbucket = "" if frame.kind.answers else str(frame.vbucket)
    return name, vbucket, f"0x{frame.opaque:08x}", wrong if violation else Text(describe(frame, dialect))


def _object(sighting: Sighting, dialect: str) -> dict[str, Any]:
    time, flow, frame, violation = sighting
    found: dict[str, Any] = {"time": time, "from": flow.source, "to": flow.target} if flow.source else {}
    if frame is not None:
        found |= {"frame": frame.name, "answers": frame.kind.answers, "opaque": frame.opaque}
        found |= {} if frame.kind.answers else {"vbucket": frame.vbucket}
        found |= {} if violation else {"says": describe(frame, dialect)}
    return found | ({"violation": violation} if violation else {})
