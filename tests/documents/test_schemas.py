"""Schemas of Arrow from other libraries, by their capsules."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import dcp
from dcp.columns.document_schema import DEEPEST, MOST_TYPES, ddl, document_type, spark_ddl
from tests.documents.frames import decoded

DDL = (
    "id bigint, total decimal(12,2), created timestamp, day date, paid boolean, score double, data binary, "
    "customer struct<city string>, lines array<struct<sku string, count int>>"
)
VALUE = b"""{"id": 7, "total": 12.50, "created": "2026-11-01T12:00:00+02:00", "day": "2026-11-01", "paid": true,
             "score": 0.5, "data": "aGk=", "customer": {"city": "Graz"}, "lines": [{"sku": "a", "count": 2}, null]}"""


def by_pyarrow() -> Any:
    line = pa.struct([("sku", pa.string()), ("count", pa.int32())])
    return pa.schema(
        [
            ("id", pa.int64()),
            ("total", pa.decimal128(12, 2)),
            ("created", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("paid", pa.bool_()),
            ("score", pa.float64()),
            ("data", pa.large_binary()),
            ("customer", pa.struct([("city", pa.large_string())])),
            ("lines", pa.large_list(line)),
        ]
    )


def by_polars() -> Any:
    polars = pytest.importorskip("polars")
    schema = polars.Schema(
        {
            "id": polars.Int64,
            "total": polars.Decimal(12, 2),
            "created": polars.Datetime("us", "UTC"),
            "day": polars.Date,
            "paid": polars.Boolean,
            "score": polars.Float64,
            "data": polars.Binary,
            "customer": polars.Struct({"city": polars.String}),
            "lines": polars.List(polars.Struct({"sku": polars.String, "count": polars.Int32})),
        }
    )
    if not hasattr(schema, "__arrow_c_schema__"):
        pytest.skip("this version of Polars exports no schemas")
    return polars.DataFrame(schema=schema).schema


def by_duckdb() -> Any:
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.sql(
        "select 1::bigint as id, 1::decimal(12,2) as total, null::timestamptz as created, null::date as day, "
        "true as paid, 0.5::double as score, 'x'::blob as data, {'city': 'Graz'} as customer, "
        "[{'sku': 'a', 'count': 1::int}] as lines"
    )
    return pa.RecordBatchReader.from_stream(relation).schema


@pytest.mark.parametrize("make", [by_pyarrow, by_polars, by_duckdb])
def test_a_schema_of_another_library_is_that_of_the_same_text(make: Any) -> None:
    assert document_type(make()) == document_type(DDL)
    assert decoded([VALUE], make()) == decoded([VALUE], DDL)


def test_a_type_of_another_library_is_a_schema() -> None:
    assert document_type(pa.list_(pa.map_(pa.string(), pa.int64()))) == document_type("array<map<string, bigint>>")
    assert document_type(by_pyarrow().field("customer")) == document_type("city string")


def test_a_mapping_has_a_path_and_a_type_for_each_name() -> None:
    assert document_type({"id": "id bigint", "city": "customer.address.city string"}) == document_type(
        "id bigint, city string from customer.address.city"
    )
    with pytest.raises(dcp.UsageError, match=r"expected names and texts such as 'customer\.city string', found 1: 'a'"):
        document_type({1: "a"})
    with pytest.raises(dcp.UsageError, match=r"expected names and texts such as 'customer\.city string', found 'a': 1"):
        document_type({"a": 1})
    with pytest.raises(dcp.UsageError, match="found 'more'"):
        document_type({"a": "b string more"})
    with pytest.raises(dcp.UsageError, match="or a mapping of names to 'path type', found int"):
        document_type(7)


def test_words_of_other_dialects_of_ddl_change_nothing() -> None:
    words = "id bigint NOT NULL COMMENT 'the key', code varchar(10) not null, letter char(1), total: decimal, n dec(3)"
    assert document_type(words) == document_type(
        "id bigint, code string, letter string, total decimal(10,0), n decimal(3,0)"
    )
    assert document_type("a bigint comment 'x' from b.c not null") == document_type("a bigint from b.c")
    # A path that says what would be read anyway is none.
    assert document_type("a bigint from a") == document_type("a bigint")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id bigint not", "(?i)expected null, found the end"),
        ("id bigint comment x", "expected a string, found 'x'"),
        ("code varchar", r"expected '\(', found the end"),
        ("code varchar(x)", "expected a number, found 'x'"),
        ("code varchar(1", r"expected '\)', found the end"),
        ("bigint, string", "found ','"),
        ("array<bigint> more", "expected the end, or ',', found 'more' at character 15"),
        ("map<bigint, string>", "names of objects are strings"),
        ("a decimal(39,0)", r"found decimal\(39,0\)"),
        ("a decimal(0,0)", r"found decimal\(0,0\)"),
        ("a decimal(3,4)", r"found decimal\(3,4\)"),
        ("a bigint, a string", "expected each name once, found 'a' twice"),
    ],
)
def test_a_text_that_is_no_schema_is_refused(text: str, problem: str) -> None:
    with pytest.raises(dcp.UsageError, match=problem):
        document_type(text)


@pytest.mark.parametrize(
    ("type", "ours", "theirs"),
    [
        ("bigint", "bigint", "bigint"),
        ("json", "json", "string"),
        ("timestamp_ms", "timestamp_ms", "timestamp"),
        ("decimal(38,38)", "decimal(38,38)", "decimal(38,38)"),
        ("array<json>", "array<json>", "array<string>"),
        ("map<string, array<int>>", "map<string, array<int>>", "map<string, array<int>>"),
        ("struct<a int, `b c` json>", "a int, `b c` json", "struct<`a`: int, `b c`: string>"),
        ("a struct<b int>", "a struct<b int>", "struct<`a`: struct<`b`: int>>"),
        ("a int from b.c", "a int from b.c", "struct<`a`: int>"),
    ],
)
def test_a_type_is_written_in_our_ddl_and_in_that_of_spark(type: str, ours: str, theirs: str) -> None:
    found = document_type(type)
    assert (ddl(found), spark_ddl(found)) == (ours, theirs)
    assert document_type(ours) == found


def test_a_schema_may_be_as_deep_and_as_large_as_the_limits() -> None:
    def nested(levels: int) -> str:
        return "array<" * levels + "int" + ">" * levels

    def listed(levels: int) -> pa.DataType:
        return pa.list_(listed(levels - 1)) if levels else pa.int32()

    assert document_type(nested(DEEPEST)) == document_type(listed(DEEPEST))
    for deeper in (nested(DEEPEST + 1), listed(DEEPEST + 1)):
        with pytest.raises(dcp.UsageError, match="expected at most 64 levels of types, found more"):
            document_type(deeper)
    # The object itself is one of the types.
    fields = [(f"a{number}", pa.int32()) for number in range(MOST_TYPES)]
    assert len(document_type(pa.schema(fields[1:])).fields) == MOST_TYPES - 1
    with pytest.raises(dcp.UsageError, match="expected at most 10000 types, found more"):
        document_type(pa.schema(fields))


@pytest.mark.parametrize(
    ("schema", "document"),
    [
        ("a bigint from x, b json from x", {"a": 7, "b": "7"}),
        ("a bigint from y.z, b bigint from y.z, c json from y", {"a": 8, "b": 8, "c": '{"z": 8}'}),
    ],
)
def test_fields_may_have_one_path(schema: str, document: dict[str, object]) -> None:
    (row,) = decoded([b'{"x": 7, "y": {"z": 8}}'], schema)
    assert (row["document"], row["error"]) == (document, None)


@pytest.mark.parametrize("schema", ["`a\ud800` int", "a int from `b\udfff`"])
def test_names_are_unicode(schema: str) -> None:
    with pytest.raises(dcp.UsageError, match="expected names in Unicode, found a surrogate in 'a"):
        document_type(schema)
