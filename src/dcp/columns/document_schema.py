"""Schemas of documents: from DDL text, Arrow types or paths to a tree of types, and back to DDL text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dcp import _codec
from dcp._codec import DocumentKind
from dcp.columns.document_text import Token, Tokens, quoted_path, tokens
from dcp.errors import UsageError
from dcp.value_grammar import suggestion

DEEPEST = 64
MOST_TYPES = 10_000
_MOST_DIGITS = 38
_JSON_EXTENSION = "arrow.json"


@dataclass(frozen=True, slots=True)
class DocumentType:
    """Type of a document, or of a part of one.

    precision, scale: of a decimal. Of an epoch, `scale` is the power of ten from its unit to microseconds.
    fields: of a struct; the element of a list; key and value of a map.
    """

    kind: DocumentKind
    precision: int = 0
    scale: int = 0
    fields: tuple[DocumentField, ...] = ()

    def __str__(self) -> str:
        return ddl(self)


@dataclass(frozen=True, slots=True)
class DocumentField:
    """Field of a struct, under a name, from a path of names in the object; () for its own name."""

    name: str
    type: DocumentType
    path: tuple[str, ...] = ()

    @property
    def source(self) -> tuple[str, ...]:
        """Names that lead to the value."""
        return self.path or (self.name,)


@dataclass(frozen=True, slots=True)
class _Scalar:
    """A type without parts: its names in DDL, the first one for output, its Arrow format, and what JSON has for it."""

    names: tuple[str, ...]
    type: DocumentType
    format: str
    expected: str


# The table of scalar types. Decimals have arguments, and are not in it.
SCALARS = (
    _Scalar(("boolean", "bool"), DocumentType(DocumentKind.DOCUMENT_BOOL), "b", "boolean"),
    _Scalar(("tinyint", "byte"), DocumentType(DocumentKind.DOCUMENT_INT8), "c", "tinyint"),
    _Scalar(("smallint", "short"), DocumentType(DocumentKind.DOCUMENT_INT16), "s", "smallint"),
    _Scalar(("int", "integer"), DocumentType(DocumentKind.DOCUMENT_INT32), "i", "int"),
    _Scalar(("bigint", "long"), DocumentType(DocumentKind.DOCUMENT_INT64), "l", "bigint"),
    _Scalar(("float", "real"), DocumentType(DocumentKind.DOCUMENT_FLOAT32), "f", "float"),
    _Scalar(("double",), DocumentType(DocumentKind.DOCUMENT_FLOAT64), "g", "double"),
    _Scalar(("string",), DocumentType(DocumentKind.DOCUMENT_STRING), "u", "string"),
    _Scalar(("binary",), DocumentType(DocumentKind.DOCUMENT_BINARY), "z", "binary (base64)"),
    _Scalar(("date",), DocumentType(DocumentKind.DOCUMENT_DATE), "tdD", "date (YYYY-MM-DD)"),
    _Scalar(
        ("timestamp", "timestamp_ltz"),
        DocumentType(DocumentKind.DOCUMENT_TIMESTAMP),
        "tsu:UTC",
        "timestamp (ISO 8601 with Z or an offset)",
    ),
    _Scalar(
        ("timestamp_ntz",),
        DocumentType(DocumentKind.DOCUMENT_LOCAL_TIMESTAMP),
        "tsu:",
        "timestamp_ntz (ISO 8601 without an offset)",
    ),
    _Scalar(("timestamp_s",), DocumentType(DocumentKind.DOCUMENT_EPOCH, scale=6), "tsu:UTC", "seconds since 1970"),
    _Scalar(
        ("timestamp_ms",), DocumentType(DocumentKind.DOCUMENT_EPOCH, scale=3), "tsu:UTC", "milliseconds since 1970"
    ),
    _Scalar(("timestamp_us",), DocumentType(DocumentKind.DOCUMENT_EPOCH), "tsu:UTC", "microseconds since 1970"),
    _Scalar(("json",), DocumentType(DocumentKind.DOCUMENT_JSON), "u", "JSON"),
)
_BY_NAME = {name: scalar for scalar in SCALARS for name in scalar.names}
_BY_TYPE = {scalar.type: scalar for scalar in SCALARS}
_STRING = _BY_NAME["string"].type
_DECIMALS = ("decimal", "dec", "numeric")
# Arrow formats with another layout than the column gets, but the same values.
_SAME_VALUES = {"U": "u", "vu": "u", "Z": "z", "vz": "z", "+L": "+l", "+vl": "+l", "tdm": "tdD"}


def document_type(schema: object) -> DocumentType:
    """Return the type that a schema describes.

    schema: DDL text, such as "id bigint, customer struct<city string>" or "map<string, double>"; an Arrow schema or
        type; or a mapping of names to "path type", such as {"city": "customer.address.city string"}.

    Raises UsageError if it is none of these, or has a type that documents cannot have.
    """
    if isinstance(schema, DocumentType):
        return schema
    if isinstance(schema, str):
        found = _Parser(schema).schema()
    elif hasattr(schema, "__arrow_c_schema__"):
        # Before mappings: the schema of Polars is both.
        found = _from_arrow(_codec.read_schema(schema.__arrow_c_schema__()), ())
    elif isinstance(schema, Mapping):
        found = _struct(_field_of(name, text) for name, text in schema.items())
    else:
        raise UsageError(
            "document: expected DDL such as 'id bigint, name string', an Arrow schema, or a mapping of names to "
            f"'path type', found {type(schema).__name__}"
        )
    _check(found)
    return found


def fields_of(schema: object) -> tuple[DocumentField, ...]:
    """Return the fields of documents, for tables with a column for each. Raises UsageError for a schema without."""
    found = document_type(schema)
    if found.kind is not DocumentKind.DOCUMENT_STRUCT:
        raise UsageError(f"document: expected fields such as 'id bigint, name string', found {ddl(found)}")
    return found.fields


def ddl(type: DocumentType, *, top: bool = True) -> str:
    """Return a type as DDL text; the fields of a struct without `struct<>` if it is the top one."""
    kind = type.kind
    if kind is DocumentKind.DOCUMENT_DECIMAL:
        return f"decimal({type.precision},{type.scale})"
    if kind is DocumentKind.DOCUMENT_LIST:
        return f"array<{ddl(type.fields[0].type, top=False)}>"
    if kind is DocumentKind.DOCUMENT_MAP:
        return f"map<string, {ddl(type.fields[1].type, top=False)}>"
    if kind is DocumentKind.DOCUMENT_STRUCT:
        fields = ", ".join(
            f"{quoted_path((field.name,))} {ddl(field.type, top=False)}"
            + (f" from {quoted_path(field.path)}" if field.path else "")
            for field in type.fields
        )
        return fields if top else f"struct<{fields}>"
    return _BY_TYPE[type].names[0]


def spark_ddl(type: DocumentType) -> str:
    """Return a type as Spark has it: without paths, and with its own names of times and JSON."""
    kind = type.kind
    if kind is DocumentKind.DOCUMENT_STRUCT:
        fields = ", ".join(f"`{field.name.replace('`', '``')}`: {spark_ddl(field.type)}" for field in type.fields)
        return f"struct<{fields}>"
    if kind is DocumentKind.DOCUMENT_LIST:
        return f"array<{spark_ddl(type.fields[0].type)}>"
    if kind is DocumentKind.DOCUMENT_MAP:
        return f"map<string, {spark_ddl(type.fields[1].type)}>"
    if kind is DocumentKind.DOCUMENT_EPOCH:
        return "timestamp"
    return "string" if kind is DocumentKind.DOCUMENT_JSON else ddl(type)


def arrow_format(type: DocumentType) -> str:
    """Return the Arrow format of a type's column."""
    containers = {
        DocumentKind.DOCUMENT_STRUCT: "+s",
        DocumentKind.DOCUMENT_LIST: "+l",
        DocumentKind.DOCUMENT_MAP: "+m",
        DocumentKind.DOCUMENT_DECIMAL: f"d:{type.precision},{type.scale}",
    }
    return containers.get(type.kind) or _BY_TYPE[type].format


def expected_text(type: DocumentType) -> str:
    """Return what a value of this type is, for errors."""
    containers = {
        DocumentKind.DOCUMENT_STRUCT: "an object",
        DocumentKind.DOCUMENT_LIST: "an array",
        DocumentKind.DOCUMENT_MAP: "an object",
        DocumentKind.DOCUMENT_DECIMAL: ddl(type),
    }
    return containers.get(type.kind) or _BY_TYPE[type].expected


def compile_document(type: DocumentType) -> _codec.DocumentPlan:
    """Return the plan of a type for the loop."""
    types, names, parents, slots = [type], [""], [-1], [0]
    paths: list[tuple[str, ...]] = [()]
    nodes: list[dict[str, Any]] = []
    levels: list[tuple[str, list[list[Any]]]] = []
    at = 0
    while at < len(types):
        here = types[at]
        level, own_slots, field_slots = -1, 0, [0] * len(here.fields)
        if here.kind is DocumentKind.DOCUMENT_STRUCT:
            level = len(levels)
            own_slots, field_slots = _add_levels(here, levels)
        nodes.append(
            {
                "kind": here.kind,
                "parent": parents[at],
                "first": len(types),
                "count": len(here.fields),
                "precision": here.precision,
                "scale": here.scale,
                "level": level,
                "slots": own_slots,
                "slot": slots[at],
                "wants_source": _wants_source(here),
                "expected": expected_text(here),
                "path": quoted_path(paths[at]),
                "name": names[at],
                "format": arrow_format(here),
            }
        )
        for field, slot in zip(here.fields, field_slots, strict=True):
            types.append(field.type)
            names.append(field.name)
            parents.append(at)
            paths.append(field.source)
            slots.append(slot)
        at += 1
    return _codec.DocumentPlan(nodes, [(path, [tuple(member) for member in members]) for path, members in levels])


def _add_levels(struct: DocumentType, levels: list[tuple[str, list[list[Any]]]]) -> tuple[int, list[int]]:
    """Append the objects that a struct reads, its own first. Return the number of slots, and the slot of each field."""
    base = len(levels)
    levels.append(("", []))
    number_of: dict[tuple[str, ...], int] = {(): base}
    members: dict[tuple[str, ...], list[Any]] = {}
    count, slots = 0, []

    def member_of(path: tuple[str, ...]) -> list[Any]:
        if path not in members:
            # Name, slot of the value, level below and the slot for that.
            members[path] = [path[-1], -1, -1, -1]
            levels[number_of[path[:-1]]][1].append(members[path])
        return members[path]

    for field in struct.fields:
        for depth in range(1, len(field.source)):
            path = field.source[:depth]
            member = member_of(path)
            if member[2] < 0:
                number_of[path] = member[2] = len(levels)
                member[3], count = count, count + 1
                levels.append((quoted_path(path), []))
        member = member_of(field.source)
        if member[1] < 0:
            member[1], count = count, count + 1
        slots.append(member[1])
    return count, slots


def _wants_source(type: DocumentType) -> bool:
    # Members of objects find their source from their names; elements of arrays do not have one.
    listed = type.kind is DocumentKind.DOCUMENT_LIST and _wants_source(type.fields[0].type)
    return type.kind is DocumentKind.DOCUMENT_JSON or listed


def _check(type: DocumentType) -> None:
    """Raise UsageError if a type is too deep or has too many parts."""
    count, level, depth = 1, [type], 0
    while level := [field.type for part in level for field in part.fields]:
        count, depth = count + len(level), depth + 1
        if depth > DEEPEST:
            raise UsageError(f"document: expected at most {DEEPEST} levels of types, found more")
        if count > MOST_TYPES:
            raise UsageError(f"document: expected at most {MOST_TYPES} types, found more")


def _struct(fields: Iterator[DocumentField]) -> DocumentType:
    found: dict[str, DocumentField] = {}
    for field in fields:
        if field.name in found:
            raise UsageError(f"document: expected each name once, found {field.name!r} twice")
        if any("\ud800" <= letter <= "\udfff" for name in (field.name, *field.source) for letter in name):
            raise UsageError(f"document: expected names in Unicode, found a surrogate in {field.name!r}")
        found[field.name] = field
    if not found:
        raise UsageError("document: expected one or more fields, found none")
    return DocumentType(DocumentKind.DOCUMENT_STRUCT, fields=tuple(found.values()))


def _list(element: DocumentType) -> DocumentType:
    return DocumentType(DocumentKind.DOCUMENT_LIST, fields=(DocumentField("item", element),))


def _map(value: DocumentType) -> DocumentType:
    fields = DocumentField("key", _STRING), DocumentField("value", value)
    return DocumentType(DocumentKind.DOCUMENT_MAP, fields=fields)


def _decimal(precision: int, scale: int) -> DocumentType:
    if not 1 <= precision <= _MOST_DIGITS or not 0 <= scale <= precision:
        raise UsageError(
            f"document: expected decimal(precision, scale) with a precision of 1 to {_MOST_DIGITS} and a scale of 0 to "
            f"the precision, found decimal({precision},{scale})"
        )
    return DocumentType(DocumentKind.DOCUMENT_DECIMAL, precision, scale)


# From text.


def _field_of(name: object, text: object) -> DocumentField:
    """Return the field for an entry of a mapping: its name, and "path type"."""
    if not isinstance(name, str) or not isinstance(text, str):
        raise UsageError(f"document: expected names and texts such as 'customer.city string', found {name!r}: {text!r}")
    path, type = _Parser(text).path_and_type()
    return DocumentField(name, type, () if path == (name,) else path)


class _Parser:
    """Recursive descent over DDL text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: Tokens = tokens("document", text)
        self._depth = 0

    def schema(self) -> DocumentType:
        """Parse fields, or a single type."""
        found = self._type() if self._is_single_type() else _struct(self._fields())
        self._tokens.expect_end()
        return found

    def path_and_type(self) -> tuple[tuple[str, ...], DocumentType]:
        path, found = self._tokens.path(), self._type()
        self._tokens.expect_end()
        return path, found

    def _is_single_type(self) -> bool:
        first, second = self._tokens.peek(), self._tokens.peek(1)
        if first.kind != "name" or first.text.lower() not in {*_BY_NAME, *_DECIMALS, "struct", "array", "map"}:
            return False
        return second.kind == "end" or second.text in ("<", "(")

    def _fields(self) -> Iterator[DocumentField]:
        while True:
            name = self._tokens.name()
            self._tokens.accept(":")
            type = self._type()
            path: tuple[str, ...] = ()
            while word := self._tokens.accept_word("not", "comment", "from"):
                if word == "not":
                    # Every column may have nulls: a document may be wrong.
                    self._tokens.expect_word("null")
                elif word == "comment":
                    self._tokens.expect_kind("string")
                else:
                    path = self._tokens.path()
            yield DocumentField(name, type, () if path == (name,) else path)
            if not self._tokens.accept(","):
                return

    def _type(self) -> DocumentType:
        self._depth += 1
        if self._depth > DEEPEST + 1:
            raise UsageError(f"document: expected at most {DEEPEST} levels of types, found more")
        token = self._tokens.expect_kind("name")
        found = self._type_named(token)
        self._depth -= 1
        return found

    def _type_named(self, token: Token) -> DocumentType:
        word = token.text.lower()
        if word == "struct":
            self._tokens.expect("<")
            found = _struct(self._fields())
            self._tokens.expect(">")
            return found
        if word == "array":
            self._tokens.expect("<")
            found = _list(self._type())
            self._tokens.expect(">")
            return found
        if word == "map":
            self._tokens.expect("<")
            if self._type() != _STRING:
                raise self._tokens.error(token, "map<string, ...>: names of objects are strings")
            self._tokens.expect(",")
            found = _map(self._type())
            self._tokens.expect(">")
            return found
        if word in _DECIMALS:
            return self._decimal()
        if word in ("varchar", "char"):
            self._tokens.expect("(")
            self._tokens.expect_kind("number")
            self._tokens.expect(")")
            return _STRING
        if word not in _BY_NAME:
            known = [*_BY_NAME, "decimal", "struct", "array", "map"]
            raise self._tokens.error(token, f"a type: {', '.join(known)}", suggestion(word, known))
        return _BY_NAME[word].type

    def _decimal(self) -> DocumentType:
        precision, scale = 10, 0
        if self._tokens.accept("("):
            precision = int(self._tokens.expect_kind("whole").text)
            if self._tokens.accept(","):
                scale = int(self._tokens.expect_kind("whole").text)
            self._tokens.expect(")")
        return _decimal(precision, scale)


# From Arrow.


def _from_arrow(described: Any, path: tuple[str, ...]) -> DocumentType:
    """Return the type for (format, name, metadata, children, has dictionary) of an Arrow schema."""
    format, _, metadata, children, dictionary = described
    if len(path) > DEEPEST:
        raise UsageError(f"document: expected at most {DEEPEST} levels of types, found more")
    if metadata.get("ARROW:extension:name") == _JSON_EXTENSION:
        return _BY_NAME["json"].type
    format = _SAME_VALUES.get(format, format)
    if format == "+s" and not dictionary:
        return _struct(DocumentField(child[1], _from_arrow(child, (*path, child[1]))) for child in children)
    if format in ("+l", "+m") and not dictionary:
        inner = children[0]
        if format == "+l":
            return _list(_from_arrow(inner, (*path, "item")))
        key, value = inner[3]
        if _from_arrow(key, (*path, "key")) == _STRING:
            return _map(_from_arrow(value, (*path, "value")))
    if decimal := re.fullmatch(r"d:(\d+),(\d+)(?:,128)?", format):
        return _decimal(int(decimal[1]), int(decimal[2]))
    if time := re.fullmatch(r"ts[smun]:(.*)", format):
        return _BY_NAME["timestamp" if time[1] else "timestamp_ntz"].type
    for scalar in SCALARS:
        if scalar.format == format and not dictionary:
            return scalar.type
    known = ", ".join(dict.fromkeys(scalar.format for scalar in SCALARS))
    raise UsageError(
        f"document: {quoted_path(path) or 'schema'}: expected an Arrow type of the formats {known}, d:P,S, +s, +l, or "
        f"+m with keys of text, found {format}{' with a dictionary' if dictionary else ''}"
    )
