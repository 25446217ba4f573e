"""Framing extras: the optional part of a frame that magics 0x08 and 0x18 announce.

A run of frame infos. The first byte of each has its id in the high and its length in the low nibble;
15 in either says that 15 plus a further byte is meant, the id's byte before the length's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

_ESCAPE = 15
_LARGEST = _ESCAPE + 255


class RequestInfo(IntEnum):
    """What a frame info can say in a request."""

    BARRIER = 0
    DURABILITY = 1
    STREAM_ID = 2
    IMPERSONATE_USER = 4
    PRESERVE_TTL = 5
    EXTRA_PRIVILEGE = 6
    IMPERSONATE_TOKEN = 7


class ResponseInfo(IntEnum):
    """What a frame info can say in a response."""

    SERVER_DURATION = 0
    READ_UNITS = 1
    WRITE_UNITS = 2
    THROTTLE_DURATION = 3


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """One frame info.

    `counted` is False where the frame carries the info without counting it in the header's
    framing-extras length: servers since 6.5 do so with the stream id of deletions and expirations.
    """

    id: int
    data: bytes = b""
    counted: bool = True

    @property
    def microseconds(self) -> float:
        """The data of a server or throttle duration."""
        return float(int.from_bytes(self.data, "big") ** 1.74 / 2)


def stream_id(number: int, *, counted: bool = True) -> FrameInfo:
    """The frame info that names the stream which a message belongs to."""
    return FrameInfo(RequestInfo.STREAM_ID, number.to_bytes(2, "big"), counted)


def split_infos(extras: bytes) -> Iterator[FrameInfo]:
    """The infos in framing extras; ValueError says which byte runs past the end."""
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
    """The inverse of `split_infos`."""
    return b"".join(_join(info) for info in infos)


def _join(info: FrameInfo) -> bytes:
    if not (0 <= info.id <= _LARGEST and len(info.data) <= _LARGEST):
        raise ValueError(f"frame info: expected an id and a length of at most {_LARGEST}, found {info}")
    id_nibble, length_nibble = min(info.id, _ESCAPE), min(len(info.data), _ESCAPE)
    escapes = [n - _ESCAPE for n in (info.id, len(info.data)) if n >= _ESCAPE]
    return bytes([id_nibble << 4 | length_nibble, *escapes]) + info.data


# How the stream id looks that servers send without counting it.
UNCOUNTED_HEAD = join_infos([stream_id(0)])[0]
UNCOUNTED_LENGTH = len(join_infos([stream_id(0)]))
