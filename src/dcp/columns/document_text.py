"""Tokens of the texts that describe documents: schemas and conditions.

A path is names with dots between them. Names that are no words stand in backticks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dcp.errors import UsageError

_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<name>[^\W\d]\w*)
  | `(?P<quoted>(?:[^`]|``)+)`
  | (?P<string>'(?:[^']|'')*'|"(?:[^"]|"")*")
  | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
  | (?P<sign><=|>=|<>|!=|==|[<>=(),.:])
    """,
    re.VERBOSE,
)
_LONGEST = 100_000


class Token(NamedTuple):
    """A token: name, quoted, string, number, whole, sign or end; its text, unquoted; and where it begins."""

    kind: str
    text: str
    at: int


class Tokens:
    """Tokens of a text, read from left to right. Errors name the text, the place and what was expected."""

    def __init__(self, label: str, found: list[Token]) -> None:
        self._label, self._found = label, found
        self._next = 0

    def peek(self, ahead: int = 0) -> Token:
        """Return a token further on, without reading it."""
        return self._found[min(self._next + ahead, len(self._found) - 1)]

    def read(self) -> Token:
        """Return the next token."""
        token = self.peek()
        self._next += 1
        return token

    def accept(self, sign: str) -> bool:
        """Read a sign, if it is next."""
        here = self.peek()
        if here.kind == "sign" and here.text == sign:
            self._next += 1
            return True
        return False

    def accept_word(self, *words: str) -> str:
        """Read one of some words in any case, if it is next. Return it in lower case, else nothing."""
        here = self.peek()
        if here.kind == "name" and here.text.lower() in words:
            self._next += 1
            return here.text.lower()
        return ""

    def expect(self, sign: str) -> None:
        """Read a sign."""
        if not self.accept(sign):
            raise self.error(self.peek(), f"{sign!r}")

    def expect_word(self, word: str) -> None:
        """Read a word in any case."""
        if not self.accept_word(word):
            raise self.error(self.peek(), word.upper())

    def expect_kind(self, *kinds: str) -> Token:
        """Read a token of one of some kinds. A whole number is a number, too."""
        here = self.peek()
        if here.kind not in kinds and not (here.kind == "whole" and "number" in kinds):
            raise self.error(here, f"a {' or a '.join(kinds)}")
        self._next += 1
        return here

    def expect_end(self) -> None:
        """Check that nothing is left."""
        if self.peek().kind != "end":
            raise self.error(self.peek(), "the end, or ','")

    def name(self) -> str:
        """Read a name, quoted or not."""
        here = self.peek()
        if here.kind not in ("name", "quoted"):
            raise self.error(here, "a name; quote others than words by backticks")
        self._next += 1
        return here.text

    def path(self) -> tuple[str, ...]:
        """Read names with dots between them."""
        names = [self.name()]
        while self.accept("."):
            names.append(self.name())
        return tuple(names)

    def error(self, token: Token, expected: str, hint: str = "") -> UsageError:
        """Return the error for a token that is not what was expected."""
        found = repr(token.text) if token.kind != "end" else "the end"
        return UsageError(f"{self._label}: expected {expected}, found {found} at character {token.at + 1}{hint}")


def tokens(label: str, text: str) -> Tokens:
    """Return the tokens of a text. Raises UsageError under the name `label` for what is none."""
    if len(text) > _LONGEST:
        raise UsageError(f"{label}: expected at most {_LONGEST:,} characters, found {len(text):,}")
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise UsageError(
                f"{label}: expected a name, number, text or operator, found {text[at]!r} at character {at + 1}"
            )
        kind, body = match.lastgroup, match[match.lastgroup]
        if kind == "quoted":
            body = body.replace("``", "`")
        elif kind == "string":
            body = body[1:-1].replace(body[0] * 2, body[0])
        elif kind == "number" and re.fullmatch(r"-?\d+", body):
            kind = "whole"
        if kind != "space":
            found.append(Token(kind, body, at))
        at = match.end()
    return Tokens(label, [*found, Token("end", "", len(text))])


def quoted_path(names: Iterable[str]) -> str:
    """Return a path as text: names with dots, those that are no words in backticks."""
    return ".".join(name if _PLAIN_NAME.fullmatch(name) else "`" + name.replace("`", "``") + "`" for name in names)
