"""`dcp inspect`: what a capture, a dump or a line of hex says."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dcp._codec import Splitter
from dcp.cli.capture import Flow, is_capture, streams
from dcp.errors import FrameError
from dcp.wire import DIALECTS
from dcp.wire.describe import describe
from dcp.wire.frame import Frame, read_frame, read_opaque
from dcp.wire.layout import Dialect
from dcp.wire.memcached import MAX_FRAME

_HEX = frozenset(b"0123456789abcdefABCDEF \t\r\n")


class Sighting(NamedTuple):
    """A frame, when and where it was seen, and what rule it breaks if it does."""

    time: float
    flow: Flow
    frame: Frame | None
    violation: str


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--dialect", type=click.Choice(list(DIALECTS)), default="dcp", show_default=True)
def inspect(file: BinaryIO, dialect: str) -> None:
    """Print the frames in FILE: a pcap or pcapng capture, raw bytes, or hex text; `-` is standard input.

    \b
    Example:
      dcp inspect capture.pcapng
      echo 805c00000000000000000000009896810000000000000000 | dcp inspect -
    """
    data = file.read()
    seen = list(sightings(data, DIALECTS[dialect]))
    if not seen:
        raise click.ClickException(f"{file.name}: no frames of {dialect} in {len(data)} bytes")
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(_table(seen, dialect))
    names = Counter(sighting.frame.name for sighting in seen if sighting.frame)
    counts = ", ".join(f"{count} {name}" for name, count in names.most_common())
    console.print(f"{sum(names.values())} frames: {counts}")


def sightings(data: bytes, dialect: Dialect) -> Iterator[Sighting]:
    """Every frame in a file. A frame that breaks a rule is shown with it; bytes that are none end their stream."""
    splitters: dict[Flow, Splitter | None] = {}
    for time, flow, chunk in _chunks(data):
        splitter = splitters.setdefault(flow, Splitter(MAX_FRAME))
        if splitter is None:
            continue
        splitter.feed(chunk)
        try:
            yield from _frames(splitter, time, flow, dialect)
        except FrameError as error:
            splitters[flow] = None
            yield Sighting(time, flow, None, f"{error}; the rest of this direction is not read")
    for flow, splitter in splitters.items():
        if splitter is not None and splitter.pending:
            yield Sighting(0.0, flow, None, f"frame at byte {splitter.offset}: the input ends inside it")


def _frames(splitter: Splitter, time: float, flow: Flow, dialect: Dialect) -> Iterator[Sighting]:
    offset = splitter.offset
    for raw in splitter:
        try:
            yield Sighting(time, flow, read_frame(raw, dialect, offset), "")
        except FrameError as error:
            yield Sighting(time, flow, read_opaque(raw, offset), error.problem)
        offset = splitter.offset


def _chunks(data: bytes) -> Iterator[tuple[float, Flow, bytes]]:
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
