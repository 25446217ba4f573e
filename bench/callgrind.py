"""Instructions that callgrind counted inside the extension, and in the C library on its behalf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"(c?(?:ob|fn|fl|fi|fe))=\((\d+)\)(?: (.*))?$")
_COST = re.compile(r"(?:[+-]?\d+|\*) (\d+)$")
_EXTENSION = re.compile(r"/_codec\b[^/]*$")
# What Python code costs that the extension calls is not the extension's.
_LIBRARY = re.compile(r"/(libc|libm|ld-linux)[^/]*$")


def instructions(path: Path) -> int:
    """Those of a run: `path` is what callgrind wrote."""
    counted = 0
    for caller, called, cost in _costs(path.read_text("utf-8").splitlines()):
        if _EXTENSION.search(caller) and (called is None or _LIBRARY.search(called)):
            counted += cost
    return counted


def _costs(lines: list[str]) -> Iterator[tuple[str, str | None, int]]:
    """The object that runs, the object that it calls there if it does, and the cost: with a call, all of the call's."""
    names: dict[str, str] = {}
    caller, called, is_call = "", "", False
    for line in lines:
        if name := _NAME.match(line):
            if name[1] in ("ob", "cob"):
                # A name is written out once, behind its number.
                names[name[2]] = name[3] or names[name[2]]
            if name[1] == "ob":
                caller = called = names[name[2]]
            elif name[1] == "cob":
                called = names[name[2]]
        elif line.startswith("calls="):
            is_call = True
        elif cost := _COST.match(line):
            yield caller, called if is_call else None, int(cost[1])
            called, is_call = caller, False
