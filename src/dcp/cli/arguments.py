"""Types of command-line arguments: the values of options in the grammar of URLs and Spark, and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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


_BUCKETS = ("couchbase://", "couchbases://")


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


class OutputPath(click.ParamType):  # type: ignore[type-arg]
    """Path of a local directory, or URL of one elsewhere. A URL of a bucket is refused without showing it."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text. Raises click.BadParameter for a URL of a bucket, or a path of a file."""
        if str(value).startswith(_BUCKETS):
            self.fail("expected a directory, found the URL of a bucket; check the order of the arguments", param, ctx)
        try:
            urlsplit(str(value))
        except ValueError:
            self.fail("expected a path or a URL, found a malformed URL", param, ctx)
        if Path(value).is_file():
            self.fail(f"Directory {value!r} is a file.", param, ctx)
        return str(value)


class TargetName(click.ParamType):  # type: ignore[type-arg]
    """Path or URL of a table. A URL of a bucket is refused without showing it."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text. Raises click.BadParameter for a URL of a bucket."""
        if str(value).startswith(_BUCKETS):
            self.fail("expected a table, found the URL of a bucket; check the order of the arguments", param, ctx)
        return str(value)


class LocalFile(click.File):
    """Local file that is opened. A URL in its place is refused without showing it: it may have a password."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the open file. Raises click.BadParameter for a URL."""
        if isinstance(value, str) and "://" in value:
            self.fail("expected a local file, found a URL; check the order of the arguments", param, ctx)
        return super().convert(value, param, ctx)
