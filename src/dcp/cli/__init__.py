"""The command line: one module for each command."""

from __future__ import annotations

import io
import sys

# What shells say of a program that SIGINT ended.
INTERRUPTED = 130


def main() -> None:
    """The entry point `dcp`. A user's mistake ends in a line that says what to do, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A locale, or a pipe in Windows, may have no letters for what is shown.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from dcp.cli.group import dcp

        dcp()
    except ModuleNotFoundError as missing:
        sys.exit(f"dcp: the command line needs {missing.name}: pip install 'dcp-arrow[cli]'")
    except KeyboardInterrupt:
        # While it was still being imported.
        sys.exit(INTERRUPTED)
