"""Types of command-line arguments: the values of options in the grammar of URLs and Spark, and files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from dcp import value_grammar


class _Value(click.ParamType):  # type: ignore[type-arg]
    """A value that one of the parsers in `dcp.value_grammar` reads."""

    def __init__(self, name: str, parse: Callable[[object], float | int], least: float = 0) -> None:
        self.name = name
        self._parse, self._least = parse, least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value. Raises click.BadParameter for any other text."""
        try:
            found = self._parse(value)
        except ValueError as expected:
            self.fail(f"expected {expected}, found {value!r}", param, ctx)
        if found < self._least:
            self.fail(f"expected at least {self._least:g}, found {value!r}", param, ctx)
        return found


# Seconds, at least 0.1. Used for intervals, where less would only cost CPU.
INTERVAL = _Value("duration", value_grammar.duration, 0.1)
# Bytes, at least 1.
SIZE = _Value("size", value_grammar.size, 1)
# Bytes, also none.
SIZE_OR_ZERO = _Value("size", value_grammar.size)


class WrongValue(click.ClickException):
    """Value of an argument that is wrong whatever the cluster is: exit code 2, as for those that click refuses."""

    exit_code = 2


class LocalPath(click.Path):
    """Path of a local file or directory. A URL in its place is refused without showing it: it may have a password."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises click.BadParameter for a URL."""
        if "://" in str(value):
            self.fail("expected a local path, found a URL; check the order of the arguments", param, ctx)
        return super().convert(value, param, ctx)


class LocalFile(click.File):
    """Local file that is opened. A URL in its place is refused without showing it: it may have a password."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the open file. Raises click.BadParameter for a URL."""
        if isinstance(value, str) and "://" in value:
            self.fail("expected a local file, found a URL; check the order of the arguments", param, ctx)
        return super().convert(value, param, ctx)
