"""Errors as Spark shows them: short, and with a reason where a worker cannot import this package."""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dcp.errors import DcpError

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("dcp.spark")


class _StderrHandler(logging.Handler):
    """Write warnings to stderr where nobody configured logging, such as in Spark's Python processes.

    Spark copies their stderr to that of the driver or the executor.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and sys.stderr is not None:
            print(self.format(record), file=sys.stderr, flush=True)


_handler = _StderrHandler(logging.WARNING)
_handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
log.addHandler(_handler)


def short_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that Spark or its user calls: cut the traceback of errors that are raised on purpose.

    Spark prints the traceback of a Python process before the message, twice or more. The logger `dcp.spark` has it at
    the level DEBUG.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except DcpError as error:
            raise _cut(error) from None

    return call


def with_short_errors(rows: Iterator[T]) -> Iterator[T]:
    """Yield `rows`; cut the traceback of errors that are raised on purpose."""
    try:
        yield from rows
    except DcpError as error:
        raise _cut(error) from None


def _cut(error: DcpError) -> DcpError:
    log.debug("%s", error, exc_info=error)
    return error.with_traceback(None)


def portable(make: Callable[..., T], *args: Any) -> Callable[[], T]:
    """Return a function that returns `make(*args)`, and that can be unpickled where this package is not installed.

    It raises ModuleNotFoundError there, with what to do. Spark pickles it by value, since no module has its name.
    """
    content, driver = pickle.dumps((make, args)), sys.executable

    def load() -> T:
        # Only names of this function: anything of this module would import the package when it is unpickled.
        import pickle
        import sys

        try:
            maker, arguments = pickle.loads(content)
        except ModuleNotFoundError as error:
            missing = (error.name or "dcp").partition(".")[0]
            raise ModuleNotFoundError(
                f"{missing}: not installed for the Python of this Spark worker, {sys.executable}, but for that of the "
                f"driver, {driver}; set spark.pyspark.python or PYSPARK_PYTHON to a Python that has it on every node "
                "(for a local session, dcp.spark.session_options() does so)",
                name=missing,
            ) from None
        return maker(*arguments)  # type: ignore[no-any-return]

    return load
