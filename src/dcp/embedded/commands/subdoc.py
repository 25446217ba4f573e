"""Commands about parts of documents: lookups and mutations of one or several paths, in bodies and xattrs."""

from __future__ import annotations

import json
import re
import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dcp.embedded import subdocument
from dcp.embedded.commands.documents import DocumentRef, document_ref, find
from dcp.embedded.commands.locks import check_cas, readable_cas
from dcp.embedded.commands.writes import absolute_expiry, check_frame_info, write_response
from dcp.embedded.connection import Handler, ServerConnection, response
from dcp.embedded.document import body_of, inflate, is_json
from dcp.embedded.refusals import Refusal
from dcp.embedded.store import StoredItem
from dcp.embedded.subdocument import Edit, SubdocumentError
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.frame import Frame
from dcp.wire.framing import RequestInfo
from dcp.wire.memcached import Feature, Status

# Flags of a path, and of the document.
_CREATE_PATH, _XATTR_PATH, _EXPAND_MACROS = 0x01, 0x04, 0x10
_MAKE_DOCUMENT, _ADD_DOCUMENT, _ACCESS_DELETED = 0x01, 0x02, 0x04
_NEW_DOCUMENT = _MAKE_DOCUMENT | _ADD_DOCUMENT
_KNOWN_DOC_FLAGS = _NEW_DOCUMENT | _ACCESS_DELETED
_KNOWN_PATH_FLAGS = _CREATE_PATH | _XATTR_PATH | _EXPAND_MACROS
_MOST_PATHS = 16
_LARGEST_BODY = 20 << 20
_LONGEST_XATTR_NAME = 15

_LOOKUP_SPEC, _MUTATION_SPEC = struct.Struct(">BBH"), struct.Struct(">BBHI")
_LOOKUP_RESULT, _MUTATION_RESULT, _FAILED_MUTATION = struct.Struct(">HI"), struct.Struct(">BHI"), struct.Struct(">BH")

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
# Opcodes of the operations in commands for several paths. "" is the whole document.
_LOOKUP_NAMES = {0x00: "", 0xC5: "get", 0xC6: "exists", 0xD2: "get_count"}
_EDIT_NAMES = {0x01: "", **dict(enumerate(_EDITS, 0xC7))}


class _Operation(NamedTuple):
    """Operation on a path. `name` is "" for the whole body."""

    name: str
    flags: int
    path: str
    value: bytes = b""

    @property
    def on_xattrs(self) -> bool:
        return bool(self.flags & _XATTR_PATH)


@dataclass
class _Parts:
    """Body and xattrs of a document, as texts."""

    body: bytes
    xattrs: dict[str, str]
    # Virtual xattrs, which are made of the metadata.
    virtual: dict[str, str]
    # Stands for the checksum of the body, until the body is complete.
    checksum: str = field(default_factory=lambda: secrets.token_hex(16))

    def text(self) -> str:
        if not is_json(self.body):
            raise SubdocumentError(Status.SUBDOC_DOC_NOTJSON)
        return self.body.decode()

    def xattr_text(self, path: subdocument.Path) -> str:
        """Return the object with the xattrs that a path is about."""
        chosen = self.virtual if str(path[0]).startswith("$") else self.xattrs
        return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in chosen.items()) + "}"


# Lookups.


def _lookup(connection: ServerConnection, frame: Frame) -> Frame:
    """Answer a command that reads one path."""
    operation = _single(connection, frame)
    ref, item = _readable(connection, frame)
    try:
        value = _look_up(_parts(ref, item), operation)
    except SubdocumentError as error:
        raise Refusal(error.status) from None
    return _found(connection, frame, ref, item, Status.SUCCESS, value.encode())


def multi_lookup(connection: ServerConnection, frame: Frame) -> Frame:
    operations = _operations(connection, frame, _LOOKUP_SPEC, _LOOKUP_NAMES)
    ref, item = _readable(connection, frame)
    parts, results, failed = _parts(ref, item), [], False
    for operation in operations:
        status, value = Status.SUCCESS, b""
        try:
            value = parts.body if not operation.name else _look_up(parts, operation).encode()
        except SubdocumentError as error:
            status, failed = error.status, True
        results.append(_LOOKUP_RESULT.pack(status, len(value)) + value)
    return _found(
        connection,
        frame,
        ref,
        item,
        Status.SUBDOC_MULTI_PATH_FAILURE if failed else Status.SUCCESS,
        b"".join(results),
    )


def _readable(connection: ServerConnection, frame: Frame) -> tuple[DocumentRef, StoredItem]:
    """Return the document of a lookup, which may be a tombstone if the client wants that."""
    ref = document_ref(connection, frame)
    item = find(connection, ref)
    if item is None and int(frame.fields.get("doc_flags", 0)) & _ACCESS_DELETED:
        item = ref.vbucket.get(ref.collection_id, ref.key)
    if item is None:
        raise Refusal(Status.KEY_ENOENT)
    return ref, item


def _found(
    connection: ServerConnection, frame: Frame, ref: DocumentRef, item: StoredItem, status: Status, value: bytes
) -> Frame:
    if not item.alive:
        failed = status is Status.SUBDOC_MULTI_PATH_FAILURE
        status = Status.SUBDOC_MULTI_PATH_FAILURE_DELETED if failed else Status.SUBDOC_SUCCESS_DELETED
    return response(frame, status, value=value, cas=readable_cas(connection, ref, item))


def _look_up(parts: _Parts, operation: _Operation) -> str:
    path = _path(operation)
    if operation.on_xattrs and path[0] == "$XTOC" and len(path) == 1:
        return json.dumps(list(parts.xattrs), separators=(",", ":"))
    if operation.on_xattrs and str(path[0]).startswith("$") and path[0] not in parts.virtual:
        raise SubdocumentError(Status.SUBDOC_XATTR_UNKNOWN_VATTR)
    text = parts.xattr_text(path) if operation.on_xattrs else parts.text()
    return _LOOKUPS[operation.name](text, path)


def _parts(ref: DocumentRef, item: StoredItem) -> _Parts:
    """Return the parts of a document or a tombstone."""
    body, xattrs = body_of(item), {}
    if item.datatype & Datatype.XATTR:
        value = inflate(item.value) if item.datatype & Datatype.SNAPPY else item.value
        xattrs = {name.decode(): text.decode() for name, text in split_xattrs(value)[0]}
    kinds = [kind.name.lower() for kind in Datatype if item.datatype & kind and kind.name] or ["raw"]
    document = {
        "CAS": f"0x{item.cas:016x}",
        "datatype": kinds,
        "deleted": not item.alive,
        "exptime": item.expiry,
        "flags": item.flags,
        "last_modified": str(item.cas // 1_000_000_000),
        "revid": str(item.rev_seqno),
        "seqno": f"0x{item.seqno:016x}",
        "value_bytes": len(body),
        "vbucket_uuid": f"0x{ref.vbucket.log.newest.vbuuid:016x}",
    }
    return _Parts(body, xattrs, {"$document": json.dumps(document, separators=(",", ":"))})


# Mutations.


def _mutate(connection: ServerConnection, frame: Frame) -> Frame:
    """Answer a command that changes one path."""
    operation = _single(connection, frame)
    try:
        return _write(connection, frame, [operation], lambda index, value: value)
    except _Failed as failed:
        raise Refusal(failed.status) from None


def multi_mutation(connection: ServerConnection, frame: Frame) -> Frame:
    operations = _operations(connection, frame, _MUTATION_SPEC, _EDIT_NAMES)

    def result(index: int, value: bytes) -> bytes:
        return _MUTATION_RESULT.pack(index, Status.SUCCESS, len(value)) + value

    try:
        return _write(connection, frame, operations, result)
    except _Failed as failed:
        body = _FAILED_MUTATION.pack(failed.index, failed.status)
        raise Refusal(Status.SUBDOC_MULTI_PATH_FAILURE, value=body) from None


class _Failed(Exception):
    """An operation of a mutation is not possible."""

    def __init__(self, index: int, status: Status) -> None:
        super().__init__(index, status)
        self.index, self.status = index, status


def _write(
    connection: ServerConnection,
    frame: Frame,
    operations: list[_Operation],
    result: Callable[[int, bytes], bytes],
) -> Frame:
    """Make a new version of a document with all operations, or none."""
    check_frame_info(frame)
    ref = document_ref(connection, frame)
    old, flags = find(connection, ref), int(frame.fields.get("doc_flags", 0))
    if flags & _ACCESS_DELETED:
        raise Refusal(Status.NOT_SUPPORTED, "Mutations of deleted documents are not supported")
    if old is not None and flags & _ADD_DOCUMENT:
        raise Refusal(Status.KEY_EEXISTS)
    if old is None and not flags & (_ADD_DOCUMENT | _MAKE_DOCUMENT):
        raise Refusal(Status.KEY_ENOENT)
    check_cas(connection, frame, ref, old)
    parts = _Parts(_empty_body(operations), {}, {}) if old is None else _parts(ref, old)
    cas, results = connection.bucket.next_cas(), b""
    for index, operation in enumerate(operations):
        try:
            changed = _edit(parts, operation, cas, ref.vbucket.high_seqno + 1, create=bool(flags & _NEW_DOCUMENT))
        except SubdocumentError as error:
            raise _Failed(index, error.status) from None
        results += result(index, changed.encode()) if changed else b""
    if len(parts.body) > _LARGEST_BODY:
        raise Refusal(Status.E2BIG)
    item = connection.bucket.store(
        ref.key,
        _stored(parts),
        collection_id=ref.collection_id,
        flags=0 if old is None else old.flags,
        expiry=_expiry(connection, frame, old),
        datatype=_datatype(parts),
        number=ref.vbucket.number,
        cas=cas,
    )
    return write_response(connection, frame, ref, item, value=results)


def _empty_body(operations: list[_Operation]) -> bytes:
    """Return the body of a document that is created for some operations."""
    for operation in operations:
        if not operation.on_xattrs and (operation.path.startswith("[") or not operation.path):
            return b"[]"
    return b"{}"


def _expiry(connection: ServerConnection, frame: Frame, old: StoredItem | None) -> int:
    """Return the expiry of the new version: a request without one removes it."""
    if old is not None and any(info.id == RequestInfo.PRESERVE_TTL for info in frame.frame_info):
        return old.expiry
    return absolute_expiry(connection, int(frame.fields.get("expiry", 0)))


def _stored(parts: _Parts) -> bytes:
    """Return the value to store, with the checksum of the body where an xattr has it."""
    texts = parts.xattrs
    if any(parts.checksum in text for text in texts.values()):
        checksum = f"0x{_crc32c(parts.body):08x}"
        texts = {name: text.replace(parts.checksum, checksum) for name, text in texts.items()}
    pairs = [(name.encode(), text.encode()) for name, text in texts.items()]
    return join_xattrs(pairs, parts.body) if pairs else parts.body


def _datatype(parts: _Parts) -> int:
    return (Datatype.JSON if is_json(parts.body) else 0) | (Datatype.XATTR if parts.xattrs else 0)


def _edit(parts: _Parts, operation: _Operation, cas: int, seqno: int, *, create: bool) -> str:
    """Make one change; return the value that the client gets of it."""
    if not operation.name:
        parts.body = operation.value
        return ""
    path, create = _path(operation), create or bool(operation.flags & _CREATE_PATH)
    try:
        value = operation.value.decode()
    except UnicodeDecodeError:
        raise SubdocumentError(Status.SUBDOC_VALUE_CANTINSERT) from None
    if operation.flags & _EXPAND_MACROS:
        value = _expanded(value, parts.checksum, cas, seqno)
    edit = _EDITS[operation.name]
    if operation.on_xattrs:
        if str(path[0]).startswith("$"):
            raise SubdocumentError(Status.SUBDOC_XATTR_CANT_MODIFY_VATTR)
        text = edit(parts.xattr_text(path), path, value, create)
        parts.xattrs = {name: subdocument.get(text, [name]) for name in json.loads(text)}
    else:
        text = edit(parts.text(), path, value, create)
        parts.body = text.encode()
    return subdocument.get(text, path) if operation.name == "counter" else ""


def _expanded(value: str, checksum: str, cas: int, seqno: int) -> str:
    """Return what a macro stands for."""
    if value == '"${Mutation.CAS}"':
        # In the byte order of the network, which clients swap.
        return f'"0x{cas.to_bytes(8, "little").hex()}"'
    if value == '"${Mutation.seqno}"':
        return f'"0x{seqno:016x}"'
    if value == '"${Mutation.value_crc32c}"':
        return f'"{checksum}"'
    raise SubdocumentError(Status.SUBDOC_XATTR_UNKNOWN_MACRO)


def _crc32c(data: bytes) -> int:
    """Return the checksum of RFC 3720, Castagnoli."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF


# Requests.


def _path(operation: _Operation) -> subdocument.Path:
    """Return the parts of an operation's path. That of an xattr begins with its name, which nothing escapes."""
    if not operation.on_xattrs:
        return subdocument.parse_path(operation.path)
    name = re.split(r"[.\[]", operation.path, maxsplit=1)[0]
    rest = operation.path[len(name) :]
    if not 1 <= len(name.encode()) <= _LONGEST_XATTR_NAME:
        raise SubdocumentError(Status.XATTR_EINVAL)
    # An index stands right behind the name, a member behind a dot.
    return [name, *subdocument.parse_path(f"x{rest}")[1:]]


def _single(connection: ServerConnection, frame: Frame) -> _Operation:
    """Return the operation of a command for one path."""
    length = int(frame.fields["path_length"])
    if length > len(frame.value):
        raise Refusal(Status.EINVAL, "Request path is longer than its value")
    name = frame.name.removeprefix("subdoc_")
    operation = _Operation(name, int(frame.fields["path_flags"]), _text(frame.value[:length]), frame.value[length:])
    _check_operations(connection, frame, [operation])
    return operation


def _operations(
    connection: ServerConnection, frame: Frame, spec: struct.Struct, names: Mapping[int, str]
) -> list[_Operation]:
    """Return the operations of a command for several paths."""
    found, at, value = [], 0, frame.value
    while at < len(value):
        if at + spec.size > len(value):
            raise Refusal(Status.EINVAL, "Request ends within an operation")
        opcode, flags, path_length, *value_length = spec.unpack_from(value, at)
        begin = at + spec.size
        at = begin + path_length + sum(value_length)
        if at > len(value):
            raise Refusal(Status.EINVAL, "Request ends within an operation")
        if opcode not in names:
            raise Refusal(Status.SUBDOC_INVALID_COMBO)
        path, new = _text(value[begin : begin + path_length]), value[begin + path_length : at]
        found.append(_Operation(names[opcode], flags, path, new))
    if not 1 <= len(found) <= _MOST_PATHS:
        raise Refusal(Status.SUBDOC_INVALID_COMBO, "Expected 1 to 16 paths")
    _check_operations(connection, frame, found)
    return found


def _check_operations(connection: ServerConnection, frame: Frame, operations: list[_Operation]) -> None:
    doc_flags = int(frame.fields.get("doc_flags", 0))
    if doc_flags & ~_KNOWN_DOC_FLAGS or doc_flags & _NEW_DOCUMENT == _NEW_DOCUMENT:
        raise Refusal(Status.EINVAL, "Request flags invalid")
    on_xattrs = [operation.on_xattrs for operation in operations]
    if on_xattrs != sorted(on_xattrs, reverse=True):
        raise Refusal(Status.SUBDOC_INVALID_XATTR_ORDER)
    if any(on_xattrs) and not connection.has(Feature.XATTR):
        raise Refusal(Status.NOT_SUPPORTED)
    for operation in operations:
        if operation.flags & ~_KNOWN_PATH_FLAGS:
            raise Refusal(Status.EINVAL, "Request flags invalid")
        if operation.flags & _EXPAND_MACROS and not operation.on_xattrs:
            raise Refusal(Status.SUBDOC_XATTR_INVALID_FLAG_COMBO)
        if not operation.name and (operation.path or operation.on_xattrs):
            raise Refusal(Status.EINVAL, "Request path must be empty for the whole document")


def _text(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError:
        raise Refusal(Status.SUBDOC_PATH_EINVAL) from None


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys((f"subdoc_{name}" for name in _LOOKUPS), _lookup),
    **dict.fromkeys((f"subdoc_{name}" for name in _EDITS), _mutate),
    "subdoc_multi_lookup": multi_lookup,
    "subdoc_multi_mutation": multi_mutation,
}
