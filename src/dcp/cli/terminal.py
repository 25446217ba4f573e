"""Writing to people: what a terminal may be shown, and numbers as they are read."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rich.console import Console

# As many columns as a table needs that nobody looks at.
_UNBOUNDED = 200


def console(*, to_stderr: bool = False) -> Console:
    """Where tables go: as wide as the terminal, or as wide as they need."""
    stream = sys.stderr if to_stderr else sys.stdout
    width = None if _is_terminal(stream) else _UNBOUNDED
    return Console(file=stream, width=width, highlight=False, soft_wrap=width is not None)


def is_colourful() -> bool:
    """Whether standard output is a terminal whose user wants colours."""
    return _is_terminal(sys.stdout) and "NO_COLOR" not in os.environ


def _is_terminal(stream: TextIO | None) -> bool:
    """Where a stream was closed before the start, Python has None."""
    return stream is not None and stream.isatty()


def printable(text: str) -> str:
    """Text from outside on one line, without what would command the terminal."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def readable(data: bytes) -> str:
    """Bytes as text where they are text."""
    return printable(data.decode(errors="backslashreplace"))


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
