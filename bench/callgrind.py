"""Instruction counts of callgrind: those of the extension, and of the C library when the extension calls it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"(c?(?:ob|fn|fl|fi|fe))=\((\d+)\)(?: (.*))?$")
_COST = re.compile(r"(?:[+-]?\d+|\*) (\d+)$")
_EXTENSION = re.compile(r"/_codec\b[^/]*$")
# Calls into Python itself are not counted: their cost does not depend on the extension.
_LIBRARY = re.compile(r"/(libc|libm|ld-linux)[^/]*$")


def instructions(path: Path) -> int:
    """Return the number of instructions in a file of callgrind."""
    counted = 0
    for caller, called, cost in _costs(path.read_text("utf-8").splitlines()):
        if _EXTENSION.search(caller) and (called is None or _LIBRARY.search(called)):
            counted += cost
    return counted


def _costs(lines: list[str]) -> Iterator[tuple[str, str | None, int]]:
    """Yield the calling object, the called one or None, and the cost, for a call with all that it calls."""
    names: dict[str, str] = {}
    caller, called, is_call = "", "", False
    for line in lines:
        if name := _NAME.match(line):
            if name[1] in ("ob", "cob"):
                # callgrind writes a name once, after its number, and later only the number.
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
