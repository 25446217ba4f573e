"""Messages of the client on standard error, for commands that follow a bucket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from dcp.printable import printable

C = TypeVar("C", bound=Callable[..., Any])

_LOGGERS = [logging.getLogger(name) for name in ("dcp.client", "dcp.sync")]


class _StandardError(logging.Handler):
    """Prints each message on one line, after its level."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(printable(f"{record.levelname.lower()}: {record.getMessage()}"), err=True)


def log_options(command: C) -> C:
    """Add the options `--verbose` and `--quiet` to a command."""
    quiet = click.option("--quiet", "-q", is_flag=True, help="Print no warnings on standard error.")
    verbose = click.option(
        "--verbose", "-v", is_flag=True, help="Print on standard error what the client does, not only warnings."
    )
    return verbose(quiet(command))


@contextmanager
def client_log(*, verbose: bool, quiet: bool) -> Iterator[None]:
    """Print warnings of the client on standard error: lost connections, refusals, rollbacks, and what stands still.

    verbose: print informational messages as well. quiet: print none.
    """
    if verbose and quiet:
        raise click.UsageError("--verbose and --quiet: expected one of them, found both")
    if quiet:
        yield
        return
    handler, before = _StandardError(), [logger.level for logger in _LOGGERS]
    for logger in _LOGGERS:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(_LOGGERS, before, strict=True):
            logger.setLevel(level)
            logger.removeHandler(handler)
