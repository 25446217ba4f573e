"""Types of command-line options, with the grammar that options of URLs and of Spark have."""

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
