"""A bucket as a LazyFrame of Polars: `dcp.polars.scan(url)`. Needs polars and pyarrow."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from dcp._codec import DocumentKind
from dcp.checkpoint import Checkpoint
from dcp.client.client import Client, connect
from dcp.columns.decoder import Decoder, DocumentLike
from dcp.columns.document_schema import DocumentField, DocumentType, ddl, fields_of
from dcp.columns.document_text import quoted_path
from dcp.columns.path_columns import PATH_COLUMNS
from dcp.columns.plan import events_of
from dcp.columns.selection import parse_condition
from dcp.errors import UsageError
from dcp.wire.dcp import DCP

# Columns before those of the documents and after them.
_BEFORE = ("event", *PATH_COLUMNS, "key")
_AFTER = ("error", "vbucket", "seqno", "rev_seqno", "cas", "timestamp", "flags", "expiry", "delete_time")
_VALUES = ("value", "bad_value")
_DECODING: dict[str, Any] = {"keys": "utf8", "values": "utf8", "on_bad_value": "quarantine", "types": "plain"}
_MIRRORED = {"Lt": "Gt", "Gt": "Lt", "LtEq": "GtEq", "GtEq": "LtEq", "Eq": "Eq", "NotEq": "NotEq"}
_SIGNS = {"Lt": "<", "Gt": ">", "LtEq": "<=", "GtEq": ">=", "Eq": "=", "NotEq": "!="}
_WHOLE = frozenset(
    [
        *(DocumentKind.DOCUMENT_INT8, DocumentKind.DOCUMENT_INT16),
        *(DocumentKind.DOCUMENT_INT32, DocumentKind.DOCUMENT_INT64),
    ]
)


def scan(
    source: str | Client,
    *,
    start: str | datetime | Checkpoint | None = "beginning",
    end: str | datetime | Checkpoint = "now",
    scope: str | None = None,
    collections: str | Iterable[str] | None = None,
    vbuckets: str | Iterable[int] | None = None,
    document: DocumentLike | None = None,
    where: str | None = None,
    persisted_only: bool = False,
) -> pl.LazyFrame:
    """Return the changes of a bucket as a LazyFrame, which reads them anew each time it is collected.

    Only the columns, and the fields of documents, that a query needs are decoded. Filters on `event`, `key` and fields
    of documents are applied before rows are built, as far as a stream has them (`only_events`, `only_keys`, `where`).

    source: URL of the bucket, or a Client.
    start, end, scope, collections, vbuckets, persisted_only: as for `Client.stream`. There has to be an end.
    document: schema of the documents; each field is a column. Without it, the column `value` has their text.
    where: condition on the document, as for `Client.stream`.

    Values that cannot be read are null, with the reason in the column `error`. A rollback during the read raises
    RollbackError. Raises UsageError for a wrong schema or condition; Polars raises ComputeError with the text of what
    the read raises.
    """
    if end is None:
        raise UsageError("end: expected one: a LazyFrame is collected when all of its rows are there")
    if where is not None:
        parse_condition(where)
    fields = _fields(document)
    stream = {
        "start": start,
        "end": end,
        "scope": scope,
        "collections": collections if isinstance(collections, str | None) else [*collections],
        "vbuckets": vbuckets if isinstance(vbuckets, str | None) else [*vbuckets],
        "persisted_only": persisted_only,
        "on_rollback": "fail",
        **_DECODING,
    }
    reader = _Reader(source, stream, where, fields)
    return register_io_source(reader.read, schema=reader.schema, validate_schema=True, explain_name="DCP")


def _fields(document: DocumentLike | None) -> dict[str, DocumentField]:
    """Return the fields of documents by name."""
    if document is None:
        return {}
    found = {field.name: field for field in fields_of(document)}
    if taken := {*_BEFORE, *_AFTER} & found.keys():
        name = sorted(taken)[0]
        raise UsageError(
            f"document: there is a column {name!r} besides the fields; name the field otherwise, such as "
            f"'document_{name} string from {name}'"
        )
    return found


@dataclass(frozen=True)
class _Reader:
    """Source of a LazyFrame. stream: options of the stream. fields: columns with parts of documents."""

    source: str | Client
    stream: Mapping[str, Any]
    where: str | None
    fields: Mapping[str, DocumentField]

    @property
    def schema(self) -> pl.Schema:
        """Types of all columns."""
        wire = [name for name in self._names if name not in (*PATH_COLUMNS, *self.fields)]
        decoder = Decoder("dcp", wire, collections=True, document=self._document(self.fields), **_DECODING)
        columns: dict[str, pa.DataType] = dict.fromkeys(PATH_COLUMNS, pa.string())
        for field in pa.schema(decoder.schema):
            columns |= (
                {part.name: part.type for part in field.type} if field.name == "document" else {field.name: field.type}
            )
        empty = pa.schema([(name, columns[name]) for name in self._names]).empty_table()
        return pl.DataFrame(empty).schema

    @property
    def _names(self) -> tuple[str, ...]:
        return (*_BEFORE, *(self.fields or _VALUES), *_AFTER)

    def _document(self, names: Iterable[str]) -> str | None:
        """Return the schema of some fields as DDL."""
        fields = tuple(self.fields[name] for name in names if name in self.fields)
        return ddl(DocumentType(DocumentKind.DOCUMENT_STRUCT, fields=fields)) if fields else None

    def read(
        self, wanted: list[str] | None, predicate: pl.Expr | None, limit: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        """Yield the rows that Polars asks for.

        wanted: names of columns; None for all. limit: rows before the predicate.
        """
        names = [*self._names] if wanted is None else wanted
        needed = {*names, *(predicate.meta.root_names() if predicate is not None else ())}
        document = self._document(name for name in self.fields if name in needed)
        options = {**self.stream, **pushed_down(predicate, self.fields)}
        conditions = [f"({one})" for one in (self.where, options.get("where")) if one]
        options["where"] = " and ".join(conditions) or None
        # A stream has one column at least.
        columns = [name for name in self._names if name in needed and name not in self.fields] or ["seqno"]
        if batch_rows is not None:
            options["batch_rows"] = max(1, batch_rows)
        with (
            connect(self.source) if isinstance(self.source, str) else nullcontext(self.source) as client,
            client.stream(columns=columns, document=document, **options) as stream,
        ):
            for batch in stream:
                frame = pl.DataFrame(batch)
                frame = frame.unnest("document") if document is not None else frame
                if limit is not None:
                    frame = frame.head(limit)
                    limit -= frame.height
                frame = frame if predicate is None else frame.filter(predicate)
                yield frame.select(names)
                if limit == 0:
                    return


def pushed_down(predicate: pl.Expr | None, fields: Mapping[str, DocumentField]) -> dict[str, Any]:
    """Return options of a stream that leave out rows for which a predicate is not true, but maybe not all of them."""
    found: dict[str, Any] = {}
    conditions = []
    for part in [] if predicate is None else _conjuncts(predicate):
        test = _test(part)
        if test is None:
            continue
        name, sign, value = test
        if name == "event" and sign in ("=", "in"):
            events = {*(value if sign == "in" else [value])} & {*events_of(DCP, None)}
            found.setdefault("only_events", sorted(events) or None)
        elif name == "key" and sign in ("=", "in", "prefix"):
            keys = [_escaped(key) for key in (value if sign == "in" else [value]) if isinstance(key, str) and key]
            found.setdefault("only_keys", [f"{key}*" if sign == "prefix" else key for key in keys] or None)
        elif name in fields and (condition := _condition(fields[name], sign, value)):
            conditions.append(condition)
    if conditions:
        found["where"] = " and ".join(conditions)
    return found


def _conjuncts(predicate: pl.Expr) -> Iterator[pl.Expr]:
    """Yield the parts of a predicate that all have to be true."""
    match _tree(predicate):
        case {"BinaryExpr": {"op": "And"}}:
            for part in predicate.meta.pop():
                yield from _conjuncts(part)
        case _:
            yield predicate


def _test(part: pl.Expr) -> tuple[str, str, Any] | None:
    """Return column, sign and literal of a comparison; None for anything else."""
    tree = _tree(part)
    operands = part.meta.pop()
    columns = [one for one in operands if one.meta.is_column()]
    literals = [one for one in operands if one.meta.is_literal()]
    if len(columns) != 1 or len(literals) != 1:
        return None
    name, value = columns[0].meta.output_name(), pl.select(literals[0]).item()
    match tree:
        case {"BinaryExpr": {"op": str(sign), "left": left}} if sign in _SIGNS:
            return name, _SIGNS[sign if "Column" in left else _MIRRORED[sign]], value
        case {"Function": {"function": {"StringExpr": "StartsWith"}}}:
            return name, "prefix", value
        case {"Function": {"function": {"Boolean": {"IsIn": _}}}} if isinstance(value, pl.Series):
            return name, "in", value.to_list()
    return None


def _tree(expression: pl.Expr) -> Any:
    """Return an expression as Polars serializes it. Its form may change: what is not known is not pushed down."""
    try:
        return json.loads(expression.meta.serialize(format="json"))
    except (ValueError, pl.exceptions.PolarsError):
        return None


def _condition(field: DocumentField, sign: str, value: Any) -> str | None:
    """Return a condition on documents that is true wherever a comparison of the column is; None if there is none."""
    path, kind = quoted_path(field.source), field.type.kind
    values = value if sign == "in" else [value]
    if kind in _WHOLE and all(type(one) is int for one in values) and sign in (*_SIGNS.values(), "in"):
        texts = [str(one) for one in values]
    elif kind == DocumentKind.DOCUMENT_STRING and all(type(one) is str for one in values) and sign in ("=", "in"):
        texts = ["'" + one.replace("'", "''") + "'" for one in values]
    elif kind == DocumentKind.DOCUMENT_BOOL and type(value) is bool and sign == "=":
        texts = [str(value).lower()]
    elif kind == DocumentKind.DOCUMENT_FLOAT64 and type(value) is float and math.isfinite(value):
        return _range(path, sign, value)
    else:
        return None
    if sign == "in":
        return f"{path} in ({', '.join(texts)})" if texts else None
    return f"{path} {sign} {texts[0]}"


def _range(path: str, sign: str, value: float) -> str | None:
    """Return a condition for a column of doubles, which are next to the decimal number in the document."""
    below = f"{path} >= {math.nextafter(value, -math.inf)!r}"
    above = f"{path} <= {math.nextafter(value, math.inf)!r}"
    return {"=": f"{below} and {above}", "<": above, "<=": above, ">": below, ">=": below}.get(sign)


def _escaped(key: str) -> str:
    """Return a pattern of keys for one key."""
    return key.replace("\\", "\\\\").replace("*", "\\*")
