"""Columns of documents: names in any order, and beside values that are text."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import dcp
from tests.documents.frames import decoded, mutation


def test_names_are_found_in_any_order_among_any_others() -> None:
    # Names that share their beginnings, their ends, or both, up to lengths of 1 to 24; more than are remembered.
    middles = ("", "x", "y", "xx", "xy", "01234567", "01234568", "0123456701234567", "0123456801234567")
    asked = [f"{head}{middle}" for head in ("a", "b", "name_") for middle in middles]
    others = [f"{name}_" for name in asked] + [f"{name[:-1]}z" for name in asked] + [""]
    chance = Random(19)
    documents = []
    for number in range(300):
        names = [name for name in (asked + others) if chance.random() < 0.9]
        if number % 3:
            chance.shuffle(names)
        documents.append({name: chance.randrange(1000) for name in names})
    rows = decoded(
        (json.dumps(document).encode() for document in documents), ", ".join(f"{name} int" for name in asked)
    )
    for row, document in zip(rows, documents, strict=True):
        assert row["error"] is None
        assert row["document"] == {name: document.get(name) for name in asked}


def test_a_value_that_is_no_text_is_null_whatever_is_wrong_with_its_document() -> None:
    values = [
        b'{"a": "\xff", "b": 1}',
        b'{"a": "x", "b": "\xff"}',
        b'{"c": "\xff", "b": 1}',
        b'{"a": "x", "b": "y"}',
        b"\xff",
        b'{"a": "x", "b": 1}',
    ]
    decoder = dcp.Decoder(
        columns=["value", "bad_value"], document="a string, b bigint", values="utf8", on_bad_value="quarantine"
    )
    for number, value in enumerate(values, 1):
        decoder.feed(mutation(value, number))
    table = decoder.take().to_arrow()
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    assert [row["value"] for row in rows] == [None, None, None, values[3].decode(), None, values[5].decode()]
    assert [row["bad_value"] for row in rows] == [*values[:5], None]
    assert [(row["error"] or "").split(":")[0] for row in rows] == ["a", "b", "value", "b", "document", ""]
    assert [row["document"]["b"] if row["document"] else None for row in rows] == [1, None, 1, None, None, 1]
