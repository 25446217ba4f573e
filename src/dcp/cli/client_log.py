"""Messages of the client on standard error, for commands that follow a bucket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from dcp.printable import printable

C = TypeVar("C", bound=Callable[..., Any])

_LOGGER = logging.getLogger("dcp.client")


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
    handler, before = _StandardError(), _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        _LOGGER.setLevel(before)
        _LOGGER.removeHandler(handler)
