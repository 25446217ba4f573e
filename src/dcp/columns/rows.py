"""Encoder of rows that are Python tuples, for servers that keep documents one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcp import _codec
from dcp.columns.encoder import recipe_for

_BYTES = frozenset(("key", "value", "xattrs"))
_SAME_FOR_ALL = ("vbucket", "stream_id")


class RowEncoder:
    """Encoder of tuples to frames of a dialect, as `Encoder` is of columns.

    dialect: name of the dialect.
    fields: names of the tuples' items. An item whose name is no column is not sent.
    leave_out: fields that are not sent although the tuples have them.
    sent_as: (event, event to send it as) pairs.
    stream_id_defect: as in Encoder.
    """

    def __init__(
        self,
        dialect: str,
        fields: Sequence[str],
        *,
        leave_out: Sequence[str] = (),
        sent_as: tuple[tuple[str, str], ...] = (),
        stream_id_defect: bool = False,
    ) -> None:
        described = [_described("" if name in leave_out else name) for name in (*fields, *_SAME_FOR_ALL)]
        self._writer = _codec.RowWriter(recipe_for(dialect, tuple(described), sent_as))
        self._defect = stream_id_defect

    def write(
        self,
        buffer: bytearray | memoryview,
        at: int,
        rows: list[Any],
        begin: int,
        enough: int,
        *,
        opaque: int,
        vbucket: int,
        stream_id: int | None = None,
    ) -> tuple[int, int]:
        """Write the frames of rows[begin:] to buffer[at:].

        enough: stop as soon as this many bytes were written.
        opaque, vbucket, stream_id: the same for all frames.

        Returns the index of the next row, and the offset of its frame in the buffer. Writing also stops before a
        row that does not fit, and before one of another type than the first.
        """
        return self._writer.write(buffer, at, rows, begin, enough, opaque, (vbucket, stream_id), self._defect)


def _described(name: str) -> tuple[str, str, str | None]:
    if name == "event":
        return name, "u", None
    return name, "z" if name in _BYTES else "L", None
