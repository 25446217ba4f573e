"""Frames of one direction of a connection, found again after bytes that are missing or are no frame."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from dcp._codec import Splitter
from dcp.cli.terminal import counted
from dcp.errors import FrameError
from dcp.wire.frame import UNKNOWN, read_frame
from dcp.wire.layout import HEADER_STRUCT, Dialect, Magic
from dcp.wire.memcached import MAX_FRAME, Status

_HEADER_SIZE = HEADER_STRUCT.size
_MAGIC = re.compile(b"[\x80-\x83\x08\x18]")
# Servers refuse keys of more than 250 bytes; a collection id of at most 5 may come before them.
_MAX_KEY = 255
# JSON, Snappy and xattrs are the bits of the datatype.
_MAX_DATATYPE = 7
_STATUSES = frozenset(int(status) for status in Status)


class Piece(NamedTuple):
    """One frame as bytes, or why there is none.

    offset: position of its first byte in the direction; missing bytes count.
    problem: empty for a frame.
    missing: bytes that the capture lacks here.
    skipped: bytes that were read in search of a frame.
    """

    offset: int
    raw: bytes
    problem: str = ""
    missing: int = 0
    skipped: int = 0


class FrameFinder:
    """Splits the bytes of one direction into frames; where their order is broken, finds the next plausible header.

    resumes: False to read nothing after bytes that are no frame.
    """

    def __init__(self, dialect: Dialect, *, resumes: bool) -> None:
        self._dialect, self._resumes = dialect, resumes
        self._buffer = bytearray()
        # Position of the buffer's first byte.
        self._start = 0
        # True while a header is searched in the buffer.
        self._searching = self._ended = False
        self._skipped = 0
        # Bytes until the end of a frame of which some are missing.
        self._cut = 0

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Take the next bytes. Yield what is complete."""
        if self._ended:
            return
        self._buffer += data
        if self._cut:
            self._cut -= self._drop(min(self._cut, len(self._buffer)))
        while self._buffer:
            if self._searching:
                if not self._search():
                    return
                yield from self._report_skipped()
            try:
                raw = self._whole()
            except FrameError as error:
                yield self._lose_track(error)
                continue
            if raw is None:
                return
            yield Piece(self._start - len(raw), raw)

    def skip(self, missing: int) -> Iterator[Piece]:
        """Leave out missing bytes. Yield the gap. Resume after the frame that they cut, if its end is known."""
        inside = f", inside the frame at byte {self._start}" if self._buffer and not self._searching else ""
        left = self._cut
        if not self._searching and len(self._buffer) >= _HEADER_SIZE:
            left = self._size() - len(self._buffer)
        if self._searching:
            self._skipped += self._drop(len(self._buffer))
            yield from self._report_skipped()
        self._drop(len(self._buffer))
        yield Piece(self._start, b"", f"gap: {counted(missing, 'byte')} of TCP are missing{inside}", missing)
        self._start += missing
        self._cut = max(0, left - missing)
        # Where the missing bytes end inside a frame whose header was read, or with it, the next one begins after it.
        self._searching = not 0 < missing <= left

    def end(self) -> Iterator[Piece]:
        """End the direction. Yield what is incomplete."""
        if self._searching:
            self._skipped += self._drop(len(self._buffer))
            yield from self._report_skipped()
        elif self._buffer:
            # A capture often ends inside a frame, and raw bytes may have been cut.
            yield Piece(self._start, b"", f"frame at byte {self._start}: the input ends inside it")

    def _whole(self) -> bytes | None:
        """Remove and return the first frame; None if it is not complete. Raises FrameError if its header is wrong."""
        # The header alone decides whether it is one: nothing is copied for a frame that is not complete.
        header = Splitter(MAX_FRAME)
        header.feed(self._buffer[:_HEADER_SIZE])
        next(header, None)
        if len(self._buffer) < _HEADER_SIZE or len(self._buffer) < (size := self._size()):
            return None
        raw = bytes(self._buffer[:size])
        self._drop(size)
        return raw

    def _size(self, at: int = 0) -> int:
        """Return the size of the frame whose header is at a place of the buffer."""
        return _HEADER_SIZE + int.from_bytes(self._buffer[at + 8 : at + 12], "big")

    def _drop(self, count: int) -> int:
        """Remove bytes from the front of the buffer. Return their number."""
        del self._buffer[:count]
        self._start += count
        return count

    def _lose_track(self, error: FrameError) -> Piece:
        """Begin the search after a header that is none."""
        at = self._start
        located = FrameError(error.problem, at, error.opcode, error.vbucket)
        if not self._resumes:
            self._ended = True
            self._drop(len(self._buffer))
            return Piece(at, b"", f"{located}; the rest of this direction is not read")
        self._searching = True
        self._skipped += self._drop(1)
        return Piece(at, b"", f"{located}; reading resumes at the next header of a frame")

    def _search(self) -> bool:
        """Drop what is before the next plausible header. Return whether there is one."""
        for found in _MAGIC.finditer(bytes(self._buffer)):
            plausible = self._plausible(found.start())
            if plausible is not False:
                self._skipped += self._drop(found.start())
                self._searching = plausible is None
                return not self._searching
        self._skipped += self._drop(len(self._buffer))
        return False

    def _plausible(self, at: int) -> bool | None:
        """Return whether a frame begins at a place of the buffer; None if more bytes are needed to know."""
        header = self._plausible_header(at)
        if not header:
            return header
        end = at + self._size(at)
        if end > len(self._buffer):
            return None
        try:
            if read_frame(bytes(self._buffer[at:end]), self._dialect).name == UNKNOWN:
                return False
        except FrameError:
            return False
        # Frames follow each other. If nothing follows yet, the frame itself has to do.
        return self._plausible_header(end) is not False

    def _plausible_header(self, at: int) -> bool | None:
        """Return whether the header of a known message is at a place of the buffer; None if it is not complete."""
        raw = self._buffer[at : at + _HEADER_SIZE]
        if raw and raw[0] not in _MAGICS:
            return False
        if len(raw) < _HEADER_SIZE:
            return None
        byte0, opcode, key, extras, datatype, status, body, _, _ = HEADER_STRUCT.unpack(raw)
        magic, framing = Magic(byte0), 0
        if magic.framed:
            framing, key = key >> 8, key & 0xFF
        messages = self._dialect.by_opcode.get((magic.kind, opcode), ())
        # Byte 5 is the type of the message, not the datatype, where several have the same opcode.
        typed = any(message.type is not None for message in messages)
        return (
            bool(messages)
            and key <= _MAX_KEY
            and (typed or datatype <= _MAX_DATATYPE)
            and (typed or not magic.kind.answers or status in _STATUSES)
            and framing + extras + key <= body <= MAX_FRAME - _HEADER_SIZE
        )

    def _report_skipped(self) -> Iterator[Piece]:
        """Yield how many bytes were skipped, if any."""
        if self._skipped:
            at, count, self._skipped = self._start - self._skipped, self._skipped, 0
            yield Piece(at, b"", f"{counted(count, 'byte')} skipped that belong to no whole frame", skipped=count)


_MAGICS = frozenset(int(magic) for magic in Magic)
