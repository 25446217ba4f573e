"""Lookups and edits of JSON texts by path."""

from __future__ import annotations

import json

import pytest

from dcp.embedded import subdocument
from dcp.embedded.subdocument import Edit, SubdocumentError, parse_path
from dcp.wire.memcached import Status

# The document of docs/SubDocument.md in kv_engine.
PRODUCT = """{
  "type":"product", "pType":"toy", "pName": "Tickle Me Elmo",
  "pDetails": { "audience":"children" },
  "pDistributors":[
    { "dName": "Going Out of Business Wholesale", "dAdded": ["Feb", 36, 2025] },
    { "dName": "Everything Must Go!", "dAdded": ["May", 72, 1492] } ],
  "dot.ted.field":null, "back`tick`field":null, "field.with.\\"quotes\\"":null, "ü": 1.50e1
}"""


def status_of(edit: Edit, text: str, path: str, new: str = "1", create: bool = False) -> Status:
    with pytest.raises(SubdocumentError) as caught:
        edit(text, parse_path(path), new, create)
    return caught.value.status


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("type", '"product"'),
        ("pDetails", '{ "audience":"children" }'),
        ("pDistributors[0].dName", '"Going Out of Business Wholesale"'),
        ("pDistributors[1].dAdded[2]", "1492"),
        ("pDistributors[-1].dAdded[-1]", "1492"),
        ("`dot.ted.field`", "null"),
        ("`back``tick``field`", "null"),
        ('`field.with.\\"quotes\\"`', "null"),
        ("ü", "1.50e1"),
        ("\\u00fc", "1.50e1"),
    ],
)
def test_a_value_is_returned_as_it_stands(path: str, value: str) -> None:
    assert subdocument.get(PRODUCT, parse_path(path)) == value


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("pDistributors.count", Status.SUBDOC_PATH_MISMATCH),
        ("pType.category", Status.SUBDOC_PATH_MISMATCH),
        ("pDetails[0]", Status.SUBDOC_PATH_MISMATCH),
        ("missing", Status.SUBDOC_PATH_ENOENT),
        ("pDistributors[2]", Status.SUBDOC_PATH_ENOENT),
        *((path, Status.SUBDOC_PATH_EINVAL) for path in (".", "a.", ".a", "a..b", "a[", "a[x]", "a[-2]", "a]")),
        *((path, Status.SUBDOC_PATH_EINVAL) for path in ("`a", "a.[0]", "a[0]b", '"', "\\")),
        ("a" * 1025, Status.SUBDOC_PATH_E2BIG),
        (".".join("a" * 33), Status.SUBDOC_PATH_E2BIG),
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_is_refused(path: str, status: Status) -> None:
    with pytest.raises(SubdocumentError) as caught:
        subdocument.get(PRODUCT, parse_path(path))
    assert caught.value.status is status


def test_a_path_may_be_as_long_and_as_deep_as_servers_take_it() -> None:
    assert parse_path("a" * 1024) == ["a" * 1024]
    assert parse_path(".".join("a" * 32)) == ["a"] * 32
    assert subdocument.get("[5]", parse_path("[-1]")) == "5"


def test_children_are_counted() -> None:
    assert subdocument.count(PRODUCT, parse_path("pDistributors")) == "2"
    assert subdocument.count(" [] ", []) == "0"
    with pytest.raises(SubdocumentError, match="SUBDOC_PATH_MISMATCH"):
        subdocument.count(PRODUCT, parse_path("type"))


def test_a_document_is_not_too_deep() -> None:
    assert subdocument.get("[" * 32 + "]" * 32, [0] * 31) == "[]"
    with pytest.raises(SubdocumentError, match="SUBDOC_PATH_E2DEEP"):
        subdocument.get("[" * 33 + "]" * 33, [0])


@pytest.mark.parametrize(
    ("edit", "text", "path", "new", "expected"),
    [
        (subdocument.dict_add, "{}", "a", "1", '{"a":1}'),
        (subdocument.dict_add, '{ "a" : 1 }', "b", '{"c":2}', '{ "a" : 1,"b":{"c":2} }'),
        (subdocument.dict_upsert, '{"a": 1.0, "b": 2}', "a", "[3]", '{"a": [3], "b": 2}'),
        (subdocument.dict_upsert, '[{"x":{}}]', "[0].x.y", "1", '[{"x":{"y":1}}]'),
        (subdocument.dict_upsert, "{}", '`a.\\"b`', "1", '{"a.\\"b":1}'),
        (subdocument.replace, '{"a":[1,2]}', "a[-1]", '"x"', '{"a":[1,"x"]}'),
        (subdocument.delete, '{"a": 1, "b": 2, "c": 3}', "a", "", '{"b": 2, "c": 3}'),
        (subdocument.delete, '{"a": 1, "b": 2, "c": 3}', "b", "", '{"a": 1, "c": 3}'),
        (subdocument.delete, '{"a": 1, "b": 2, "c": 3}', "c", "", '{"a": 1, "b": 2}'),
        (subdocument.delete, '{"a":{"b":1}}', "a.b", "", '{"a":{}}'),
        (subdocument.delete, "[1,[2],3]", "[1]", "", "[1,3]"),
        (subdocument.delete, "[1,2]", "[-1]", "", "[1]"),
        (subdocument.array_push_last, "[]", "", "1,2", "[1,2]"),
        (subdocument.array_push_last, '{"a":[0]}', "a", '1,"x"', '{"a":[0,1,"x"]}'),
        (subdocument.array_push_first, "[ 1 ]", "", "0", "[ 0,1 ]"),
        (subdocument.array_insert, "[1,3]", "[1]", "2", "[1,2,3]"),
        (subdocument.array_insert, "[1,3]", "[2]", "4", "[1,3,4]"),
        (subdocument.array_insert, '{"a":[]}', "a[0]", "4", '{"a":[4]}'),
        (subdocument.array_add_unique, '[1,"1"]', "", "1.0", '[1,"1",1.0]'),
        (subdocument.counter, '{"n": 5}', "n", "-7", '{"n": -2}'),
        (subdocument.counter, "{}", "n", "7", '{"n":7}'),
        # Up to both ends of the numbers, and from there.
        (subdocument.counter, '{"n":-1}', "n", "-9223372036854775807", '{"n":-9223372036854775808}'),
        (subdocument.counter, '{"n":-9223372036854775808}', "n", "9223372036854775807", '{"n":-1}'),
        (subdocument.counter, '{"n":9223372036854775807}', "n", "-9223372036854775808", '{"n":-1}'),
        (subdocument.counter, '{"n":1}', "n", "9223372036854775806", '{"n":9223372036854775807}'),
    ],
)
def test_an_edit_leaves_the_rest_as_it_is(edit: Edit, text: str, path: str, new: str, expected: str) -> None:
    assert edit(text, parse_path(path), new, False) == expected
    json.loads(expected)


@pytest.mark.parametrize(
    ("edit", "path", "expected"),
    [
        (subdocument.dict_add, "a.b.c", '{"x":1,"a":{"b":{"c":1}}}'),
        (subdocument.array_push_last, "a.b", '{"x":1,"a":{"b":[1]}}'),
        (subdocument.counter, "a.b", '{"x":1,"a":{"b":1}}'),
    ],
)
def test_objects_on_the_way_are_created_on_request(edit: Edit, path: str, expected: str) -> None:
    assert edit('{"x":1}', parse_path(path), "1", True) == expected
    assert status_of(edit, '{"x":1}', path) is Status.SUBDOC_PATH_ENOENT


@pytest.mark.parametrize(
    ("edit", "text", "path", "new", "status"),
    [
        (subdocument.dict_add, '{"a":1}', "a", "1", Status.SUBDOC_PATH_EEXISTS),
        (subdocument.dict_add, "[1]", "[0]", "1", Status.SUBDOC_PATH_EINVAL),
        (subdocument.dict_add, "{}", "", "1", Status.SUBDOC_PATH_EINVAL),
        (subdocument.dict_upsert, "{}", "a", "{oops", Status.SUBDOC_VALUE_CANTINSERT),
        (subdocument.dict_upsert, "{}", "a", '1,"b":2', Status.SUBDOC_VALUE_CANTINSERT),
        (subdocument.dict_upsert, '{"a":[]}', "a.b", "1", Status.SUBDOC_PATH_MISMATCH),
        (subdocument.dict_upsert, '{"a":[]}', "a[0].b", "1", Status.SUBDOC_PATH_ENOENT),
        (subdocument.replace, "{}", "a", "1", Status.SUBDOC_PATH_ENOENT),
        (subdocument.replace, '{"a":1}', "a", "1,2", Status.SUBDOC_VALUE_CANTINSERT),
        (subdocument.delete, "{}", "a", "", Status.SUBDOC_PATH_ENOENT),
        (subdocument.delete, "{}", "", "", Status.SUBDOC_PATH_EINVAL),
        (subdocument.array_push_last, '{"a":1}', "a", "1", Status.SUBDOC_PATH_MISMATCH),
        (subdocument.array_push_last, "[]", "", "", Status.SUBDOC_VALUE_CANTINSERT),
        (subdocument.array_push_last, "[]", "", "1],[2", Status.SUBDOC_VALUE_CANTINSERT),
        (subdocument.array_insert, "[]", "[1]", "1", Status.SUBDOC_PATH_ENOENT),
        (subdocument.array_insert, "[1]", "[-1]", "1", Status.SUBDOC_PATH_EINVAL),
        (subdocument.array_insert, "{}", "a[0]", "1", Status.SUBDOC_PATH_ENOENT),
        (subdocument.array_insert, '{"a":[]}', "a", "1", Status.SUBDOC_PATH_EINVAL),
        # Those of testArrayInsert in tests/t_ops.cc of subjson; the value is checked before anything else.
        (subdocument.array_insert, "[1,2,3]", "[4]", "null", Status.SUBDOC_PATH_ENOENT),
        (subdocument.array_insert, "[1,2,3]", "[0].anything", "null", Status.SUBDOC_PATH_EINVAL),
        (subdocument.array_insert, "{}", "non_exist[0]", "null", Status.SUBDOC_PATH_ENOENT),
        (subdocument.array_insert, "{}", "non_exist[0]", "blah", Status.SUBDOC_VALUE_CANTINSERT),
        (subdocument.array_insert, "[]", "[0]", "blah", Status.SUBDOC_VALUE_CANTINSERT),
        (subdocument.array_insert, "{}", "[0]", "null", Status.SUBDOC_PATH_MISMATCH),
        (subdocument.array_add_unique, "[1]", "", "1", Status.SUBDOC_PATH_EEXISTS),
        (subdocument.array_add_unique, "[1]", "", "[1]", Status.SUBDOC_VALUE_CANTINSERT),
        (subdocument.array_add_unique, "[]", "", "1,2", Status.SUBDOC_VALUE_CANTINSERT),
        (subdocument.array_add_unique, "[{}]", "", "1", Status.SUBDOC_PATH_MISMATCH),
        (subdocument.counter, '{"a":"1"}', "a", "1", Status.SUBDOC_PATH_MISMATCH),
        (subdocument.counter, '{"a":1.5}', "a", "1", Status.SUBDOC_PATH_MISMATCH),
        (subdocument.counter, "{}", "a", "0", Status.SUBDOC_DELTA_EINVAL),
        (subdocument.counter, "{}", "a", "x", Status.SUBDOC_DELTA_EINVAL),
        (subdocument.counter, "5", "", "1", Status.SUBDOC_PATH_EINVAL),
        (subdocument.counter, '{"a":9223372036854775808}', "a", "1", Status.SUBDOC_NUM_ERANGE),
        (subdocument.counter, '{"a":9223372036854775807}', "a", "1", Status.SUBDOC_VALUE_CANTINSERT),
    ],
)
def test_an_edit_that_is_not_possible_is_refused(edit: Edit, text: str, path: str, new: str, status: Status) -> None:
    assert status_of(edit, text, path, new) is status
