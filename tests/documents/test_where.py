"""Conditions on documents keep the rows for which they are true, and what cannot be told is kept, too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dcp
from dcp.columns.selection import compile_selection
from tests.documents.frames import deletion, mutation

ORDER: dict[str, Any] = {
    "type": "order",
    "total": 12.5,
    "id": 9007199254740993,
    "paid": True,
    "note": None,
    "customer": {"city": "Graz", "tags": ["a"], "x y": 1},
    "ö": "ü",
}


def is_kept(where: str, document: object = ORDER) -> bool:
    decoder = dcp.Decoder(columns=["key"], where=where)
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    decoder.feed(mutation(text))
    batch = decoder.take()
    assert len(batch) + batch.unselected_rows == 1
    # Passed over or not, the stream has moved.
    assert [last for *_, last in batch.last_seqnos] in ([1], [])
    return len(batch) == 1


@pytest.mark.parametrize(
    "where",
    [
        "type = 'order'",
        'type == "order"',
        "'order' = type",
        "type != 'invoice'",
        "type <> 'invoice'",
        "total > 12",
        "total >= 12.5",
        "12.5 <= total",
        "total < 1e2",
        "id = 9007199254740993",
        "id != 9007199254740992",
        "id > 9007199254740992",
        "paid = true",
        "true = paid",
        "paid > false",
        "type > 'apple'",
        "customer.city in ('Berlin', 'Graz')",
        "customer.city not in ('Berlin')",
        "customer.`x y` = 1",
        "ö like 'ü'",
        "ö like '_'",
        "type like 'or%'",
        "type like '%der'",
        "type like 'o_d%r'",
        "type not like 'x%'",
        "note is null",
        "nothing is null",
        "customer.nothing.below is null",
        "type.below is null",
        "total is not null",
        "type = 'order' and total > 100 or paid = true",
        "(type = 'x' or total = 12.5) and not paid = false",
        "NOT (type = 'x') AND Type IS NULL",
        # Values of different types are not equal.
        "type != 5",
        "customer != 'Graz'",
    ],
)
def test_a_row_is_kept_where_the_condition_is_true(where: str) -> None:
    assert is_kept(where)
    assert not is_kept(f"not ({where})")


@pytest.mark.parametrize(
    "where",
    [
        "note = 1",
        "note != 1",
        "nothing < 5",
        "nothing in ('a')",
        "nothing like '%'",
        # Values of different types are in no order.
        "type < 5",
        "total > 'a'",
        "customer <= true",
        "nothing = 1 and paid = true",
        "nothing = 1 or paid = false",
        "type.below = 'x'",
    ],
)
def test_a_row_is_not_kept_where_the_condition_is_unknown(where: str) -> None:
    assert not is_kept(where)
    assert not is_kept(f"not ({where})")


def test_the_last_of_several_members_counts() -> None:
    assert is_kept("a.b = 2", b'{"a":{"b":1},"a":{"b":3,"b":2}}')


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("%", "", True),
        ("_", "", False),
        ("%a%b%", "xxaxxbxx", True),
        ("%a%b%", "xxbxxaxx", False),
        (r"100\%", "100%", True),
        (r"100\%", "100x", False),
        (r"a\_b", "a_b", True),
        (r"a\_b", "axb", False),
        ("%%_%", "é", True),
        ("a", "A", False),
    ],
)
def test_like_knows_its_wild_cards(pattern: str, text: str, matches: bool) -> None:
    assert is_kept(f"v like '{pattern}'", {"v": text}) is matches


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "where: expected a name; quote others than words by backticks, found the end at character 1"),
        ("type", "where: expected =, !=, <, <=, >, >=, IN, LIKE or IS, found 'the end'"),
        ("type = ", "where: expected a text in quotes, a number, TRUE or FALSE, found the end at character 8"),
        ("type = other", "where: expected a text in quotes, a number, TRUE or FALSE, found 'other' at character 8"),
        ("type = 'x' total = 1", "where: expected AND, OR or the end, found 'total' at character 12"),
        ("type in ()", "where: expected a text in quotes, a number, TRUE or FALSE, found ')' at character 10"),
        ("type not = 1", "where: expected IN or LIKE, found '=' at character 10"),
        ("a ; b", "where: expected a name, number, text or operator, found ';' at character 3"),
        ("(" * 100 + "a = 1" + ")" * 100, "where: expected at most 64 levels, found more"),
        ("a = 1" + "0" * 400, "where: expected numbers of the range of double, found a larger one"),
    ],
)
def test_a_wrong_condition_is_refused_with_its_place(where: str, message: str) -> None:
    with pytest.raises(dcp.UsageError) as refused:
        dcp.Decoder(where=where)
    assert str(refused.value).startswith(message.removesuffix("found 'the end'"))


def test_thousands_of_alternatives_are_one_condition() -> None:
    names = ", ".join(f"'n{number}'" for number in range(4000))
    assert is_kept(f"v in ({names})", {"v": "n3999"})
    assert not is_kept(f"v in ({names})", {"v": "n4000"})


@pytest.mark.parametrize("limit", [-(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize("beyond", [-2, -1, 0, 1, 2])
def test_numbers_are_compared_exactly_at_the_ends_of_64_bits(limit: int, beyond: int) -> None:
    literal = limit + beyond
    if literal.bit_length() < 64 or literal == -(1 << 63):
        assert is_kept(f"v = {literal}", {"v": literal})
        assert not is_kept(f"v = {literal}", {"v": literal + (1 if literal < 0 else -1)})
    assert is_kept(f"v {'<' if literal > 0 else '>'} {literal}", {"v": 7})


def test_levels_are_counted_in_depth_only() -> None:
    assert is_kept(" or ".join(f"(not (v = {number}))" for number in range(100)), {"v": 1})


def test_what_is_no_json_is_delivered_with_the_reason() -> None:
    decoder = dcp.Decoder(columns=["seqno", "bad_value"], where="type = 'order'")
    decoder.feed(mutation(b'{"type":"ord', 1) + mutation(b'{"type":"x"}', 2) + mutation(b"\x89PNG", 3, datatype=0))
    cut, image = decoder.take().to_arrow().to_pylist()
    assert (cut["seqno"], cut["bad_value"], image["seqno"], image["bad_value"]) == (1, b'{"type":"ord', 3, b"\x89PNG")
    assert cut["error"].startswith("document: expected JSON, found ")
    assert "without the JSON datatype" in image["error"]


def test_deletions_are_delivered_whatever_the_condition() -> None:
    decoder = dcp.Decoder(columns=["event", "seqno"], where="type = 'order'")
    decoder.feed(mutation(b"{}", 1) + deletion(2) + deletion(3, value=b"was"))
    assert [row["seqno"] for row in decoder.take().to_arrow().to_pylist()] == [2, 3]


def test_only_some_events_and_keys_are_delivered() -> None:
    decoder = dcp.Decoder(columns=["seqno"], only_events="mutation", only_keys=["order::*", b"user::7", r"a\*b", "*z*"])
    keys = [b"order::1", b"order::", b"order:1", b"user::7", b"user::77", b"a*b", b"axb", b"xzy", b"z", b"x"]
    for number, key in enumerate(keys, 1):
        decoder.feed(mutation(b"{}", number, key))
    decoder.feed(deletion(11, b"order::1"))
    batch = decoder.take()
    kept = [keys[row["seqno"] - 1] for row in batch.to_arrow().to_pylist()]
    assert kept == [b"order::1", b"order::", b"user::7", b"a*b", b"xzy", b"z"]
    assert batch.unselected_rows == 5
    assert batch.last_seqnos == []


@given(st.sets(st.text(st.characters(categories=["L", "P", "S", "N"]), min_size=1), min_size=1, max_size=5))
def test_a_key_is_compared_literally(keys: set[str]) -> None:
    there = {*keys, "x", "xx", *(f"{key}x" for key in keys)}
    escaped = [key.replace("\\", "\\\\").replace("*", r"\*") for key in keys]
    decoder = dcp.Decoder(columns=["key"], only_keys=escaped)
    for number, key in enumerate(there, 1):
        decoder.feed(mutation(b"{}", number, key.encode()))
    assert {row["key"].decode() for row in decoder.take().to_arrow().to_pylist()} == keys


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only_keys": []}, "keys: expected one or more keys, found none"),
        ({"only_keys": [""]}, "keys: expected keys such as 'user::7' or 'order::*', found ''"),
        ({"only_events": ["mutations"]}, "events: expected some of mutation, deletion"),
        ({"where": "a = 1", "inflate": False}, "inflate: expected True with `document` or `where`"),
    ],
)
def test_a_wrong_selection_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(dcp.UsageError) as refused:
        dcp.Decoder(**options)
    assert str(refused.value).startswith(message)


def test_rows_in_a_snapshot_move_their_stream_also_if_they_are_not_kept() -> None:
    decoder = dcp.Decoder(columns=["seqno"], where="n = 2")
    fields = {"snapshot_start": 1, "snapshot_end": 9, "flags": 1}
    decoder.feed(dcp.encode(dcp.Frame("snapshot_marker", 0x80, fields=fields)))
    decoder.feed(b"".join(mutation(b'{"n":%d}' % n, n) for n in (1, 2, 3)))
    batch = decoder.take()
    assert batch.to_arrow().to_pylist() == [{"seqno": 2, "error": None}]
    assert [last for *_, last in batch.last_seqnos] == [3]
    # A seqno that does not rise is wrong, whether its row would be kept or not.
    decoder.feed(mutation(b"{}", 3))
    with pytest.raises(dcp.FrameError, match="expected one above 3"):
        decoder.take()


def test_a_plan_has_at_most_as_many_events_as_a_selection_can_name() -> None:
    names = [f"event{number}" for number in range(65)]
    assert compile_selection(names[:64], names, names[63], None, None) is not None
    with pytest.raises(dcp.UsageError, match="events: expected at most 64, found 65"):
        compile_selection(names, names, names[0], None, None)
