"""The encoder of rows that are Python objects, for those who keep documents one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dcp import _codec
from dcp.columns.encoder import recipe_for

_BYTES = frozenset(("key", "value", "xattrs"))
_SAME_FOR_ALL = ("vbucket", "stream_id")


class RowEncoder:
    """Writes tuples as frames of a dialect, as `Encoder` writes columns.

    fields: the names of the tuples' columns; one that is no column goes nowhere.
    leave_out: fields that are not sent although the tuples have them.
    sent_as: events that are sent as another one.
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
        """Write the frames of rows[begin:] from buffer[at:] on; the next row, and where its frame would begin.

        Ends early at a row that is of another type or has no room, and as soon as `enough` bytes are there.
        """
        return self._writer.write(buffer, at, rows, begin, enough, opaque, (vbucket, stream_id), self._defect)


def _described(name: str) -> tuple[str, str, str | None]:
    if name == "event":
        return name, "u", None
    return name, "z" if name in _BYTES else "L", None
