"""`dcp inspect`: prints the frames of a capture, of raw bytes or of hex text, and the rules they break."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from dcp.cli.arguments import LocalFile, LocalPath
from dcp.cli.capture import MAGIC_SIZE, Flow, Rewound, Segment, is_capture, streams
from dcp.cli.checkpoint import NEGATIVE
from dcp.cli.frame_finder import FrameFinder, Piece
from dcp.cli.protocol_rules import ProtocolChecker
from dcp.cli.terminal import console, counted
from dcp.columns.decoder import Decoder
from dcp.errors import DcpError, FrameError
from dcp.wire import DIALECTS
from dcp.wire.describe import describe
from dcp.wire.frame import UNKNOWN, Frame, read_frame, read_opaque
from dcp.wire.layout import Dialect
from dcp.wire.memcached import Feature

if TYPE_CHECKING:
    from typing_extensions import Self

# Number of frames from which the dialect is guessed.
_GUESS_FRAMES = 2000
# Largest number of frames that are printed as one table, whose columns are as wide as their cells.
_TABLE_FRAMES = 10_000
_BATCH_ROWS = 65_536
# Bytes of changes that are collected before they are decoded.
_BATCH_BYTES = 1 << 20
_STDIN = "<stdin>"
_ADDRESS_COLUMNS = ("seconds", "from", "to")
_FRAME_COLUMNS = ("frame", "vbucket", "opaque", "content")
# Widths of the columns while frames arrive: ports and numbers fit, and most names.
_LIVE_WIDTHS = (10, 6, 6, 27, 7, 10, 0)
_HEX = frozenset(b"0123456789abcdefABCDEF \t\r\n")


class CapturedFrame(NamedTuple):
    """A frame with its time and direction, and the rule that it breaks; None is bytes that are no frame.

    raw: bytes of the frame.
    missing: bytes that the capture lacks in its place.
    skipped: bytes that were skipped in its place.
    """

    time: float
    flow: Flow
    frame: Frame | None
    violation: str
    raw: bytes = b""
    missing: int = 0
    skipped: int = 0


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
    """Print the frames of a capture or a dump.

    FILE is a pcap or pcapng capture, raw bytes, or hex text; `-` is standard input.

    Both directions of every TCP connection are read. A frame that breaks a rule of the protocol is printed with that
    rule, and bytes that the capture lacks as a gap. Passwords are never printed. The frames of a capture on standard
    input are printed as they arrive.

    \b
    Example:
      dcp inspect capture.pcapng
      dcp inspect capture.pcapng --arrow changes.arrow
      dcp inspect capture.pcapng --check
      echo 805c00000000000000000000009896810000000000000000 | dcp inspect -
      tcpdump -i any -U -w - port 11210 | dcp inspect -
    """
    table = DIALECTS[dialect] if dialect else None
    head = file.read(MAGIC_SIZE)
    source = Rewound(head, file)
    name = getattr(file, "name", _STDIN)
    totals = _Totals()
    with ExitStack() as closing:
        rows = None if arrow is None else closing.enter_context(_RowWriter(arrow, collections=collections))
        if is_capture(head) and (name == _STDIN or not file.seekable()):
            reader: FrameReader | DialectGuess = FrameReader(table) if table else DialectGuess()
            _print_live(_counted_frames(streams(source), reader, totals, rows), reader, as_json=as_json)
            totals.require_frames(name, reader.dialect)
        else:
            data = source.read()
            reader = FrameReader(table or guess(data))
            frames = _counted_frames(segments(data), reader, totals, rows)
            # An input without any frame must fail before output.
            first = list(islice(frames, _TABLE_FRAMES + 1))
            totals.require_frames(name, reader.dialect)
            if as_json or len(first) > _TABLE_FRAMES:
                _print_live(chain(first, frames), reader, as_json=as_json)
            else:
                console().print(_table(first, reader.dialect.name))
        if not as_json:
            totals.show(reader.dialect.name)
        if rows is not None:
            click.echo(f"{counted(rows.finish(reader.dialect), 'row')}: {arrow}", err=as_json)
    if check and (totals.violations or totals.unread):
        raise SystemExit(NEGATIVE)


@dataclass
class _Totals:
    """Counts of an input.

    size: number of bytes.
    first_problem: first violation or gap.
    violations: number of violations.
    unread: True if bytes are missing or were skipped.
    missing: bytes that the capture lacks.
    """

    size: int = 0
    names: Counter[str] = field(default_factory=Counter)
    first_problem: str = ""
    violations: int = 0
    unread: bool = False
    missing: int = 0

    def add(self, captured: CapturedFrame) -> None:
        """Count a frame or what is in its place."""
        if captured.frame:
            self.names[captured.frame.name] += 1
        self.first_problem = self.first_problem or captured.violation
        self.missing += captured.missing
        if captured.missing or captured.skipped:
            self.unread = True
        elif captured.violation:
            self.violations += 1

    def require_frames(self, file: str, dialect: Dialect) -> None:
        """Raise ClickException if there was no frame."""
        if not self.names:
            reason = f": {self.first_problem}" if self.first_problem else ""
            raise click.ClickException(f"{file}: no frames of {dialect.name} in {counted(self.size, 'byte')}{reason}")

    def show(self, dialect: str) -> None:
        """Print how many frames there were of each kind, and what was wrong."""
        shown = console()
        counts = ", ".join(f"{count} {name}" for name, count in self.names.most_common())
        shown.print(f"{sum(self.names.values())} frames of {dialect}: {counts}")
        if self.violations:
            shown.print(Text(f"{counted(self.violations, 'violation')} of the protocol", style="bold red"))
        if self.missing:
            shown.print(Text(f"{counted(self.missing, 'byte')} of TCP missing from the capture", style="bold red"))


class FrameReader:
    """Reads the frames of all connections of an input in one dialect, with the rules that they break."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._finders: dict[Flow, FrameFinder] = {}
        self._checkers: dict[frozenset[str], ProtocolChecker] = {}

    def read(self, segment: Segment) -> Iterator[CapturedFrame]:
        """Yield the frames that are complete with the next bytes of a direction."""
        time, flow, data, missing, last = segment
        # Raw bytes have no sequence numbers: if they are no frames, they may be anything.
        finder = self._finders.setdefault(flow, FrameFinder(self.dialect, resumes=bool(flow.source)))
        checker = self._checkers.setdefault(flow.connection, ProtocolChecker())
        if missing:
            checker.lose(flow.source)
            yield from self._captured(time, flow, finder.skip(missing), checker)
        yield from self._captured(time, flow, finder.feed(data), checker)
        if last:
            yield from self._captured(time, flow, finder.end(), checker)
            del self._finders[flow]
            # The checker needs both directions, and the other one may go on.
            if Flow(flow.target, flow.source) not in self._finders:
                del self._checkers[flow.connection]

    def _captured(
        self, time: float, flow: Flow, pieces: Iterator[Piece], checker: ProtocolChecker
    ) -> Iterator[CapturedFrame]:
        """Yield pieces as frames, each with the first rule that it breaks."""
        for offset, raw, problem, missing, skipped in pieces:
            if problem:
                yield CapturedFrame(time, flow, None, problem, missing=missing, skipped=skipped)
                continue
            try:
                frame = read_frame(raw, self.dialect, offset)
            except FrameError as error:
                # The header is sound, since the frame could be split off: show what it has. One rule is enough: a frame
                # that is wrong in itself is not checked against the connection.
                yield CapturedFrame(time, flow, read_opaque(raw, offset), error.problem, raw)
            else:
                yield CapturedFrame(time, flow, frame, checker.violation(frame, flow.source), raw)


class DialectGuess:
    """Reads frames in the dialect in which the fewest so far were wrong or unknown; the newest of several."""

    def __init__(self) -> None:
        self._readers = [FrameReader(dialect) for dialect in reversed(DIALECTS.values())]
        self._mismatches = [0] * len(self._readers)
        self._seen = 0

    @property
    def dialect(self) -> Dialect:
        """Dialect that fits best so far."""
        return self._readers[self._best()].dialect

    def read(self, segment: Segment) -> list[CapturedFrame]:
        """Return the frames that are complete with the next bytes of a direction."""
        found = [list(reader.read(segment)) for reader in self._readers]
        for number, frames in enumerate(found):
            self._mismatches[number] += sum(map(_is_mismatch, frames))
        best = self._best()
        self._seen += len(found[best])
        if self._seen >= _GUESS_FRAMES:
            self._readers, self._mismatches = [self._readers[best]], [0]
        return found[best]

    def _best(self) -> int:
        """Return the index of the reader with the fewest mismatches."""
        # min() returns the first of equal ones, so the newest dialect comes first.
        return min(range(len(self._readers)), key=self._mismatches.__getitem__)


def guess(data: bytes) -> Dialect:
    """Return the dialect in which the fewest frames are wrong or unknown; the newest of several."""
    return min(reversed(DIALECTS.values()), key=lambda dialect: _mismatches(data, dialect))


def _mismatches(data: bytes, dialect: Dialect) -> int:
    """Return how many of the first frames are wrong or unknown in a dialect."""
    return sum(map(_is_mismatch, islice(captured_frames(data, dialect), _GUESS_FRAMES)))


def _is_mismatch(captured: CapturedFrame) -> bool:
    """True for a frame that is wrong or unknown."""
    return bool(captured.violation) or captured.frame is None or captured.frame.name == UNKNOWN


def captured_frames(data: bytes, dialect: Dialect) -> Iterator[CapturedFrame]:
    """Yield every frame in a file with the rule that it breaks."""
    reader = FrameReader(dialect)
    for segment in segments(data):
        yield from reader.read(segment)


def _counted_frames(
    found: Iterable[Segment], reader: FrameReader | DialectGuess, totals: _Totals, rows: _RowWriter | None
) -> Iterator[CapturedFrame]:
    """Yield every frame, counted, and with its rows written."""
    for segment in found:
        totals.size += len(segment.data)
        for captured in reader.read(segment):
            totals.add(captured)
            if rows is not None:
                rows.add(captured, reader.dialect)
            yield captured
        if rows is not None and segment.last:
            rows.end(segment.flow)


class _RowWriter:
    """Writer of the changes in captured frames into an Arrow file. A context manager."""

    def __init__(self, path: Path, *, collections: bool) -> None:
        self._path, self._collections = path, collections
        self._closing = ExitStack()
        self._writer: Any = None
        self._rows = 0
        # Each direction is decoded on its own: only the server sends changes, but which side that is, is not known.
        self._decoders: dict[Flow, Decoder | None] = {}
        self._with_ids: set[Flow] = set()
        # Frames that are not decoded yet, and their size.
        self._waiting: dict[Flow, list[bytes]] = {}
        # Directions that end with these frames.
        self._ended: set[Flow] = set()
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Complete the file, also after an interrupt: without its end it could not be read."""
        self._closing.close()

    def add(self, captured: CapturedFrame, dialect: Dialect) -> None:
        """Write the change in a frame, if there is one. Frames that are wrong in themselves are left out."""
        if captured.frame is None or (captured.violation and captured.frame.name == UNKNOWN):
            return
        if _has_collection_ids(captured.frame, dialect):
            self._with_ids.add(captured.flow)
        self._waiting.setdefault(captured.flow, []).append(captured.raw)
        self._size += len(captured.raw)
        if self._size >= _BATCH_BYTES:
            self._decode(dialect)

    def end(self, flow: Flow) -> None:
        """End a direction: nothing of it is kept once its frames are decoded."""
        self._ended.add(flow)

    def finish(self, dialect: Dialect) -> int:
        """Write what is left. Return the number of rows."""
        self._decode(dialect)
        return self._rows

    def _decode(self, dialect: Dialect) -> None:
        """Write the changes of the frames that wait."""
        import pyarrow

        # By now enough frames were seen to know the dialect, which decides the columns.
        if self._writer is None:
            schema = pyarrow.schema(Decoder(dialect).schema)
            file = self._closing.enter_context(self._path.open("wb"))
            self._writer = self._closing.enter_context(pyarrow.ipc.new_file(file, schema))
        waiting, self._waiting, self._size = self._waiting, {}, 0
        for flow, frames in waiting.items():
            self._write(flow, frames, dialect)
        for flow in self._ended:
            self._decoders.pop(flow, None)
        self._ended.clear()

    def _write(self, flow: Flow, frames: list[bytes], dialect: Dialect) -> None:
        """Write the changes of one direction."""
        if flow not in self._decoders:
            with_ids = self._collections or flow in self._with_ids
            self._decoders[flow] = Decoder(dialect, collections=with_ids)
        if (decoder := self._decoders[flow]) is None:
            return
        try:
            decoder.feed(b"".join(frames))
            while len(batch := decoder.take(_BATCH_ROWS)):
                self._writer.write_batch(batch.to_arrow())
                self._rows += len(batch)
        except DcpError:
            # A value that cannot be decoded ends the rows of its direction.
            self._decoders[flow] = None


def _has_collection_ids(frame: Frame, dialect: Dialect) -> bool:
    """Return whether a frame is the answer to a HELLO, and agrees to collection ids."""
    if frame.name != "hello" or not frame.kind.answers or frame.status:
        return False
    with suppress(DcpError):
        return Feature.COLLECTIONS in frame.body(dialect.name)
    return False


def segments(data: bytes) -> Iterator[Segment]:
    """Yield the bytes of a file by direction. Raw bytes and hex text are one direction without names."""
    if is_capture(data):
        yield from streams(io.BytesIO(data))
        return
    # Frames begin with a magic of 0x80 or above, so raw bytes are never taken for hex text.
    if data and _HEX.issuperset(data):
        digits = b"".join(data.split()).decode()
        if len(digits) % 2:
            raise click.ClickException(f"hex text: expected an even number of digits, found {len(digits)}")
        data = bytes.fromhex(digits)
    yield Segment(0.0, Flow("", ""), data, last=True)


# Output.


def _print_live(frames: Iterable[CapturedFrame], reader: FrameReader | DialectGuess, *, as_json: bool) -> None:
    """Print each frame when it arrives. The columns have fixed widths, since the later frames are not known."""
    shown, start, hidden = console(), None, 0
    for captured in frames:
        dialect = reader.dialect.name
        if as_json:
            # click flushes each line.
            click.echo(json.dumps(_object(captured, dialect)))
            continue
        if start is None:
            start, hidden = captured.time, 0 if captured.flow.source else len(_ADDRESS_COLUMNS)
            titles = zip((*_ADDRESS_COLUMNS, *_FRAME_COLUMNS)[hidden:], _LIVE_WIDTHS[hidden:], strict=True)
            shown.print(Text("  ".join(f"{title:<{width}}" for title, width in titles).rstrip(), style="bold"))
        line = Text()
        for cell, width in zip(_row(captured, start, dialect)[hidden:], _LIVE_WIDTHS[hidden:], strict=True):
            text = cell if isinstance(cell, Text) else Text(cell)
            text.pad_right(max(0, width - len(text)))
            line.append("  " if line else "").append_text(text)
        line.rstrip()
        shown.print(line, soft_wrap=True)


def _table(seen: list[CapturedFrame], dialect: str) -> Table:
    """Return a table with a row for each frame."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    captured = bool(seen[0].flow.source)
    for title in (*(_ADDRESS_COLUMNS if captured else ()), *_FRAME_COLUMNS):
        table.add_column(title, no_wrap=title != "content")
    start = seen[0].time
    for one in seen:
        row = _row(one, start, dialect)
        table.add_row(*(row if captured else row[len(_ADDRESS_COLUMNS) :]))
    return table


def _row(captured: CapturedFrame, start: float, dialect: str) -> tuple[str | Text, ...]:
    """Return the cells of a frame: seconds since `start`, both ports, and what it is."""
    time, flow, frame, violation, *_ = captured
    cells = _cells(frame, violation, dialect)
    return (f"{time - start:.6f}", _port(flow.source), _port(flow.target), *cells)


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
    time, flow, frame, violation, _, missing, skipped = captured
    found: dict[str, Any] = {"time": time, "from": flow.source, "to": flow.target} if flow.source else {}
    if frame is not None:
        found |= {"frame": frame.name, "answers": frame.kind.answers, "opaque": frame.opaque}
        found |= {} if frame.kind.answers else {"vbucket": frame.vbucket}
        found |= {} if violation else {"says": describe(frame, dialect)}
    found |= {"missing_bytes": missing} if missing else {}
    found |= {"skipped_bytes": skipped} if skipped else {}
    return found | ({"violation": violation} if violation else {})
