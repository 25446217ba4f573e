"""Frames with documents, and what a decoder makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dcp
from dcp.wire.layout import Magic

FIELDS = {"rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0}


def mutation(value: bytes, seqno: int = 1, key: bytes = b"k", datatype: int = 1) -> bytes:
    """Return the frame of a mutation."""
    fields = {"seqno": seqno} | FIELDS
    frame = dcp.Frame("mutation", Magic.REQUEST, datatype=datatype, cas=1 << 20, key=key, value=value, fields=fields)
    return dcp.encode(frame)


def deletion(seqno: int, key: bytes = b"k", value: bytes = b"", datatype: int = 0) -> bytes:
    """Return the frame of a deletion."""
    fields = {"seqno": seqno, "rev_seqno": 1}
    return dcp.encode(dcp.Frame("deletion", Magic.REQUEST, datatype=datatype, key=key, value=value, fields=fields))


def decoded(values: Iterable[bytes], document: Any, **options: Any) -> list[dict[str, Any]]:
    """Return the rows that a decoder makes of mutations with these values."""
    decoder = dcp.Decoder(columns=["seqno", "document"], document=document, **options)
    for number, value in enumerate(values, 1):
        decoder.feed(mutation(value, number))
    table = decoder.take().to_arrow()
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def document_of(text: str | bytes, schema: Any) -> tuple[Any, str | None]:
    """Return document and error of one value."""
    (row,) = decoded([text.encode() if isinstance(text, str) else text], schema)
    return row["document"], row["error"]
