"""Grammar of option values: durations, sizes, flags, numbers and ranges of numbers.

Values are text or Python values. URLs, keyword arguments, Spark options, the command line and the faults of an embedded
cluster all use these parsers, so that `2.5s`, `20mb`, `on` and `0,4-7` mean the same everywhere. A parser does not know
the name of its option. It raises ValueError with the expected form as its text, from which the caller builds
`name: expected ..., found ...`.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable
from datetime import timedelta
from fractions import Fraction

DURATION = "a duration such as 500ms, 2.5s, 15m or 1h"
SIZE = "a size in bytes such as 67108864, 64k, 20mb or 1g"
FLAG = "on or off (also true or false, yes or no, 1 or 0)"
NUMBER_RANGE = "numbers such as 0,4-7"

# Threads cannot wait for more than 2^63 ns (292 years). A limit of 31 years leaves room to add a clock's reading.
LONGEST_DURATION = 1_000_000_000
LARGEST_NUMBER = (1 << 63) - 1

# re.ASCII keeps other digits, blanks and case pairs out: U+0663 is a digit, and U+212A in lower case is k.
_FLAGS = re.ASCII | re.IGNORECASE
# The number of digits is limited, since converting a text of n digits takes time in the order of n^2.
_DURATION = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*(ms|s|m|h)?\s*", _FLAGS)
_SIZE = re.compile(r"\s*(\d{1,19})\s*([kmgt]?)b?\s*", _FLAGS)
_NUMBER = re.compile(r"\s*(\d{1,19})\s*", _FLAGS)
_RANGE = re.compile(r"\s*(\d{1,19})\s*(?:-\s*(\d{1,19})\s*)?", _FLAGS)

_SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_FLAG_WORDS = dict.fromkeys(("on", "true", "yes", "1"), True) | dict.fromkeys(("off", "false", "no", "0"), False)


def duration(value: object) -> float:
    """Return seconds from text such as `2.5` or `500ms`, a number of seconds, or a timedelta.

    Units are ms, s (default), m and h, in any case. Raises ValueError if the value is no duration, is negative or is
    longer than 1,000,000,000 s.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        # Fractions round once: 0.1s is the float 0.1 and not the nearest product of two floats.
        exact = Fraction(found[1]) * _SECONDS[(found[2] or "s").lower()]
        value = float(exact) if exact <= LONGEST_DURATION else math.inf
    # Not `value < 0`, which is false for NaN.
    elif isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(DURATION)
    if value > LONGEST_DURATION:
        raise ValueError(f"a duration of at most {LONGEST_DURATION} s")
    return float(value)


def size(value: object) -> int:
    """Return bytes from text such as `67108864`, `64k` or `20mb`, or from a whole number.

    Units are k, m, g and t, in any case and with or without b: powers of 1024. Raises ValueError if the value is no
    size, is negative or exceeds 2^63 - 1.
    """
    if isinstance(value, str) and (found := _SIZE.fullmatch(value)):
        count = int(found[1]) << _SHIFTS[found[2].lower()]
    elif isinstance(value, float) and value.is_integer():
        count = int(value)
    else:
        count = _index(value, SIZE)
    if count < 0:
        raise ValueError(SIZE)
    if count > LARGEST_NUMBER:
        raise ValueError(f"a size of at most {LARGEST_NUMBER} bytes")
    return count


def flag(value: object) -> bool:
    """Return a truth value from on, off, true, false, yes, no, 1 or 0, in any case, or from a bool.

    Raises ValueError for anything else.
    """
    if isinstance(value, bool):
        return value
    # Only ASCII: other letters may have one of these as their lower case.
    word = value if isinstance(value, str) and value.isascii() else str(_index(value, FLAG))
    if (found := _FLAG_WORDS.get(word.strip().lower())) is None:
        raise ValueError(FLAG)
    return found


def whole_number(value: object, least: int = 0, most: int = LARGEST_NUMBER) -> int:
    """Return a number from `least` to `most`, which may be given as decimal text.

    Raises ValueError if the value is no whole number or outside of these bounds.
    """
    expected = f"a number of at least {least}" if most == LARGEST_NUMBER else f"a number from {least} to {most}"
    if isinstance(value, str) and (found := _NUMBER.fullmatch(value)):
        number = int(found[1])
    else:
        number = _index(value, expected)
    if not least <= number <= most:
        raise ValueError(expected)
    return number


def number_range(value: object, most: int) -> tuple[int, ...]:
    """Return numbers from 0 to `most`, sorted and each once, from text such as `0,4-7`, one number, or several.

    Both ends of a range are included. Raises ValueError if there is no number at all, a number is above `most`, or the
    higher end of a range comes first.
    """
    found: set[int] = set()
    for piece in _pieces(value):
        if isinstance(piece, str):
            if (match := _RANGE.fullmatch(piece)) is None:
                raise ValueError(NUMBER_RANGE)
            first, last = int(match[1]), int(match[2] or match[1])
        else:
            first = last = _index(piece, NUMBER_RANGE)
        if last < first:
            raise ValueError(f"{NUMBER_RANGE}, with the lower number of a range first")
        # The bounds are checked before a range is expanded: 0-9999999999999 must not fill the memory.
        if not 0 <= first <= last <= most:
            raise ValueError(f"numbers from 0 to {most}")
        found.update(range(first, last + 1))
    if not found:
        raise ValueError(f"one or more {NUMBER_RANGE}")
    return tuple(sorted(found))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint at the closest known name, or nothing."""
    close = difflib.get_close_matches(name, [*known], n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _pieces(value: object) -> Iterable[object]:
    if isinstance(value, str):
        return value.split(",")
    # Bytes are numbers to Python; here they are text in the wrong type.
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview):
        return value
    return (value,)


def _index(value: object, expected: str) -> int:
    """Return a whole number of any integer type (NumPy's as well), but not a bool."""
    if isinstance(value, bool):
        raise ValueError(expected)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(expected) from None
