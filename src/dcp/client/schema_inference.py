"""Inference of a schema from a sample of documents, with the types that were seen at each path."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dcp.client.client import connect
from dcp.columns.document_schema import DEEPEST, DocumentType, ddl, document_type
from dcp.columns.document_text import quoted_path
from dcp.errors import UsageError

# Names of what JSON has, as a schema would need to tell them apart.
_NOT_JSON = "not JSON"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d([.,]\d+)?)?([Zz]|[+-]\d\d(:?\d\d)?)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
# An object with more names than this, each of which few objects have, is a map.
_MOST_FIELDS = 100
_SELDOM = 0.1
_BATCH_ROWS = 1_000
# Whole numbers up to here are exact as a double, too; and those of a type with 38 digits.
_EXACT_DOUBLE, _MOST_DIGITS = 1 << 53, 10**38
_LARGE = "decimal(38,0)"


@dataclass(slots=True)
class _Seen:
    """Types seen at one path, and what lies below it."""

    types: Counter[str] = field(default_factory=Counter)
    fields: dict[str, _Seen] = field(default_factory=dict)
    element: _Seen | None = None
    # True once a whole number was seen that a double would round.
    large: bool = False

    def add(self, value: Any, depth: int = 0) -> None:
        """Count a value, with all below it."""
        self.types[_kind(value)] += 1
        self.large = self.large or (isinstance(value, int) and abs(value) > _EXACT_DOUBLE)
        if depth > DEEPEST:
            return
        if isinstance(value, dict):
            for name, below in value.items():
                self.fields.setdefault(name, _Seen()).add(below, depth + 1)
        elif isinstance(value, list):
            self.element = self.element or _Seen()
            for below in value:
                self.element.add(below, depth + 1)

    def type(self, depth: int = 0) -> str:
        """Return the narrowest type for all values, as DDL; `json` where there is none."""
        kinds = set(self.types) - {"null"}
        if not kinds or depth >= DEEPEST - 1:
            return "json"
        if kinds == {"object"}:
            return self._object_type(depth)
        if kinds == {"array"}:
            return f"array<{self.element.type(depth + 1) if self.element and self.element.types else 'json'}>"
        if kinds <= {"bigint", "double"} and not ("double" in kinds and self.large):
            return "double" if "double" in kinds else "bigint"
        if kinds == {"bigint", _LARGE}:
            return _LARGE
        if len(kinds) == 1:
            return kinds.pop()
        return "string" if kinds <= {"string", "timestamp", "date"} else "json"

    def _object_type(self, depth: int) -> str:
        if not self.has_names:
            return "json"
        if self._is_map():
            values = _Seen()
            for each in self.fields.values():
                values.merge(each)
            return f"map<string, {values.type(depth + 1)}>"
        return f"struct<{self.field_list(depth)}>"

    def field_list(self, depth: int = 0) -> str:
        """Return the fields of an object as DDL, in the order in which they were seen first."""
        return ", ".join(f"{quoted_path((name,))} {seen.type(depth + 1)}" for name, seen in self.fields.items() if name)

    @property
    def has_names(self) -> bool:
        """True if an object has a name that a schema can have, which is not empty."""
        return any(self.fields)

    def _is_map(self) -> bool:
        objects = self.types["object"]
        return len(self.fields) > _MOST_FIELDS and all(
            sum(seen.types.values()) <= _SELDOM * objects + 1 for seen in self.fields.values()
        )

    def merge(self, other: _Seen) -> None:
        """Add what was seen elsewhere."""
        self.types += other.types
        self.large = self.large or other.large
        for name, seen in other.fields.items():
            self.fields.setdefault(name, _Seen()).merge(seen)
        if other.element is not None:
            self.element = self.element or _Seen()
            self.element.merge(other.element)

    def paths(self, path: str = "") -> Iterator[tuple[str, Counter[str]]]:
        """Yield each path with the types seen there."""
        yield path or "document", self.types
        if self._is_map():
            values = _Seen()
            for each in self.fields.values():
                values.merge(each)
            yield from values.paths(f"{path}[*]")
            return
        for name, seen in self.fields.items():
            yield from seen.paths(f"{path}.{quoted_path((name,))}" if path else quoted_path((name,)))
        if self.element is not None:
            yield from self.element.paths(f"{path}[]")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -(1 << 63) <= value < 1 << 63 else _LARGE if abs(value) < _MOST_DIGITS else "double"
    if isinstance(value, str):
        return "timestamp" if _TIME.fullmatch(value) else "date" if _DATE.fullmatch(value) else "string"
    return {dict: "object", list: "array", float: "double", type(None): "null"}[type(value)]


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """Schema of a sample of documents. As text it is DDL for the option `document`.

    documents: number of documents in the sample. not_json: how many of them are no JSON.
    paths: for each path, how often which type was seen there.
    """

    type: DocumentType
    documents: int
    not_json: int
    paths: Mapping[str, Mapping[str, int]]

    def __str__(self) -> str:
        return ddl(self.type)


def infer_schema(
    url: str,
    *,
    scope: str | None = None,
    collections: str | Iterable[str] | None = None,
    only_keys: str | bytes | Iterable[str | bytes] | None = None,
    where: str | None = None,
    sample: int = 10_000,
) -> InferredSchema:
    """Return the schema of a sample of documents, and how often which type was seen at each path.

    url: connection string, as for `dcp.connect`.
    scope, collections, only_keys, where: which documents; as for `Client.stream`.
    sample: number of documents to read. The nodes send their oldest changes first.

    Strings that are all times with an offset, or all dates, get these types. Where types are mixed, the type is `json`;
    so it is where a double would round whole numbers.

    Raises UsageError if there is no document, or none that is a JSON object.
    """
    if sample < 1:
        raise UsageError(f"sample: expected 1 or more documents, found {sample!r:.100}")
    seen, documents, not_json = _Seen(), 0, 0
    with (
        connect(url) as client,
        client.stream(
            end="now",
            scope=scope,
            collections=collections,
            columns=["value"],
            only_events="mutation",
            only_keys=only_keys,
            where=where,
            on_bad_value="quarantine",
            batch_rows=min(sample, _BATCH_ROWS),
        ) as stream,
    ):
        for batch in stream:
            for row in batch.to_arrow().to_pylist()[: sample - documents]:
                documents += 1
                try:
                    seen.add(json.loads(row["value"]))
                except (ValueError, RecursionError):
                    not_json += 1
            if documents >= sample:
                break
    if not seen.has_names:
        found = "none" if not documents else f"{documents} of which none is a JSON object with fields"
        raise UsageError(f"sample: expected documents to infer a schema from, found {found}")
    objects = _Seen(Counter({"object": seen.types["object"]}), seen.fields)
    return InferredSchema(
        document_type(objects.field_list() if not objects._is_map() else objects.type()),
        documents,
        not_json,
        {path: dict(types) for path, types in seen.paths()},
    )
