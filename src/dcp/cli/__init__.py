"""The command line: one module for each command."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point `dcp`. A user's mistake ends in a line that says what to do, never a traceback."""
    try:
        from dcp.cli.group import dcp
    except ModuleNotFoundError as missing:
        sys.exit(f"dcp: the command line needs {missing.name}: pip install 'dcp-arrow[cli]'")
    dcp()
