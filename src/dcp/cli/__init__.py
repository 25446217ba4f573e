"""The command line `dcp`: one module for each command."""

from __future__ import annotations

import io
import sys

# Exit code of a process that SIGINT ended: 128 + 2, as shells report it.
INTERRUPTED = 130


def main() -> None:
    """Run the command line. It is the entry point `dcp`, and ends with an exit code and never with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # The encoding of a locale, or of a pipe on Windows, may lack characters such as the check mark of `doctor`.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        from dcp.cli.commands import dcp

        dcp()
    except ModuleNotFoundError as missing:
        sys.exit(f"dcp: the command line needs {missing.name}: pip install 'dcp-arrow[cli]'")
    except KeyboardInterrupt:
        # Ctrl-C during the import. Later ones are handled by the command group.
        sys.exit(INTERRUPTED)
