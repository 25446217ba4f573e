"""The grammar of option values: every form, every bound, and texts that only look like one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.value_grammar import (
    DURATION,
    FLAG,
    LARGEST_NUMBER,
    LONGEST_DURATION,
    NUMBER_RANGE,
    SIZE,
    duration,
    flag,
    number_range,
    size,
    whole_number,
)

ARABIC_THREE, KELVIN, LONG_S, NO_BREAK_SPACE = "\u0663", "\u212a", "\u017f", "\u00a0"

ANYTHING: st.SearchStrategy[object] = st.one_of(
    st.text(), st.integers(), st.floats(), st.binary(), st.none(), st.lists(st.text())
)


def vbuckets(value: object) -> tuple[int, ...]:
    """Parse a range of the vbuckets of a bucket of 1024."""
    return number_range(value, 1023)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("2.5", 2.5),
        ("0.1s", 0.1),
        ("500ms", 0.5),
        ("1.1ms", 0.0011),
        ("30s", 30.0),
        ("15m", 900.0),
        ("1h", 3600.0),
        ("1 H", 3600.0),
        (" 500 MS\n", 0.5),
        ("1000000000", 1e9),
        (3, 3.0),
        (0, 0.0),
        (0.25, 0.25),
        (timedelta(milliseconds=1500), 1.5),
    ],
)
def test_a_duration_is_read(value: object, seconds: float) -> None:
    found = duration(value)
    assert found == seconds
    assert isinstance(found, float)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            " ",
            "s",
            "-1",
            "+1",
            "1e3",
            ".5",
            "5.",
            "1.2.3",
            "1,5",
            "0x10",
            "1_000",
            "5d",
            "5 s s",
            "inf",
            "nan",
            "1\0",
        ),
        *(ARABIC_THREE, "5" + LONG_S, "5" + NO_BREAK_SPACE, "1" * 19, "0." + "1" * 19),
        *(True, None, [], b"5", -1, -0.5, math.nan, timedelta(seconds=-1)),
    ],
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(DURATION)}$"):
        duration(value)


@pytest.mark.parametrize("value", ["1000000001", "999999999999h", 1e300, math.inf, 10**400, timedelta.max])
def test_a_duration_has_a_bound(value: object) -> None:
    with pytest.raises(ValueError, match=f"^a duration of at most {LONGEST_DURATION} s$"):
        duration(value)


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("0", 0),
        ("67108864", 1 << 26),
        ("100b", 100),
        ("64k", 64 << 10),
        ("64KB", 64 << 10),
        ("20m", 20 << 20),
        ("20 mb", 20 << 20),
        ("1g", 1 << 30),
        ("1Gb", 1 << 30),
        ("2t", 2 << 40),
        ("9223372036854775807", LARGEST_NUMBER),
        (5, 5),
        (1e6, 1_000_000),
    ],
)
def test_a_size_is_read(value: object, count: int) -> None:
    found = size(value)
    assert found == count
    assert isinstance(found, int)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "m",
            "-1",
            "+1",
            "1.5g",
            "1e6",
            "1_000",
            "5x",
            "5mm",
            "5bk",
            "1 2",
            "nan",
            ARABIC_THREE,
            "5" + KELVIN,
            "1" * 20,
        ),
        *(True, None, [], b"5", -1, -1.0, 2.5, math.nan, math.inf),
    ],
)
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(SIZE)}$"):
        size(value)


@pytest.mark.parametrize("value", ["9223372036854775808", "9999999999999999999t", 10**400, 1e300])
def test_a_size_has_a_bound(value: object) -> None:
    with pytest.raises(ValueError, match=f"^a size of at most {LARGEST_NUMBER} bytes$"):
        size(value)


@pytest.mark.parametrize(
    ("on", "off"),
    [("on", "off"), ("true", "false"), ("YES", "No"), ("1", "0"), (" On ", "off\n"), (True, False), (1, 0)],
)
def test_a_flag_is_read(on: object, off: object) -> None:
    assert flag(on) is True
    assert flag(off) is False


@pytest.mark.parametrize(
    "value", ["", "t", "2", "01", "y", "none", "ye" + LONG_S, ARABIC_THREE, 2, -1, 1.0, None, [], b"on"]
)
def test_what_is_no_flag_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(FLAG)}$"):
        flag(value)


@pytest.mark.parametrize(("value", "number"), [("0", 0), (" 12 ", 12), ("007", 7), (5, 5)])
def test_a_number_is_read(value: object, number: int) -> None:
    assert whole_number(value) == number


@pytest.mark.parametrize(
    "value", ["", "-1", "1.0", "1e3", "1_000", "0x1", ARABIC_THREE, "1" * 20, True, 1.0, None, -1, 1 << 63]
)
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^a number of at least 0$"):
        whole_number(value)


def test_a_number_has_the_bounds_that_are_asked_for() -> None:
    assert [whole_number(text, 1, 3) for text in ("1", "3")] == [1, 3]
    for value in ("0", "4", 0, 4):
        with pytest.raises(ValueError, match=r"^a number from 1 to 3$"):
            whole_number(value, 1, 3)
    with pytest.raises(ValueError, match=r"^a number of at least 1$"):
        whole_number(0, 1)


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        ("0", (0,)),
        ("0,4-7", (0, 4, 5, 6, 7)),
        (" 4 - 5 , 0 ", (0, 4, 5)),
        ("7,0-1,1-2,7", (0, 1, 2, 7)),
        ("1023-1023", (1023,)),
        (3, (3,)),
        ([5, 1, 5], (1, 5)),
        ({2}, (2,)),
        (range(2), (0, 1)),
        (["3", "0-1"], (0, 1, 3)),
    ],
)
def test_a_range_of_numbers_is_read(value: object, numbers: tuple[int, ...]) -> None:
    assert vbuckets(value) == numbers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((text, NUMBER_RANGE) for text in ("", ",", "1,", "1--2", "-1", "1-", "1-2-3", "x", "3-x", "1;2", "1" * 20)),
        *((text, NUMBER_RANGE) for text in (ARABIC_THREE, f"0-{ARABIC_THREE}", "1" + NO_BREAK_SPACE)),
        *((value, NUMBER_RANGE) for value in (None, True, 1.0, math.nan, b"01", [True], [None], ["x"], [b"1"])),
        ("7-4", f"{NUMBER_RANGE}, with the lower number of a range first"),
        *((value, "numbers from 0 to 1023") for value in ("1024", "0-1024", "0-9999999999999999999", -1, [1024])),
        *((value, f"one or more {NUMBER_RANGE}") for value in ((), range(0))),
    ],
)
def test_what_is_no_range_of_numbers_is_refused(value: object, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        vbuckets(value)


@given(st.sets(st.integers(0, 1023), min_size=1))
def test_a_range_is_what_was_written(numbers: set[int]) -> None:
    assert set(vbuckets(",".join(map(str, numbers)))) == numbers


@pytest.mark.parametrize("parser", [duration, size, flag, whole_number, vbuckets])
@given(value=ANYTHING)
def test_nothing_else_is_raised(parser: Callable[[object], Any], value: object) -> None:
    try:
        parser(value)
    except ValueError as error:
        assert str(error)
