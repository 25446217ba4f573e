"""Reader of untrusted JSON: every value knows its path, so that errors can name it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from string import hexdigits
from typing import Any, NoReturn

from dcp.errors import DcpError
from dcp.printable import printable

MAX_U64 = (1 << 64) - 1
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class JsonReader:
    """One value of a JSON document.

    value: as json.loads returns it.
    path: path to the value, for messages.
    error: makes the exception that a wrong value raises.
    """

    value: Any
    path: str
    error: Callable[[str], DcpError] = field(repr=False)

    @classmethod
    def parse(cls, text: str | bytes, name: str, error: Callable[[str], DcpError]) -> JsonReader:
        """Return the root of a document. `name` is its path in messages. Raises `error` if the text is not JSON."""
        if not isinstance(text, str | bytes):
            raise error(f"{name}: expected JSON as text or bytes, found a {type(text).__name__}")
        try:
            # Some editors begin a file with a byte order mark.
            text = text.removeprefix("\ufeff") if isinstance(text, str) else text
            value = json.loads(text, object_pairs_hook=_unique_members, parse_constant=_refuse_constant)
        except json.JSONDecodeError as wrong:
            raise error(f"{name}: line {wrong.lineno}, column {wrong.colno}: {wrong.msg}") from None
        except (ValueError, RecursionError) as wrong:
            raise error(f"{name}: expected JSON: {wrong}") from None
        return cls(value, name, error)

    def refuse(self, expected: str) -> NoReturn:
        """Raise `error` with the path, what was expected, and what was found."""
        found = {dict: "an object", list: "a list", type(None): "null"}.get(type(self.value)) or repr(self.value)
        raise self.error(f"{self.path}: expected {expected}, found {_short(found)}")

    def members(self, *known: str) -> dict[str, JsonReader]:
        """Return the members of an object. With names given, no others are allowed."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        for name in self.value:
            if known and name not in known:
                raise self.error(f"{self.path}: expected {', '.join(known)}, found a member {_short(repr(name))}")
        return {
            name: JsonReader(value, f"{self.path}.{_short(name)}", self.error) for name, value in self.value.items()
        }

    def get(self, name: str) -> JsonReader | None:
        """Return a member of an object, or None if it is absent or null."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        value = self.value.get(name)
        return None if value is None else JsonReader(value, f"{self.path}.{name}", self.error)

    def __getitem__(self, name: str) -> JsonReader:
        found = self.get(name)
        if found is None:
            raise self.error(f"{self.path}: expected a member {name!r}, found none")
        return found

    def __iter__(self) -> Iterator[JsonReader]:
        if not isinstance(self.value, list):
            self.refuse("a list")
        return (JsonReader(value, f"{self.path}[{index}]", self.error) for index, value in enumerate(self.value))

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self.value, str):
            self.refuse("text")
        return str(self.value)

    def name(self) -> str:
        """Return a string that is shown to people, with control characters escaped."""
        return printable(self.text())

    def hexadecimal(self) -> int:
        """Return the number in a string of hexadecimal digits, of at most 64 bits."""
        text = self.text()
        if not 0 < len(text) <= 16 or not set(text) <= set(hexdigits):
            self.refuse("hexadecimal digits")
        return int(text, 16)

    def number(self, most: int = MAX_U64, *, signed: bool = False) -> int:
        """Return a whole number from 0 to `most`, given as a number or as decimal text.

        signed: True if a language without unsigned numbers wrote it, so that -1 stands for 2^64 - 1.
        """
        number = self.value
        if isinstance(number, str) and number.isascii() and number.isdecimal() and len(number) <= 20:
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int):
            self.refuse(f"a whole number from 0 to {most}")
        if signed and -1 << 63 <= number < 0:
            number += 1 << 64
        if not 0 <= number <= most:
            self.refuse(f"a whole number from 0 to {most}")
        return number


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"member {_short(repr(twice))} is there twice")
    return members


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
