"""Columns of a batch: names, Arrow types, order, and the part of a message that fills each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache

from dcp import _codec
from dcp._codec import Source
from dcp.columns.document_schema import DocumentType, arrow_format, ddl
from dcp.errors import UsageError
from dcp.wire.layout import HEADER, Dialect, Role


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a batch.

    name: name in the batch, and of the field of a message that fills it.
    format: type as a format string of the Arrow C data interface.
    about: description for the documentation.
    source: part of a message that fills it.
    nullable: True if the cell is null where a message lacks the field; else it is 0.
    default: True if the column is there unless others are chosen.
    declared_nullable: True to declare it nullable to Arrow although it never has nulls.
    document: schema of a column of documents.
    """

    name: str
    format: str
    about: str
    source: Source = Source.FIELD
    nullable: bool = False
    default: bool = True
    declared_nullable: bool = False
    document: DocumentType | None = None


_UNSIGNED = {1: "C", 2: "S", 4: "I", 8: "L"}
DICTIONARY = "c"

# In the default order. Columns that are not default ones have to be named.
COLUMNS = (
    Column("event", DICTIONARY, "kind of the change", Source.EVENT),
    Column("vbucket", "S", "number of the vbucket (partition) of the key"),
    Column("seqno", "L", "sequence number of the change in its vbucket"),
    Column("rev_seqno", "L", "number of changes of the document so far"),
    Column("cas", "L", "version of the document: a hybrid clock"),
    Column("timestamp", "tsu:UTC", "time of the change: the clock part of the CAS", Source.TIMESTAMP, default=False),
    Column("flags", "I", "flags that the writing client stored"),
    Column("expiry", "I", "expiry of the document in Unix seconds; 0 for never"),
    Column("lock_time", "I", "always 0"),
    Column("delete_time", "I", "time of the deletion in Unix seconds", nullable=True),
    Column("datatype", "C", "format in which the value was sent, a bit set: 1 JSON, 2 snappy, 4 xattrs"),
    Column("collection_id", "I", "id of the collection", Source.COLLECTION, nullable=True),
    Column("key", "z", "key, without its collection prefix", Source.KEY),
    Column("value", "z", "body of the document", Source.VALUE),
    Column("xattrs", "z", "section of extended attributes", Source.XATTRS, nullable=True),
    Column("snapshot_start", "L", "first seqno of the snapshot", Source.SNAPSHOT_START, nullable=True),
    Column("snapshot_end", "L", "last seqno of the snapshot", Source.SNAPSHOT_END, nullable=True),
    Column("stream_id", "S", "id of the stream, where several share a vbucket", Source.STREAM_ID, nullable=True),
    Column("document", "+s", "JSON of the value, by a schema", Source.DOCUMENT, default=False, declared_nullable=True),
    Column(
        "bad_value", "z", "value that could not be read, as received", Source.BAD_VALUE, nullable=True, default=False
    ),
    Column(
        "error",
        "u",
        "reason why the value or a part of it could not be read",
        Source.ERROR,
        nullable=True,
        default=False,
    ),
)
# Types for consumers without unsigned numbers and dictionaries. 64-bit numbers keep their bits.
_PLAIN = {DICTIONARY: "u", "C": "i", "S": "i", "I": "l", "L": "l"}
_BY_NAME = {column.name: column for column in COLUMNS if column.source is not Source.DOCUMENT}
_DOCUMENT = next(column for column in COLUMNS if column.source is Source.DOCUMENT)


@cache
def columns_of(dialect: Dialect) -> Mapping[str, Column]:
    """Return every column that rows of a dialect can have: `COLUMNS`, and one for each further field of its rows.

    Without the column of documents, which needs a schema.
    """
    fields = {
        field.name: Column(field.name, _UNSIGNED[field.width], "field of the message", default=False)
        for message in dialect.messages
        if message.role is Role.ROW
        for layout in message.sent
        for section in (layout.extras, layout.engine)
        for field in (*HEADER[-2:], *section)
        if field.visible
    }
    return _BY_NAME | {name: column for name, column in fields.items() if name not in _BY_NAME}


@lru_cache(maxsize=256)
def plain(column: Column) -> Column:
    """Return the column with a type that Spark has, nullable as all columns of Spark are."""
    return replace(column, format=_PLAIN.get(column.format, column.format), declared_nullable=True)


def choose(dialect: Dialect, names: Iterable[str] | None, document: DocumentType | None = None) -> tuple[Column, ...]:
    """Return the columns with these names, in their order; the default ones for None.

    document: schema of the column `document`, which follows the others if it is not named. Of the default columns it
        takes the place of `value`.

    Raises UsageError if the dialect has no column of a name, if a name is there twice, or if there is none.
    """
    if names is None:
        replaced = {"value": _documents(document)} if document is not None else {}
        return tuple(replaced.get(column.name, column) for column in COLUMNS if column.default)
    known = columns_of(dialect)
    chosen = [names] if isinstance(names, str) else list(names)
    if document is not None:
        known = {**known, _DOCUMENT.name: _documents(document)}
        chosen += [] if _DOCUMENT.name in chosen else [_DOCUMENT.name]
    for name in chosen:
        if name == _DOCUMENT.name and name not in known:
            raise UsageError("columns: `document` needs a schema, such as document='id bigint, name string'")
        if name not in known:
            close = get_close_matches(str(name), known, 3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
            if name in ("collection", "scope"):
                hint = "streams have it; for others there is collection_id, and Client.collections() has the names"
            raise UsageError(f"columns: there is no column {name!r} in dialect {dialect.name}; {hint}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise UsageError(f"columns: expected one or more names, each once, found {chosen}")
    return tuple(known[name] for name in chosen)


def _documents(document: DocumentType) -> Column:
    return replace(_DOCUMENT, format=arrow_format(document), document=document)


class BatchSchema(Sequence[Column]):
    """Columns of a batch, in order. Any Arrow library reads it: `pyarrow.schema(batch.schema)`."""

    def __init__(self, columns: Sequence[Column], plan: _codec.Plan) -> None:
        self._columns = tuple(columns)
        self._plan = plan

    def __arrow_c_schema__(self) -> object:
        return self._plan.__arrow_c_schema__()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __getitem__(self, index: int) -> Column:  # type: ignore[override]
        return self._columns[index]

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchSchema) and self._columns == other._columns

    def __hash__(self) -> int:
        return hash(self._columns)

    def __repr__(self) -> str:
        types = (ddl(column.document) if column.document else column.format for column in self._columns)
        return f"BatchSchema({', '.join(map(': '.join, zip(self.names, types, strict=True)))})"
