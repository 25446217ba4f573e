"""Output for people: consoles, text that is safe on a terminal, and numbers with units."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rich.console import Console

from dcp.printable import printable

# Columns of a table that goes to a file or pipe: enough for every table, so that no line is wrapped.
_FILE_WIDTH = 200


def console(*, to_stderr: bool = False) -> Console:
    """Return a console for tables: as wide as the terminal, or wide enough for a file."""
    stream = sys.stderr if to_stderr else sys.stdout
    width = None if _is_terminal(stream) else _FILE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, soft_wrap=width is not None)


def uses_colour() -> bool:
    """True if standard output is a terminal, and NO_COLOR is not set (https://no-color.org)."""
    return _is_terminal(sys.stdout) and "NO_COLOR" not in os.environ


def _is_terminal(stream: TextIO | None) -> bool:
    """True for a terminal. Python has None for a stream that was closed before it started."""
    return stream is not None and stream.isatty()


def readable(data: bytes) -> str:
    """Return bytes as printable text; those that are not UTF-8 as escapes."""
    return printable(data.decode(errors="backslashreplace"))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
