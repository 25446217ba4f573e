"""Document in the hands of operations: its body, its xattrs, and the virtual xattrs that are made of its metadata."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable
from typing import NamedTuple

from dcp.embedded import subdocument
from dcp.embedded.commands.documents import DocumentRef
from dcp.embedded.commands.subdoc_request import (
    DELETE_DOCUMENT,
    GET_BODY,
    MACROS,
    REPLACE_BODY,
    SET_BODY,
    PathFlag,
    SubdocOperation,
)
from dcp.embedded.document import body_of, inflate, is_json, is_system_xattr
from dcp.embedded.release import Release, ReleaseNumber
from dcp.embedded.store import StoredItem
from dcp.embedded.subdocument import Edit, SubdocumentError
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.memcached import Status

_Lookup = Callable[[str, subdocument.Path], str]
_LOOKUPS: dict[str, _Lookup] = {
    "get": subdocument.get,
    "exists": lambda text, path: subdocument.get(text, path) and "",
    "get_count": subdocument.count,
}
_EDITS: dict[str, Edit] = {
    "dict_add": subdocument.dict_add,
    "dict_upsert": subdocument.dict_upsert,
    "delete": subdocument.delete,
    "replace": subdocument.replace,
    "array_push_last": subdocument.array_push_last,
    "array_push_first": subdocument.array_push_first,
    "array_insert": subdocument.array_insert,
    "array_add_unique": subdocument.array_add_unique,
    "counter": subdocument.counter,
}
_VBUCKET_XATTR: ReleaseNumber = (6, 6)
# Since then xattrs are parsed and written again when one of them changes: sorted by name, without spaces.
_XATTRS_REWRITTEN: ReleaseNumber = (7, 6)
# Members of $document that macros do not know.
_NOT_FOR_MACROS = ("value_crc32c",)
_BASE64 = "cb-content-base64-encoded:"
_CRC_POLYNOMIAL = 0x82F63B78


class WriteIdentity(NamedTuple):
    """CAS and seqno that a mutation gets, which macros stand for."""

    cas: int
    seqno: int


class DocumentParts:
    """Body and xattrs of a document as texts, and the metadata of the version that was read."""

    def __init__(self, ref: DocumentRef, item: StoredItem | None, release: Release, now: int) -> None:
        self._ref, self._item, self._release, self._now = ref, item, release, now
        self.body = b"" if item is None else body_of(item)
        self.xattrs: dict[str, str] = {}
        # True if the operations remove the document.
        self.removed = False
        if item is not None and item.datatype & Datatype.XATTR:
            value = inflate(item.value) if item.datatype & Datatype.SNAPPY else item.value
            self.xattrs = {name.decode(): text.decode() for name, text in split_xattrs(value)[0]}
        # Stands for the checksum of the body until the body is complete.
        self._checksum = secrets.token_hex(16)

    # Lookups.

    def look_up(self, operation: SubdocOperation) -> bytes:
        """Return the value that an operation reads."""
        if operation.name == GET_BODY:
            if not self.body:
                raise SubdocumentError(Status.SUBDOC_PATH_ENOENT)
            return self.body
        text = self._xattrs_of(operation) if operation.on_xattrs else self._json()
        found = _LOOKUPS[operation.name](text, _path(operation))
        return _from_base64(found) if PathFlag.BINARY_VALUE in operation.flags else found.encode()

    def _json(self) -> str:
        if not is_json(self.body):
            raise SubdocumentError(Status.SUBDOC_DOC_NOTJSON)
        return self.body.decode()

    def _xattrs_of(self, operation: SubdocOperation) -> str:
        """Return the object with the xattrs that a path is about."""
        if not operation.virtual:
            return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in self.xattrs.items()) + "}"
        name = operation.xattr
        if name == "$document":
            return _dumps({name: self._metadata()})
        if name == "$XTOC":
            return _dumps({name: list(self.xattrs)})
        if name == "$vbucket" and self._release.number >= _VBUCKET_XATTR:
            return _dumps({name: {"HLC": {"mode": "real", "now": str(self._now)}}})
        raise SubdocumentError(Status.SUBDOC_XATTR_UNKNOWN_VATTR)

    def _metadata(self) -> dict[str, object]:
        """Return the members of $document."""
        item = self._item
        if item is None:
            return {}
        kinds = [kind.name.lower() for kind in Datatype if item.datatype & kind and kind.name] or ["raw"]
        return {
            "CAS": f"0x{item.cas:016x}",
            "datatype": kinds,
            "deleted": not item.alive,
            "exptime": item.expiry,
            "flags": item.flags,
            "last_modified": str(item.cas // 1_000_000_000),
            "revid": str(item.rev_seqno),
            "seqno": f"0x{item.seqno:016x}",
            "value_bytes": len(self.body),
            "value_crc32c": f"0x{_crc32c(self.body):08x}",
            "vbucket_uuid": f"0x{self._ref.vbucket.log.newest.vbuuid:016x}",
        }

    # Mutations.

    def change(self, operation: SubdocOperation, identity: WriteIdentity, *, create: bool) -> bytes:
        """Make one change; return the value that the client gets of it. `create` adds missing objects on the way."""
        if operation.name == SET_BODY:
            self.body = operation.value
        elif operation.name == DELETE_DOCUMENT:
            self.body, self.removed = b"", True
            self.xattrs = {name: text for name, text in self.xattrs.items() if is_system_xattr(name)}
        elif operation.name == REPLACE_BODY:
            text = subdocument.get(self._xattrs_of(operation), _path(operation))
            self.body = _from_base64(text) if PathFlag.BINARY_VALUE in operation.flags else text.encode()
        else:
            return self._edit(operation, identity, create or PathFlag.CREATE_PATH in operation.flags).encode()
        return b""

    def _edit(self, operation: SubdocOperation, identity: WriteIdentity, create: bool) -> str:
        path, edit = _path(operation), _EDITS[operation.name]
        if not operation.on_xattrs:
            text = edit(self._json(), path, self._new_text(operation, identity), create)
            self.body = text.encode()
        else:
            text = edit(self._xattrs_of(operation), path, self._new_text(operation, identity), create)
            self._keep_xattrs(text, operation.xattr)
        return subdocument.get(text, path) if operation.name == "counter" else ""

    def _keep_xattrs(self, text: str, changed: str) -> None:
        xattrs = json.loads(text)
        if self._release.number >= _XATTRS_REWRITTEN:
            self.xattrs = {name: _dumps(xattrs[name]) for name in sorted(xattrs)}
            return
        # The one that changed moves to the end.
        self.xattrs.pop(changed, None)
        if changed in xattrs:
            self.xattrs[changed] = subdocument.get(text, [changed])

    def _new_text(self, operation: SubdocOperation, identity: WriteIdentity) -> str:
        if PathFlag.BINARY_VALUE in operation.flags:
            return f'"{_BASE64}{base64.b64encode(operation.value).decode()}"'
        try:
            text = operation.value.decode()
        except UnicodeDecodeError:
            raise SubdocumentError(Status.SUBDOC_VALUE_CANTINSERT) from None
        return self._expanded(text, identity) if PathFlag.EXPAND_MACROS in operation.flags else text

    def _expanded(self, macro: str, identity: WriteIdentity) -> str:
        """Return what a macro stands for."""
        if macro in MACROS:
            # The CAS is in the byte order of the network, which clients swap.
            cas = f"0x{identity.cas.to_bytes(8, 'little').hex()}"
            return f'"{(cas, f"0x{identity.seqno:016x}", self._checksum)[MACROS.index(macro)]}"'
        metadata = self._metadata()
        name = macro.removeprefix('"${$document').removesuffix('}"')
        if not name:
            return _dumps(metadata)
        member = name.removeprefix(".")
        if not name.startswith(".") or member not in metadata or member in _NOT_FOR_MACROS:
            raise SubdocumentError(Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO)
        # The only member that is text in $document and a number as a macro.
        return str(metadata[member]) if member == "last_modified" else _dumps(metadata[member])

    # The new version.

    @property
    def value(self) -> bytes:
        """Value to store, with the checksum of the body where an xattr has it."""
        texts = self.xattrs
        if any(self._checksum in text for text in texts.values()):
            checksum = f"0x{_crc32c(self.body):08x}"
            texts = {name: text.replace(self._checksum, checksum) for name, text in texts.items()}
        pairs = [(name.encode(), text.encode()) for name, text in texts.items()]
        return join_xattrs(pairs, self.body) if pairs else self.body

    @property
    def datatype(self) -> int:
        """Datatype of the value to store."""
        return (Datatype.JSON if is_json(self.body) else 0) | (Datatype.XATTR if self.xattrs else 0)


def _path(operation: SubdocOperation) -> subdocument.Path:
    """Return the parts of an operation's path. That of an xattr begins with its name, which nothing escapes."""
    if not operation.on_xattrs:
        return subdocument.parse_path(operation.path)
    # An index stands right behind the name, a member behind a dot.
    return [operation.xattr, *subdocument.parse_path(f"x{operation.path[len(operation.xattr) :]}")[1:]]


def _from_base64(text: str) -> bytes:
    """Return the bytes of an xattr's value that clients sent as such."""
    value = json.loads(text)
    if isinstance(value, str) and value.startswith(_BASE64):
        try:
            return base64.b64decode(value.removeprefix(_BASE64), validate=True)
        except binascii.Error:
            pass
    raise SubdocumentError(Status.SUBDOC_FIELD_NOT_BINARY_VALUE)


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def _crc_table() -> tuple[int, ...]:
    """Return the remainder of each byte."""
    table = []
    for remainder in range(256):
        for _ in range(8):
            remainder = remainder >> 1 ^ (_CRC_POLYNOMIAL if remainder & 1 else 0)
        table.append(remainder)
    return tuple(table)


_CRC_TABLE = _crc_table()


def _crc32c(data: bytes) -> int:
    """Return the checksum of RFC 3720, Castagnoli."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder = remainder >> 8 ^ _CRC_TABLE[(remainder ^ byte) & 0xFF]
    return remainder ^ 0xFFFFFFFF
