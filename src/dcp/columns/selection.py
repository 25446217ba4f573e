"""Selection of rows before they are built: by event, by key, and by a condition on the document."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dcp import _codec
from dcp._codec import TestKind
from dcp.columns.document_text import Token, Tokens, tokens
from dcp.errors import UsageError

_DEEPEST = 64
_MOST_TESTS = 10_000
_MOST_EVENTS = 64
# JSON types of literals, as `_codec` has them.
_TEXT, _NUMBER, _TRUTH = _codec.JSON_TEXT, _codec.JSON_NUMBER, _codec.JSON_TRUTH
# Operators, and their mirror images for literals on the left.
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_SAME = {"==": "=", "<>": "!="}
_COMPARISONS = {
    "=": (TestKind.TEST_EQUAL, False),
    "!=": (TestKind.TEST_UNEQUAL, False),
    "<": (TestKind.TEST_LESS, False),
    "<=": (TestKind.TEST_LESS_OR_EQUAL, False),
    ">": (TestKind.TEST_LESS, True),
    ">=": (TestKind.TEST_LESS_OR_EQUAL, True),
}


@dataclass(frozen=True, slots=True)
class Operator:
    """Node of a condition: AND, OR and NOT of others, or the test of the value at a path.

    literal: text, number or truth value to compare with; None for IS NULL.
    swapped: True for literal < value instead of value < literal.
    """

    kind: TestKind
    operands: tuple[Operator, ...] = ()
    path: tuple[str, ...] = ()
    literal: str | int | float | bool | None = None
    swapped: bool = False


def compile_selection(
    names: Sequence[str],
    filtered: Collection[str],
    events: str | Iterable[str] | None,
    keys: str | bytes | Iterable[str | bytes] | None,
    where: str | None,
) -> _codec.Selection | None:
    """Return the plan of a selection for the loop; None if every row is selected.

    names: events of the plan, in its order. filtered: those that a selection may leave out.
    events: names of events to keep; None for all. keys: keys to keep, see `key_patterns`. where: a condition.
    """
    if events is None and keys is None and where is None:
        return None
    if len(names) > _MOST_EVENTS:
        raise UsageError(f"events: expected at most {_MOST_EVENTS}, found {len(names)}")
    wanted = None if events is None else [events] if isinstance(events, str) else list(events)
    known = [name for name in names if name in filtered]
    for name in wanted or ():
        if name not in known:
            raise UsageError(f"events: expected some of {', '.join(known)}, found {name!r}")
    kept = [i for i, name in enumerate(names) if wanted is None or name in wanted or name not in known]
    exact, patterns = key_patterns(keys) if keys is not None else (None, [])
    return _codec.Selection(kept, exact, patterns, _rows(parse_condition(where)) if where is not None else [])


# Keys.


def key_patterns(keys: str | bytes | Iterable[str | bytes]) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    r"""Return the keys without a star, sorted by length and bytes, and (bytes, stars) of those with one.

    A star stands for any bytes. A star or a backslash of a key itself follows a backslash: `\*`.
    """
    exact, patterns = set(), []
    for key in [keys] if isinstance(keys, (str, bytes)) else keys:
        if not key:
            raise UsageError(f"keys: expected keys such as 'user::7' or 'order::*', found {key!r:.100}")
        text, stars = _pattern(key.encode() if isinstance(key, str) else key, {b"*"[0]: 1})
        if any(stars):
            patterns.append((text, stars))
        else:
            exact.add(text)
    if not exact and not patterns:
        raise UsageError("keys: expected one or more keys, found none")
    return sorted(exact, key=lambda key: (len(key), key)), patterns


def _pattern(text: bytes, wild: dict[int, int]) -> tuple[bytes, bytes]:
    """Return the bytes of a pattern, and for each the number of the wild card that it is, or 0."""
    found, stars, at = bytearray(), bytearray(), 0
    while at < len(text):
        escaped = text[at] == b"\\"[0] and at + 1 < len(text) and text[at + 1] in (*wild, b"\\"[0])
        at += escaped
        found.append(text[at])
        stars.append(0 if escaped else wild.get(text[at], 0))
        at += 1
    return bytes(found), bytes(stars)


# Conditions.


def parse_condition(text: str) -> Operator:
    """Return the operators of a condition, such as "type = 'order' and customer.city in ('Berlin', 'Graz')".

    It has =, !=, <, <=, >, >=, IN, LIKE, IS NULL, AND, OR, NOT and parentheses. Each comparison has a path on one side
    and a text, a number, TRUE or FALSE on the other.

    Raises UsageError if it has anything else.
    """
    return _ConditionParser(tokens("where", text)).condition()


class _ConditionParser:
    """Recursive descent over a condition."""

    def __init__(self, found: Tokens) -> None:
        self._tokens = found
        self._depth = 0

    def condition(self) -> Operator:
        found = self._or()
        if self._tokens.peek().kind != "end":
            raise self._tokens.error(self._tokens.peek(), "AND, OR or the end")
        return found

    def _or(self) -> Operator:
        parts = [self._and()]
        while self._tokens.accept_word("or"):
            parts.append(self._and())
        return _joined(TestKind.TEST_OR, parts)

    def _and(self) -> Operator:
        parts = [self._not()]
        while self._tokens.accept_word("and"):
            parts.append(self._not())
        return _joined(TestKind.TEST_AND, parts)

    def _not(self) -> Operator:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UsageError(f"where: expected at most {_DEEPEST} levels, found more")
        if self._tokens.accept_word("not"):
            found = _negated(self._not())
        elif self._tokens.accept("("):
            found = self._or()
            self._tokens.expect(")")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> Operator:
        here = self._tokens.peek()
        if here.kind in ("string", "number", "whole") or self._is_truth(here):
            literal = self._literal()
            sign = _MIRRORED[self._sign()]
            return _comparison(sign, self._tokens.path(), literal)
        path = self._tokens.path()
        negative = self._tokens.accept_word("not") != ""
        word = self._tokens.accept_word("in", "like", *(() if negative else ("is",)))
        if word == "is":
            negative = self._tokens.accept_word("not") != ""
            self._tokens.expect_word("null")
            found = Operator(TestKind.TEST_NULL, path=path)
        elif word == "in":
            self._tokens.expect("(")
            parts = [_comparison("=", path, self._literal())]
            while self._tokens.accept(","):
                parts.append(_comparison("=", path, self._literal()))
            self._tokens.expect(")")
            found = _joined(TestKind.TEST_OR, parts)
        elif word == "like":
            found = Operator(TestKind.TEST_LIKE, path=path, literal=self._tokens.expect_kind("string").text)
        elif negative:
            raise self._tokens.error(self._tokens.peek(), "IN or LIKE")
        else:
            return _comparison(self._sign(), path, self._literal())
        return _negated(found) if negative else found

    def _sign(self) -> str:
        token = self._tokens.read()
        sign = _SAME.get(token.text, token.text)
        if token.kind != "sign" or sign not in _COMPARISONS:
            raise self._tokens.error(token, "=, !=, <, <=, >, >=, IN, LIKE or IS")
        return sign

    def _is_truth(self, token: Token) -> bool:
        return token.kind == "name" and token.text.lower() in ("true", "false") and self._tokens.peek(1).kind == "sign"

    def _literal(self) -> str | int | float | bool:
        token = self._tokens.read()
        if token.kind == "string":
            return token.text
        if token.kind == "whole":
            return int(token.text)
        if token.kind == "number":
            return float(token.text)
        if token.kind == "name" and token.text.lower() in ("true", "false"):
            return token.text.lower() == "true"
        raise self._tokens.error(token, "a text in quotes, a number, TRUE or FALSE")


def _comparison(sign: str, path: tuple[str, ...], literal: str | int | float | bool) -> Operator:
    kind, swapped = _COMPARISONS[sign]
    return Operator(kind, path=path, literal=literal, swapped=swapped)


def _joined(kind: TestKind, parts: list[Operator]) -> Operator:
    """Return a balanced tree of operators: evaluation goes as deep as the tree."""
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [Operator(kind, tuple(pair)) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def _negated(operator: Operator) -> Operator:
    return Operator(TestKind.TEST_NOT, (operator,))


def _rows(condition: Operator) -> list[dict[str, Any]]:
    """Return the operators as rows of the plan, the outermost first."""
    rows: list[dict[str, Any]] = []

    def add(operator: Operator) -> int:
        number = len(rows)
        if number >= _MOST_TESTS:
            raise UsageError(f"where: expected at most {_MOST_TESTS} comparisons, found more")
        rows.append({})
        left, right = ([add(operand) for operand in operator.operands] + [-1, -1])[:2]
        rows[number] = {"kind": operator.kind, "left": left, "right": right} | _leaf(operator)
        return number

    add(condition)
    return rows


def _leaf(operator: Operator) -> dict[str, Any]:
    literal, text = operator.literal, b""
    type = _TRUTH if isinstance(literal, bool) else _TEXT if isinstance(literal, str) else _NUMBER
    if isinstance(literal, str):
        text = literal.encode("utf-8", "surrogatepass")
        if operator.kind is TestKind.TEST_LIKE:
            text = b"".join(_pattern(text, {b"%"[0]: 1, b"_"[0]: 2}))
    numeric = isinstance(literal, (int, float)) and not isinstance(literal, bool)
    whole = isinstance(literal, int) and not isinstance(literal, bool) and -(1 << 63) <= literal < 1 << 63
    try:
        number = float(literal) if numeric and literal is not None else 0.0
    except OverflowError:
        raise UsageError("where: expected numbers of the range of double, found a larger one") from None
    return {
        "path": [name.encode("utf-8", "surrogatepass") for name in operator.path],
        "swapped": operator.swapped,
        "type": type,
        "text": text,
        "truth": literal is True,
        "is_whole": whole,
        "whole": literal if whole else 0,
        "number": number,
    }
