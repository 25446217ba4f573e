"""Limits of what is read from JSON texts that others wrote: each value with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dcp.errors import CheckpointError
from dcp.json_reader import JsonReader

MAX = (1 << 64) - 1


def reader(value: Any) -> JsonReader:
    return JsonReader(json.loads(json.dumps(value)), "here", CheckpointError)


@pytest.mark.parametrize(("value", "number"), [("0", 0), ("f" * 16, MAX), ("0" * 16, 0), ("aB", 0xAB)])
def test_hexadecimal_numbers_have_up_to_64_bits(value: str, number: int) -> None:
    assert reader(value).hexadecimal() == number


@pytest.mark.parametrize("value", ["", "1" + "0" * 16, "0x1", "-1", " 1", "g", "١", 7, None])
def test_what_is_no_hexadecimal_number_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"^here: expected (hexadecimal digits|text)"):
        reader(value).hexadecimal()


@pytest.mark.parametrize(
    ("value", "most", "signed", "number"),
    [
        (0, 0, False, 0),
        (7, 7, False, 7),
        (MAX, MAX, False, MAX),
        (str(MAX), MAX, False, MAX),
        ("0007", 7, False, 7),
        ("0" * 19 + "1", 7, False, 1),
        (-1, MAX, True, MAX),
        (-(1 << 63), MAX, True, 1 << 63),
        ((1 << 63) - 1, MAX, True, (1 << 63) - 1),
    ],
)
def test_numbers_are_read_up_to_the_largest(value: Any, most: int, signed: bool, number: int) -> None:
    assert reader(value).number(most, signed=signed) == number


@pytest.mark.parametrize(
    ("value", "most", "signed"),
    [
        (8, 7, False),
        (-1, 7, False),
        (MAX + 1, MAX, False),
        ("8", 7, False),
        ("-1", 7, True),
        ("0" * 20 + "1", 7, False),
        ("²", 7, False),
        ("", 7, False),
        (True, 7, False),
        (1.0, 7, False),
        (None, 7, False),
        (-1, 7, True),
        (-(1 << 63) - 1, MAX, True),
    ],
)
def test_what_is_no_such_number_is_refused(value: Any, most: int, signed: bool) -> None:
    with pytest.raises(CheckpointError, match=f"^here: expected a whole number from 0 to {most}, found "):
        reader(value).number(most, signed=signed)


def test_a_member_that_is_null_is_absent() -> None:
    found = reader({"a": None, "b": [1]})
    assert found.get("a") is None
    assert [each.number() for each in found["b"]] == [1]
    with pytest.raises(CheckpointError, match=r"^here: expected a member 'a', found none"):
        found["a"]
    with pytest.raises(CheckpointError, match=r"^here\.b: expected an object, found "):
        found["b"].get("c")
    with pytest.raises(CheckpointError, match=r"^here: expected a list, found "):
        iter(found)


def test_the_member_that_is_there_twice_is_named() -> None:
    with pytest.raises(CheckpointError, match="member 'b' is there twice"):
        JsonReader.parse('{"a": 1, "b": 2, "c": 3, "b": 2}', "state", CheckpointError)
