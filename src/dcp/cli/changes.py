"""Changes as text: rows of batches as JSON objects, and the names of collections in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from dcp.client import Client

if TYPE_CHECKING:
    import pyarrow as pa


class Names:
    """The paths of collections by their ids. One that is unknown is asked for once; dropped ones have no name."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[int, str] = client.collections()

    def __getitem__(self, number: int) -> str:
        if number not in self._known:
            self._known = {number: f"0x{number:x}"} | self._known | self._client.collections()
        return self._known[number]

    def __len__(self) -> int:
        return len(self._known)


def objects(table: pa.Table | pa.RecordBatch, names: Names | None) -> Iterator[dict[str, Any]]:
    """Each row as JSON can say it, nulls left out: 64-bit numbers as text, bytes that are no text as hexadecimal.

    A value stays bytes, so that `line` can write a document as it was stored.
    """
    import pyarrow

    big = {field.name for field in table.schema if pyarrow.types.is_uint64(field.type)}
    for row in table.to_pylist():
        found = {name: _plain(name, value, big) for name, value in row.items() if value is not None}
        if (number := found.pop("collection_id", None)) is not None and names is not None:
            found["collection"] = names[number]
        if "xattrs" in found:
            found["xattrs"] = dict(found["xattrs"])
        if "key" in found:
            found |= _text("key", found.pop("key"))
        if "value" in found:
            found["value"] = found.pop("value")
        yield found


def line(row: Mapping[str, Any]) -> str:
    """One line of JSON. A document that is JSON is part of it, to the last digit."""
    value = row.get("value")
    if not isinstance(value, bytes):
        return json.dumps(row, ensure_ascii=False)
    rest = {name: cell for name, cell in row.items() if name != "value"}
    document = _document(value)
    if document is None:
        return json.dumps(rest | _text("value", value), ensure_ascii=False)
    return f'{json.dumps(rest, ensure_ascii=False)[:-1]}, "value": {document}}}'


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"{line(row)}\n" for row in rows)


def _plain(name: str, value: Any, big: set[str]) -> Any:
    if name in big:
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


def _text(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_hex": data.hex()}


def _document(data: bytes) -> str | None:
    """The text of a JSON document on one line: line ends can only stand between its tokens."""
    try:
        text = data.decode()
        json.loads(text, parse_constant=_refuse, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return None
    return text.replace("\r", " ").replace("\n", " ")


def _refuse(text: str) -> NoReturn:
    raise ValueError(text)
