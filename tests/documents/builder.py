"""A second reader of documents, slow and plain: `json.loads`, then a value for each type."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from datetime import date
from decimal import Decimal
from typing import Any

from dcp._codec import DocumentKind
from dcp.columns.document_schema import DocumentType

_BITS = {
    DocumentKind.DOCUMENT_INT8: 8,
    DocumentKind.DOCUMENT_INT16: 16,
    DocumentKind.DOCUMENT_INT32: 32,
    DocumentKind.DOCUMENT_INT64: 64,
}
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?)?", re.ASCII
)


class Wrong(Exception):
    """A value that is not of its type."""


class Number(str):
    """The digits of a number."""


class Builder:
    """Reads documents, and counts what was wrong in each."""

    def __init__(self, type: DocumentType) -> None:
        self._type = type
        self.wrong = 0

    def read(self, text: str) -> Any:
        """Return the document of a text that is JSON."""
        self.wrong = 0
        return self._value(self._type, json.loads(text, parse_int=Number, parse_float=Number))

    def _value(self, type: DocumentType, value: Any) -> Any:
        if value is None:
            return None
        try:
            return self._typed(type, value)
        except Wrong:
            self.wrong += 1
            return None

    def _typed(self, type: DocumentType, value: Any) -> Any:
        kind = type.kind
        if kind is DocumentKind.DOCUMENT_STRUCT:
            _expect(isinstance(value, dict))
            return {field.name: self._field(value, field.source, field.type) for field in type.fields}
        if kind is DocumentKind.DOCUMENT_LIST:
            _expect(isinstance(value, list))
            return [self._value(type.fields[0].type, element) for element in value]
        if kind is DocumentKind.DOCUMENT_MAP:
            _expect(isinstance(value, dict))
            return {name: self._value(type.fields[1].type, element) for name, element in value.items()}
        return _scalar(type, value)

    def _field(self, value: dict[str, Any], path: tuple[str, ...], type: DocumentType) -> Any:
        # A path through something else than an object is counted once for each object, by the caller's own account.
        for name in path[:-1]:
            found = value.get(name)
            if not isinstance(found, dict):
                return None
            value = found
        return self._value(type, value.get(path[-1]))


def _expect(holds: bool) -> None:
    if not holds:
        raise Wrong


def _scalar(type: DocumentType, value: Any) -> Any:
    kind = type.kind
    if kind is DocumentKind.DOCUMENT_BOOL:
        _expect(isinstance(value, bool))
        return value
    if kind is DocumentKind.DOCUMENT_DECIMAL:
        _expect(isinstance(value, str))
        return _decimal(value, type.precision, type.scale)
    if isinstance(value, Number):
        return _number(type, value)
    _expect(isinstance(value, str))
    if kind is DocumentKind.DOCUMENT_STRING:
        return value
    if kind is DocumentKind.DOCUMENT_BINARY:
        try:
            # Python takes text with bits under its padding that are not 0.
            found = base64.b64decode(value.encode("ascii"), validate=True)
        except (UnicodeEncodeError, binascii.Error):
            raise Wrong from None
        _expect(base64.b64encode(found).decode() == value)
        return found
    if kind is DocumentKind.DOCUMENT_DATE:
        return _date(value)
    _expect(kind in (DocumentKind.DOCUMENT_TIMESTAMP, DocumentKind.DOCUMENT_LOCAL_TIMESTAMP))
    return _time(value, local=kind is DocumentKind.DOCUMENT_LOCAL_TIMESTAMP)


def _number(type: DocumentType, text: Number) -> Any:
    if type.kind in _BITS:
        number = Decimal(text)
        _expect(number.adjusted() < 30 and number == number.to_integral_value())
        whole = int(number)
        _expect(-(1 << (_BITS[type.kind] - 1)) <= whole < 1 << (_BITS[type.kind] - 1))
        return whole
    if type.kind is DocumentKind.DOCUMENT_EPOCH:
        number = Decimal(text)
        _expect(number.adjusted() < 30)
        micros = int(number.scaleb(type.scale)) if number.adjusted() > -30 else 0
        _expect(abs(micros) < 1 << 63)
        return micros
    _expect(type.kind in (DocumentKind.DOCUMENT_FLOAT64, DocumentKind.DOCUMENT_FLOAT32))
    wide = float(text)
    _expect(abs(wide) != float("inf"))
    if type.kind is DocumentKind.DOCUMENT_FLOAT64:
        return wide
    try:
        return struct.unpack("f", struct.pack("f", wide))[0]
    except OverflowError:
        raise Wrong from None


def _decimal(text: str, precision: int, scale: int) -> Decimal:
    _expect(re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", text, re.ASCII) is not None)
    number = Decimal(text)
    if not number:
        return Decimal(0).scaleb(-scale)
    _expect(abs(number.adjusted()) < 100)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    while digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    _expect(exponent >= -scale and len(digits) + exponent <= precision - scale)
    return Decimal((sign, (*digits, *[0] * (exponent + scale)), -scale))


def _date(text: str) -> date:
    _expect(re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) is not None)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Wrong from None


def _time(text: str, local: bool) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise Wrong
    day, hour, minute, second, fraction, zulu, sign, hours, minutes = match.groups()
    _expect(local == (zulu is None and sign is None))
    _expect(int(hour) < 24 and int(minute) < 60 and int(second or 0) < 60)
    _expect(int(hours or 0) < 24 and int(minutes or 0) < 60)
    days = (_date(day) - date(1970, 1, 1)).days
    offset = (int(hours or 0) * 60 + int(minutes or 0)) * (-1 if sign == "-" else 1)
    seconds = days * 86400 + int(hour) * 3600 + int(minute) * 60 + int(second or 0) - offset * 60
    return seconds * 1_000_000 + int((fraction or "0")[:6].ljust(6, "0"))


def plain(type: DocumentType, value: Any) -> Any:
    """Return a value of pyarrow as the builder has it: times in microseconds, maps as dicts."""
    if value is None:
        return None
    if type.kind is DocumentKind.DOCUMENT_STRUCT:
        return {field.name: plain(field.type, value[field.name]) for field in type.fields}
    if type.kind is DocumentKind.DOCUMENT_LIST:
        return [plain(type.fields[0].type, element) for element in value]
    if type.kind is DocumentKind.DOCUMENT_MAP:
        return {name: plain(type.fields[1].type, element) for name, element in value}
    return value
