"""Reads the docstrings of the package for the reference: lines `name: text` become parameters or attributes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import griffe

# One or several names, as "start, end: window of the snapshot".
ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


class Parameters(griffe.Extension):
    """Turns the entries of docstrings into sections."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Parse the docstring of an object."""
        if isinstance(obj, griffe.Class) and "__new__" in obj.members and "__init__" not in obj.members:
            obj.members["__init__"] = obj.members["__new__"]
        if obj.docstring and isinstance(obj, griffe.Class | griffe.Function):
            # A cached property: what is set first is what is shown.
            obj.docstring.__dict__["parsed"] = list(sections(obj))


def sections(obj: griffe.Class | griffe.Function) -> Iterator[griffe.DocstringSection]:
    """Yield the parts of a docstring: text, and lists of parameters or attributes."""
    assert obj.docstring
    parameters = {one.name: one for one in obj.parameters}
    known = {*parameters, *(obj.members if isinstance(obj, griffe.Class) else ())}
    title = None
    for text, found in blocks(inspect.cleandoc(obj.docstring.value), known):
        if text:
            yield griffe.DocstringSectionText(text)
        if parameters.keys() & {name for names, _ in found for name in names}:
            yield griffe.DocstringSectionParameters([parameter(parameters, *one) for one in found], title)
            title = "Further parameters:"
        elif found:
            yield griffe.DocstringSectionAttributes(
                [griffe.DocstringAttribute(", ".join(names), description=about) for names, about in found]
            )


def blocks(text: str, known: set[str]) -> Iterator[tuple[str, list[tuple[list[str], str]]]]:
    """Yield text, and the entries after it."""
    before: list[str] = []
    for paragraph in re.split(r"\n\n+", text):
        first = ENTRY.match(paragraph)
        if first and known & {*first[1].split(", ")}:
            yield "\n\n".join(before), list(entries(paragraph))
            before = []
        else:
            before.append(paragraph)
    yield "\n\n".join(before), []


def entries(paragraph: str) -> Iterator[tuple[list[str], str]]:
    """Yield names and description of each entry."""
    for entry in re.split(r"\n(?=\w+(?:, \w+)*: )", paragraph):
        found = ENTRY.match(" ".join(entry.split()))
        assert found
        yield found[1].split(", "), found[2]


def parameter(known: dict[str, griffe.Parameter], names: list[str], about: str) -> griffe.DocstringParameter:
    """Return the entry of one or several parameters, with the type and the default of the first."""
    # Errors describe what they inherit, too.
    one = known.get(names[0])
    # Options whose default the text names.
    shown = one.default if one and one.default != "None" else None
    return griffe.DocstringParameter(
        ", ".join(names),
        description=about,
        annotation=one.annotation if one else None,
        value=shown,
    )
