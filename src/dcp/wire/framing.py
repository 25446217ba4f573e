"""Framing extras: the optional part of frames with magic 0x08 and 0x18, a sequence of frame infos.

The first byte of each info has its id in the high nibble and its length in the low one. The value 15 in a nibble means
15 plus the next byte; if both are 15, the byte of the id comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

_ESCAPE = 15
_LARGEST = _ESCAPE + 255


class RequestInfo(IntEnum):
    """Ids of frame infos in requests."""

    BARRIER = 0
    DURABILITY = 1
    STREAM_ID = 2
    IMPERSONATE_USER = 4
    PRESERVE_TTL = 5
    EXTRA_PRIVILEGE = 6
    IMPERSONATE_TOKEN = 7


class ResponseInfo(IntEnum):
    """Ids of frame infos in responses."""

    SERVER_DURATION = 0
    READ_UNITS = 1
    WRITE_UNITS = 2
    THROTTLE_DURATION = 3


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """One frame info of the framing extras.

    id: a RequestInfo or ResponseInfo; others are legal.
    data: content, up to 270 bytes.
    counted: False if the header's framing-extras length leaves the info out, although it is there. Servers since 6.5
        send the stream id of deletions and expirations that way.
    """

    id: int
    data: bytes = b""
    counted: bool = True

    @property
    def microseconds(self) -> float:
        """Duration in the data of SERVER_DURATION or THROTTLE_DURATION, in microseconds."""
        return float(int.from_bytes(self.data, "big") ** 1.74 / 2)


def stream_id(number: int, *, counted: bool = True) -> FrameInfo:
    """Return the frame info for a stream id."""
    return FrameInfo(RequestInfo.STREAM_ID, number.to_bytes(2, "big"), counted)


def split_infos(extras: bytes) -> Iterator[FrameInfo]:
    """Yield the infos in framing extras. Raises ValueError, with the byte, if one runs past the end."""
    position = 0
    while position < len(extras):
        start, head = position, extras[position]
        position += 1
        number, position = _nibble(head >> 4, extras, position)
        length, position = _nibble(head & 15, extras, position)
        if length > len(extras) - position:
            found = len(extras) - position
            raise ValueError(f"framing extras: info {number} at byte {start}: expected {length} bytes, found {found}")
        yield FrameInfo(number, extras[position : position + length])
        position += length


def _nibble(number: int, extras: bytes, position: int) -> tuple[int, int]:
    if number < _ESCAPE:
        return number, position
    if position == len(extras):
        raise ValueError(f"framing extras: expected an escaped id or length at byte {position}, found the end")
    return _ESCAPE + extras[position], position + 1


def join_infos(infos: Iterable[FrameInfo]) -> bytes:
    """Return framing extras with these infos. Raises ValueError if an id or length is too large."""
    return b"".join(_join(info) for info in infos)


def _join(info: FrameInfo) -> bytes:
    if not (0 <= info.id <= _LARGEST and len(info.data) <= _LARGEST):
        raise ValueError(f"frame info: expected an id and a length of at most {_LARGEST}, found {info}")
    id_nibble, length_nibble = min(info.id, _ESCAPE), min(len(info.data), _ESCAPE)
    escapes = [n - _ESCAPE for n in (info.id, len(info.data)) if n >= _ESCAPE]
    return bytes([id_nibble << 4 | length_nibble, *escapes]) + info.data


# First byte and length of a stream id that a server sends without counting it.
UNCOUNTED_HEAD = join_infos([stream_id(0)])[0]
UNCOUNTED_LENGTH = len(join_infos([stream_id(0)]))
