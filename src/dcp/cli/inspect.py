"""`dcp inspect`: prints the frames of a capture, of raw bytes or of hex text, and the rules they break."""

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
from dcp.cli.arguments import LocalFile, LocalPath
from dcp.cli.capture import Flow, is_capture, streams
from dcp.cli.checkpoint import NEGATIVE
from dcp.cli.protocol_rules import ProtocolChecker
from dcp.cli.terminal import console, counted
from dcp.columns.batch import Batch
from dcp.columns.decoder import Decoder
from dcp.errors import DcpError, FrameError
from dcp.wire import DIALECTS
from dcp.wire.describe import describe
from dcp.wire.frame import UNKNOWN, Frame, read_frame, read_opaque
from dcp.wire.layout import Dialect
from dcp.wire.memcached import MAX_FRAME, Feature

# Number of frames from which the dialect is guessed.
_GUESS_FRAMES = 2000
_BATCH_ROWS = 65_536
_HEX = frozenset(b"0123456789abcdefABCDEF \t\r\n")


class CapturedFrame(NamedTuple):
    """A frame with its time and direction, and the rule that it breaks; None is bytes that are no frame."""

    time: float
    flow: Flow
    frame: Frame | None
    violation: str


@click.command()
@click.argument("file", type=LocalFile("rb"))
@click.option(
    "--dialect", type=click.Choice(list(DIALECTS)), help="Protocol generation of the frames.  [default: guessed]"
)
@click.option(
    "--arrow",
    type=LocalPath(path_type=Path, dir_okay=False),
    help="Also write the changes to this file, as Arrow IPC.",
)
@click.option(
    "--collections", is_flag=True, help="With --arrow: keys have collection ids, although no HELLO was captured."
)
@click.option("--check", is_flag=True, help="Exit with code 3 if a frame breaks a rule.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object for each frame.")
def inspect(
    file: BinaryIO, dialect: str | None, arrow: Path | None, collections: bool, check: bool, as_json: bool
) -> None:
    """Print the frames in FILE: a pcap or pcapng capture, raw bytes, or hex text; `-` is standard input.

    Both directions of every TCP connection are read. A frame that breaks a rule of the protocol is printed with that
    rule. Passwords are never printed.

    \b
    Example:
      dcp inspect capture.pcapng
      dcp inspect capture.pcapng --arrow changes.arrow
      dcp inspect capture.pcapng --check
      echo 805c00000000000000000000009896810000000000000000 | dcp inspect -
    """
    data = file.read()
    table = DIALECTS[dialect] if dialect else guess(data)
    # All frames at once: the table aligns its columns, and an input without any frame must fail before output.
    seen = list(captured_frames(data, table))
    if not any(captured.frame for captured in seen):
        reason = "".join(f": {captured.violation}" for captured in seen[:1])
        raise click.ClickException(f"{file.name}: no frames of {table.name} in {counted(len(data), 'byte')}{reason}")
    if as_json:
        click.echo("".join(f"{json.dumps(_object(captured, table.name))}\n" for captured in seen), nl=False)
    else:
        _print(seen, table.name)
    if arrow is not None:
        rows = write_rows(list(chunks(data)), table, arrow, collections=collections)
        click.echo(f"{counted(rows, 'row')}: {arrow}", err=as_json)
    if check and any(captured.violation for captured in seen):
        raise SystemExit(NEGATIVE)


def _print(seen: list[CapturedFrame], dialect: str) -> None:
    """Print the frames as a table, and how many there are of each kind."""
    shown = console()
    shown.print(_table(seen, dialect))
    names = Counter(captured.frame.name for captured in seen if captured.frame)
    counts = ", ".join(f"{count} {name}" for name, count in names.most_common())
    shown.print(f"{sum(names.values())} frames of {dialect}: {counts}")
    if wrong := sum(bool(captured.violation) for captured in seen):
        shown.print(Text(f"{counted(wrong, 'violation')} of the protocol", style="bold red"))


def guess(data: bytes) -> Dialect:
    """Return the dialect in which the fewest frames are wrong or unknown; the newest of several."""
    # min() returns the first of equal ones, so the newest dialect comes first.
    return min(reversed(DIALECTS.values()), key=lambda dialect: _mismatches(data, dialect))


def _mismatches(data: bytes, dialect: Dialect) -> int:
    """Return how many of the first frames are wrong or unknown in a dialect."""
    seen = islice(captured_frames(data, dialect), _GUESS_FRAMES)
    return sum(bool(violation) or frame is None or frame.name == UNKNOWN for _, _, frame, violation in seen)


def captured_frames(data: bytes, dialect: Dialect) -> Iterator[CapturedFrame]:
    """Yield every frame in a file with the rule that it breaks. Bytes that are no frame end their direction."""
    splitters: dict[Flow, Splitter | None] = {}
    checkers: dict[frozenset[str], ProtocolChecker] = {}
    for time, flow, chunk in chunks(data):
        splitter = splitters.setdefault(flow, Splitter(MAX_FRAME))
        if splitter is None:
            # After bytes that are no frame, nothing tells where the next frame begins.
            continue
        splitter.feed(chunk)
        checker = checkers.setdefault(flow.connection, ProtocolChecker())
        try:
            for seen in _frames(splitter, time, flow, dialect):
                # One rule is enough: a frame that is wrong in itself is not checked against the connection.
                broken = "" if seen.violation or seen.frame is None else checker.violation(seen.frame, flow.source)
                yield seen._replace(violation=broken) if broken else seen
        except FrameError as error:
            splitters[flow] = None
            yield CapturedFrame(time, flow, None, f"{error}; the rest of this direction is not read")
    for flow, splitter in splitters.items():
        if splitter is not None and splitter.pending:
            # A capture often ends inside a frame, and raw bytes may have been cut.
            yield CapturedFrame(0.0, flow, None, f"frame at byte {splitter.offset}: the input ends inside it")


def write_rows(chunks: list[tuple[float, Flow, bytes]], dialect: Dialect, path: Path, *, collections: bool) -> int:
    """Write the changes of all directions to a file. Return their number."""
    import pyarrow

    schema = pyarrow.schema(Decoder(dialect).schema)
    rows = 0
    with path.open("wb") as file, pyarrow.ipc.new_file(file, schema) as out:
        for flow in dict.fromkeys(flow for _, flow, _ in chunks):
            data = b"".join(chunk for _, of, chunk in chunks if of == flow)
            # Each direction is decoded on its own: only the server sends changes, but which side that is, is not known.
            decoder = Decoder(dialect, collections=collections or _has_collection_ids(data, dialect))
            decoder.feed(data)
            for batch in _batches(decoder):
                out.write_batch(batch.to_arrow())
                rows += len(batch)
    return rows


def _batches(decoder: Decoder) -> Iterator[Batch]:
    """Yield batches up to the first broken frame, which is reported with the frames."""
    with suppress(DcpError):
        while len(batch := decoder.take(_BATCH_ROWS)):
            yield batch


def _has_collection_ids(data: bytes, dialect: Dialect) -> bool:
    """Return whether client and server agreed on collection ids, by the answer to a HELLO."""
    for _, _, frame, violation in captured_frames(data, dialect):
        if frame is None or violation or frame.name != "hello" or not frame.kind.answers or frame.status:
            continue
        with suppress(DcpError):
            return Feature.COLLECTIONS in frame.body(dialect.name)
    return False


def _frames(splitter: Splitter, time: float, flow: Flow, dialect: Dialect) -> Iterator[CapturedFrame]:
    """Yield the complete frames of a direction so far."""
    offset = splitter.offset
    for raw in splitter:
        try:
            yield CapturedFrame(time, flow, read_frame(raw, dialect, offset), "")
        except FrameError as error:
            # The header is sound, since the frame could be split off: show what it has.
            yield CapturedFrame(time, flow, read_opaque(raw, offset), error.problem)
        offset = splitter.offset


def chunks(data: bytes) -> Iterator[tuple[float, Flow, bytes]]:
    """Yield the bytes of a file as (time, direction, bytes). Raw bytes and hex text are one direction without names."""
    if is_capture(data):
        yield from streams(data)
    # Frames begin with a magic of 0x80 or above, so raw bytes are never taken for hex text.
    elif data and _HEX.issuperset(data):
        digits = b"".join(data.split()).decode()
        if len(digits) % 2:
            raise click.ClickException(f"hex text: expected an even number of digits, found {len(digits)}")
        yield 0.0, Flow("", ""), bytes.fromhex(digits)
    else:
        yield 0.0, Flow("", ""), data


def _table(seen: list[CapturedFrame], dialect: str) -> Table:
    """Return a table with a row for each frame."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    captured = bool(seen[0].flow.source)
    for title in (*(("seconds", "from", "to") if captured else ()), "frame", "vbucket", "opaque", "content"):
        table.add_column(title, no_wrap=title != "content")
    start = seen[0].time
    for time, flow, frame, violation in seen:
        prefix = (f"{time - start:.6f}", _port(flow.source), _port(flow.target)) if captured else ()
        table.add_row(*prefix, *_cells(frame, violation, dialect))
    return table


def _port(address: str) -> str:
    """Return the port of an address, with its colon."""
    return ":" + address.rpartition(":")[2]


def _cells(frame: Frame | None, violation: str, dialect: str) -> tuple[str | Text, ...]:
    """Return name, vbucket, opaque and content of a frame. The vbucket field of a response is its status."""
    wrong = Text(violation, style="red")
    if frame is None:
        return "", "", "", wrong
    name = frame.name + (" response" if frame.kind.answers else "")
    vbucket = "" if frame.kind.answers else str(frame.vbucket)
    return name, vbucket, f"0x{frame.opaque:08x}", wrong if violation else Text(describe(frame, dialect))


def _object(captured: CapturedFrame, dialect: str) -> dict[str, Any]:
    """Return a frame for JSON."""
    time, flow, frame, violation = captured
    found: dict[str, Any] = {"time": time, "from": flow.source, "to": flow.target} if flow.source else {}
    if frame is not None:
        found |= {"frame": frame.name, "answers": frame.kind.answers, "opaque": frame.opaque}
        found |= {} if frame.kind.answers else {"vbucket": frame.vbucket}
        found |= {} if violation else {"says": describe(frame, dialect)}
    return found | ({"violation": violation} if violation else {})
