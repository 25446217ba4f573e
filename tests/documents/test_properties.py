"""Documents in any schema are what `json.loads` and a plain builder make of them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import dcp
from dcp._codec import DocumentKind
from dcp.columns.document_schema import SCALARS, DocumentField, DocumentType, ddl, document_type
from tests.documents.builder import Builder
from tests.documents.frames import mutation

NAMES = ["id", "total", "a.b", "x y", "ö", "`", "", "long name of a field", "id2"]
names = st.sampled_from([name for name in NAMES if name])
# JSON text of a part is compared elsewhere: `json.loads` does not keep it.
scalars = st.one_of(
    st.sampled_from([scalar.type for scalar in SCALARS if scalar.type.kind is not DocumentKind.DOCUMENT_JSON]),
    st.tuples(st.integers(1, 38), st.integers(0, 38))
    .filter(lambda pair: pair[1] <= pair[0])
    .map(lambda pair: DocumentType(DocumentKind.DOCUMENT_DECIMAL, *pair)),
)


def structs(inner: st.SearchStrategy[DocumentType]) -> st.SearchStrategy[DocumentType]:
    paths = st.one_of(st.just(()), st.lists(names, min_size=1, max_size=3).map(tuple))
    fields = st.lists(st.tuples(names, inner, paths), min_size=1, max_size=5, unique_by=lambda field: field[0])
    return fields.map(
        lambda chosen: DocumentType(
            DocumentKind.DOCUMENT_STRUCT,
            fields=tuple(DocumentField(name, type, path if path != (name,) else ()) for name, type, path in chosen),
        )
    )


def containers(inner: st.SearchStrategy[DocumentType]) -> st.SearchStrategy[DocumentType]:
    lists = inner.map(lambda type: document_type(f"array<{ddl(type, top=False)}>"))
    maps = inner.map(lambda type: document_type(f"map<string, {ddl(type, top=False)}>"))
    return st.one_of(structs(inner), lists, maps)


types = st.one_of(structs(st.recursive(scalars, containers, max_leaves=8)), st.recursive(scalars, containers))

numbers = st.one_of(
    st.integers(-(1 << 65), 1 << 65).map(str),
    st.integers(-200, 200).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?\Z"),
)
times = st.one_of(
    st.datetimes().map(lambda time: time.isoformat() + "Z"),
    st.from_regex(
        r"\A[0-9]{4}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9]"
        r"(:[0-5][0-9](\.[0-9]{1,9})?)?(Z|[+-][01][0-9](:?[0-5][0-9])?)?\Z"
    ),
    st.dates().map(str),
)
strings = st.one_of(
    st.text(), times, numbers, st.binary(max_size=9).map(lambda data: __import__("base64").b64encode(data).decode())
)
leaves = st.one_of(
    numbers,
    strings.map(json.dumps),
    strings.map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.sampled_from(["null", "true", "false"]),
)


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    space = st.sampled_from(["", "", " ", "\n\t"])
    arrays = st.tuples(st.lists(inner, max_size=4), space).map(lambda pair: f"[{pair[1]}{','.join(pair[0])}{pair[1]}]")
    members = st.lists(st.tuples(st.sampled_from(NAMES).map(json.dumps), inner, space), max_size=6)
    # Names may be there twice: the last one counts.
    objects = members.map(lambda all: "{" + ",".join(f"{s}{name}{s}:{s}{value}{s}" for name, value, s in all) + "}")
    return st.one_of(arrays, objects, objects)


texts = st.recursive(leaves, joined, max_leaves=12)


def comparable(type: DocumentType, array: pa.Array) -> list[Any]:
    """Return a column as the builder has it: times in microseconds, maps as dicts, NaN nowhere."""
    kind = type.kind
    valid = array.is_valid().to_pylist()
    if kind is DocumentKind.DOCUMENT_STRUCT:
        columns = [comparable(field.type, array.field(i)) for i, field in enumerate(type.fields)]
        rows = [
            dict(zip((field.name for field in type.fields), cells, strict=True)) for cells in zip(*columns, strict=True)
        ]
        return [row if there else None for row, there in zip(rows, valid, strict=True)]
    if kind in (DocumentKind.DOCUMENT_LIST, DocumentKind.DOCUMENT_MAP):
        ends = array.offsets.to_pylist()
        if kind is DocumentKind.DOCUMENT_LIST:
            cells = comparable(type.fields[0].type, array.values)
            found: list[Any] = [cells[begin:end] for begin, end in itertools.pairwise(ends)]
        else:
            pairs = list(zip(array.keys.to_pylist(), comparable(type.fields[1].type, array.items), strict=True))
            assert all(len({name for name, _ in pairs[b:e]}) == e - b for b, e in itertools.pairwise(ends))
            found = [dict(pairs[begin:end]) for begin, end in itertools.pairwise(ends)]
        return [cell if there else None for cell, there in zip(found, valid, strict=True)]
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    return list(array.to_pylist())


@settings(max_examples=400)
@given(types, st.lists(texts, min_size=1, max_size=6), st.integers(1, 3))
def test_documents_are_those_of_a_plain_builder(type: DocumentType, values: list[str], rows: int) -> None:
    decoder = dcp.Decoder(columns=["document"], document=type)
    builder = Builder(type)
    for number, value in enumerate(values, 1):
        decoder.feed(mutation(value.encode(), number))
    found: list[Any] = []
    errors: list[Any] = []
    while len(found) < len(values):
        table = decoder.take(max_rows=rows).to_arrow()
        table.validate(full=True)
        found += comparable(type, table.column("document"))
        errors += table.column("error").to_pylist()
    for value, document, error in zip(values, found, errors, strict=True):
        assert document == builder.read(value), value
        if builder.wrong:
            assert error is not None, value
        # A path may lead through something that is no object: only then is there an error without a wrong value.
        if error is not None and not builder.wrong:
            assert ": expected an object, found " in error


@given(types)
def test_a_schema_survives_its_own_text(type: DocumentType) -> None:
    assert document_type(ddl(type)) == type
