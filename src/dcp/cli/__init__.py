"""The command line `dcp`: one module for each command."""

from __future__ import annotations

import io
import signal
import sys

# Exit code of a process that SIGINT ended: 128 + 2, as shells report it.
INTERRUPTED = 130


def main() -> None:
    """Run the command line. It is the entry point `dcp`, and ends with an exit code and never with a traceback."""
    _end_at_interrupt()
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
        sys.exit(INTERRUPTED)
    finally:
        _end_at_interrupt()


def _end_at_interrupt() -> None:
    """Let Ctrl-C end the process without a traceback, while modules are imported and while Python shuts down."""
    # Shells start background jobs with SIGINT ignored, which must stay so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_at_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, so that a command can clean up."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
