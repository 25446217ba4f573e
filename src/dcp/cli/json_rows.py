"""Changes as JSON: rows of batches as objects, one a line."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

from dcp.client import Client

if TYPE_CHECKING:
    import pyarrow as pa


class CollectionNames:
    """Paths of collections by id. An unknown id is queried once; that of a dropped collection stays a number."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[int, str] = client.collections()

    def __getitem__(self, number: int) -> str:
        if number not in self._known:
            # The order matters: a name that was known stays after its collection was dropped, and the number is used
            # only if no manifest had the collection.
            self._known = {number: f"0x{number:x}"} | self._known | self._client.collections()
        return self._known[number]

    def __len__(self) -> int:
        return len(self._known)


def objects(table: pa.Table | pa.RecordBatch, names: CollectionNames | None) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict for JSON: without nulls, 64-bit numbers as text, keys that are not UTF-8 as `key_hex`.

    A value stays bytes, so that `line` can copy a document without parsing its numbers.
    """
    import pyarrow

    wide = {field.name for field in table.schema if pyarrow.types.is_uint64(field.type)}
    for row in table.to_pylist():
        found = {name: _plain(name, value, wide) for name, value in row.items() if value is not None}
        if (number := found.pop("collection_id", None)) is not None and names is not None:
            found["collection"] = names[number]
        if "xattrs" in found:
            found["xattrs"] = dict(found["xattrs"])
        # Key and value come last in the line.
        if "key" in found:
            found |= _text("key", found.pop("key"))
        if "value" in found:
            found["value"] = found.pop("value")
        if "document" in found:
            found["document"] = _typed(found.pop("document"), table.schema.field("document").type)
        if "bad_value" in found:
            found |= _text("bad_value", found.pop("bad_value"))
        yield found


def line(row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON. A value that is JSON is embedded as it was stored, to the last digit."""
    value = row.get("value")
    if not isinstance(value, bytes):
        return json.dumps(row, ensure_ascii=False)
    rest = {name: cell for name, cell in row.items() if name != "value"}
    document = _document(value)
    if document is None:
        return json.dumps(rest | _text("value", value), ensure_ascii=False)
    return f'{json.dumps(rest, ensure_ascii=False)[:-1]}, "value": {document}}}'


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as lines of JSON."""
    return "".join(f"{line(row)}\n" for row in rows)


def _plain(name: str, value: Any, wide: set[str]) -> Any:
    """Return a cell as JSON can hold it. Most JSON parsers would round numbers of 64 bits."""
    if name in wide:
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _typed(value: Any, type: pa.DataType) -> Any:
    """Return a cell of a document as JSON can hold it: decimals as text, to the last digit, and bytes as base64."""
    import pyarrow

    if value is None:
        return None
    if pyarrow.types.is_struct(type):
        return {field.name: _typed(value[field.name], field.type) for field in type}
    if pyarrow.types.is_map(type):
        return {name: _typed(element, type.item_type) for name, element in value}
    if pyarrow.types.is_list(type):
        return [_typed(element, type.value_type) for element in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _text(name: str, data: bytes) -> dict[str, str]:
    """Return bytes as text under `name`, or in hexadecimal under `name_hex`."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_hex": data.hex()}


def _document(data: bytes) -> str | None:
    """Return the text of a JSON document on one line; None if it is no JSON.

    Line ends in valid JSON are always between tokens, since strings escape them.
    """
    try:
        text = data.decode()
        json.loads(text, parse_constant=_refuse, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return None
    return text.replace("\r", " ").replace("\n", " ")


def _refuse(text: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's parser accepts and JSON lacks."""
    raise ValueError(text)
