"""Requests about parts of documents: their operations, and the checks that servers make before they read a document.

The checks and their order are those of daemon/subdocument_validators.cc in kv_engine, the table of operations that of
daemon/subdocument_traits.h.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from enum import IntFlag
from typing import NamedTuple

from dcp.embedded.connection import ServerConnection
from dcp.embedded.refusals import Refusal
from dcp.embedded.release import Release, ReleaseNumber
from dcp.wire.frame import Frame
from dcp.wire.memcached import Feature, Status


class PathFlag(IntFlag):
    """Flags of one operation."""

    NONE = 0
    CREATE_PATH = 0x01
    XATTR = 0x04
    EXPAND_MACROS = 0x10
    BINARY_VALUE = 0x20


class DocFlag(IntFlag):
    """Flags of the document that a request is about."""

    NONE = 0
    # Create the document if it is missing, or only if it is missing.
    MAKE = 0x01
    ADD = 0x02
    # Tombstones are documents too; without REVIVE they stay tombstones.
    ACCESS_DELETED = 0x04
    CREATE_AS_DELETED = 0x08
    REVIVE = 0x10
    REPLICA_READ = 0x20


CREATING = DocFlag.MAKE | DocFlag.ADD
_OF_DELETED = DocFlag.ACCESS_DELETED | DocFlag.REVIVE
_OF_LOOKUPS = _OF_DELETED | DocFlag.REPLICA_READ
_OF_MUTATIONS = _OF_DELETED | CREATING | DocFlag.CREATE_AS_DELETED
_NEWER_DOC_FLAGS: dict[DocFlag, ReleaseNumber] = {
    DocFlag.CREATE_AS_DELETED: (6, 6),
    DocFlag.REVIVE: (7, 0),
    DocFlag.REPLICA_READ: (7, 6),
}
_BINARY_VALUES: ReleaseNumber = (8, 0)
_USER_FLAGS: ReleaseNumber = (8, 0)
_SEVERAL_XATTRS: ReleaseNumber = (7, 6)
_VIRTUAL_MACROS: ReleaseNumber = (7, 0)

MACROS = ('"${Mutation.CAS}"', '"${Mutation.seqno}"', '"${Mutation.value_crc32c}"')
_MOST_PATHS = 16
_LONGEST_PATH = 1024
_LONGEST_XATTR_NAME = 15
_LOOKUP_SPEC, _MUTATION_SPEC = struct.Struct(">BBH"), struct.Struct(">BBHI")


class _Rules(NamedTuple):
    """Parts that a request with an operation may have; `has_value` says whether it must or must not have a value."""

    opcode: int
    path_flags: PathFlag
    doc_flags: DocFlag
    has_value: bool = True
    may_lack_path: bool = False
    since: ReleaseNumber = (0, 0)


_ON_XATTRS, _CREATING_PATHS = PathFlag.XATTR, PathFlag.XATTR | PathFlag.CREATE_PATH
_EXPANDING = PathFlag.XATTR | PathFlag.EXPAND_MACROS
_BINARY = PathFlag.BINARY_VALUE

# Operations on the whole document: only in requests with several operations.
GET_BODY, SET_BODY, DELETE_DOCUMENT = "get_body", "set_body", "delete_document"
REPLACE_BODY = "replace_body_with_xattr"

_LOOKUPS: dict[str, _Rules] = {
    "get": _Rules(0xC5, _ON_XATTRS | _BINARY, _OF_LOOKUPS, has_value=False),
    "exists": _Rules(0xC6, _ON_XATTRS, _OF_LOOKUPS, has_value=False),
    "get_count": _Rules(0xD2, _ON_XATTRS, _OF_LOOKUPS, has_value=False, may_lack_path=True),
    GET_BODY: _Rules(0x00, PathFlag.NONE, _OF_LOOKUPS, has_value=False, may_lack_path=True),
}
_MUTATIONS: dict[str, _Rules] = {
    "dict_add": _Rules(0xC7, _CREATING_PATHS | _EXPANDING | _BINARY, _OF_MUTATIONS),
    "dict_upsert": _Rules(0xC8, _CREATING_PATHS | _EXPANDING | _BINARY, _OF_MUTATIONS),
    "delete": _Rules(0xC9, _ON_XATTRS, _OF_DELETED, has_value=False),
    "replace": _Rules(0xCA, _EXPANDING | _BINARY, _OF_DELETED | DocFlag.ADD),
    "array_push_last": _Rules(0xCB, _CREATING_PATHS | _EXPANDING, _OF_MUTATIONS, may_lack_path=True),
    "array_push_first": _Rules(0xCC, _CREATING_PATHS | _EXPANDING, _OF_MUTATIONS, may_lack_path=True),
    "array_insert": _Rules(0xCD, _EXPANDING, _OF_MUTATIONS & ~DocFlag.MAKE),
    "array_add_unique": _Rules(0xCE, _CREATING_PATHS, _OF_MUTATIONS, may_lack_path=True),
    "counter": _Rules(0xCF, _CREATING_PATHS, _OF_MUTATIONS),
    REPLACE_BODY: _Rules(0xD3, _ON_XATTRS | _BINARY, _OF_DELETED, has_value=False, since=(7, 0)),
    SET_BODY: _Rules(0x01, PathFlag.NONE, CREATING, may_lack_path=True),
    DELETE_DOCUMENT: _Rules(0x04, PathFlag.NONE, _OF_DELETED, has_value=False, may_lack_path=True),
}
_RULES = _LOOKUPS | _MUTATIONS
_ON_WHOLE_DOCUMENT = (GET_BODY, SET_BODY, DELETE_DOCUMENT)
SINGLE_LOOKUPS = tuple(name for name in _LOOKUPS if name not in _ON_WHOLE_DOCUMENT)
SINGLE_MUTATIONS = tuple(name for name in _MUTATIONS if name not in _ON_WHOLE_DOCUMENT)


class SubdocOperation(NamedTuple):
    """Operation on a path, or on the whole document."""

    name: str
    flags: PathFlag
    path: str
    value: bytes = b""

    @property
    def on_xattrs(self) -> bool:
        """True if the path begins with the name of an xattr."""
        return PathFlag.XATTR in self.flags

    @property
    def on_whole_document(self) -> bool:
        """True if there is no path."""
        return self.name in _ON_WHOLE_DOCUMENT

    @property
    def xattr(self) -> str:
        """Name of the xattr: nothing escapes it."""
        return re.split(r"[.\[]", self.path, maxsplit=1)[0]

    @property
    def virtual(self) -> bool:
        """True if the xattr is made of metadata."""
        return self.path.startswith("$")


class SubdocRequest(NamedTuple):
    """Checked request. The flags of a document that exists stay unless `user_flags` replace them."""

    operations: list[SubdocOperation]
    flags: DocFlag
    expiry: int
    user_flags: int | None


def single_request(connection: ServerConnection, frame: Frame) -> SubdocRequest:
    """Return the request of a command for one path."""
    name = frame.name.removeprefix("subdoc_")
    rules = _RULES[name]
    release = connection.bucket.release
    if release.number < rules.since:
        raise Refusal(release.unknown_command)
    length = int(frame.fields["path_length"])
    if length > len(frame.value):
        raise Refusal(Status.EINVAL, "Path length can't exceed value")
    flags = _doc_flags(frame, release)
    operation = _operation(name, int(frame.fields["path_flags"]), frame.value[:length], frame.value[length:], release)
    if DocFlag.CREATE_AS_DELETED in flags:
        if not flags & CREATING:
            raise Refusal(Status.EINVAL, "CreateAsDeleted requires Mkdoc or Add")
        if not operation.on_xattrs:
            raise Refusal(Status.EINVAL, "CreateAsDeleted does not support body path")
    _check_adding(frame, flags)
    _check_operation(connection, operation, flags)
    return _request(frame, [operation], flags)


def lookup_request(connection: ServerConnection, frame: Frame) -> SubdocRequest:
    """Return the request of a command that reads several paths."""
    return _several(connection, frame, _LOOKUP_SPEC, _LOOKUPS)


def mutation_request(connection: ServerConnection, frame: Frame) -> SubdocRequest:
    """Return the request of a command that changes several paths."""
    return _several(connection, frame, _MUTATION_SPEC, _MUTATIONS)


def _several(
    connection: ServerConnection, frame: Frame, spec: struct.Struct, known: Mapping[str, _Rules]
) -> SubdocRequest:
    release = connection.bucket.release
    flags = _doc_flags(frame, release)
    _check_adding(frame, flags)
    if DocFlag.REVIVE in flags:
        if DocFlag.ACCESS_DELETED not in flags:
            raise Refusal(Status.EINVAL, "ReviveDocument can't be used without AccessDeleted")
        if DocFlag.CREATE_AS_DELETED in flags:
            raise Refusal(Status.EINVAL, "ReviveDocument can't be used with CreateAsDeleted")
    names = {rules.opcode: name for name, rules in known.items() if rules.since <= release.number}
    operations: list[SubdocOperation] = []
    at = 0
    while at < len(frame.value):
        if len(operations) == _MOST_PATHS:
            raise Refusal(Status.SUBDOC_INVALID_COMBO, f"Request must contain at most {_MOST_PATHS} paths")
        operation, at = _next_operation(frame.value, at, spec, names, release)
        _check_operation(connection, operation, flags)
        _check_order(operations, operation)
        operations.append(operation)
    if not operations:
        raise Refusal(Status.SUBDOC_INVALID_COMBO, "Request must contain at least one path")
    if release.number < _SEVERAL_XATTRS and len({one.xattr for one in operations if _has_own_xattr(one)}) > 1:
        raise Refusal(Status.SUBDOC_XATTR_INVALID_KEY_COMBO)
    return _request(frame, operations, flags)


def _next_operation(
    value: bytes, at: int, spec: struct.Struct, names: Mapping[int, str], release: Release
) -> tuple[SubdocOperation, int]:
    """Return the operation that begins at a byte, and where it ends."""
    if at + spec.size > len(value):
        raise Refusal(Status.EINVAL, "Request ends within an operation")
    opcode, flags, path_length, *value_length = spec.unpack_from(value, at)
    begin = at + spec.size
    end = begin + path_length + sum(value_length)
    if end > len(value):
        raise Refusal(Status.EINVAL, "Request ends within an operation")
    if opcode not in names:
        raise Refusal(Status.SUBDOC_INVALID_COMBO)
    path, new = value[begin : begin + path_length], value[begin + path_length : end]
    return _operation(names[opcode], flags, path, new, release), end


def _has_own_xattr(operation: SubdocOperation) -> bool:
    return operation.on_xattrs and not operation.virtual


def _request(frame: Frame, operations: list[SubdocOperation], flags: DocFlag) -> SubdocRequest:
    user_flags = frame.fields.get("flags")
    return SubdocRequest(
        operations, flags, int(frame.fields.get("expiry", 0)), None if user_flags is None else int(user_flags)
    )


# Checks.


def _doc_flags(frame: Frame, release: Release) -> DocFlag:
    known = sum(flag for flag in DocFlag if _NEWER_DOC_FLAGS.get(flag, (0, 0)) <= release.number)
    flags = int(frame.fields.get("doc_flags", 0))
    if flags & ~int(known) or ("flags" in frame.fields and release.number < _USER_FLAGS):
        raise Refusal(Status.EINVAL, "Request extras invalid")
    return DocFlag(flags)


def _check_adding(frame: Frame, flags: DocFlag) -> None:
    if DocFlag.ADD in flags and frame.cas:
        raise Refusal(Status.EINVAL, "Request with add flag must have CAS 0")
    if flags & CREATING == CREATING:
        raise Refusal(Status.EINVAL, "Request must not contain both add and mkdoc flags")


def _operation(name: str, flags: int, path: bytes, value: bytes, release: Release) -> SubdocOperation:
    allowed = _RULES[name].path_flags
    if release.number < _BINARY_VALUES:
        allowed &= ~PathFlag.BINARY_VALUE
    # `~` of a flag has the known bits only.
    if flags & ~int(allowed):
        raise Refusal(Status.EINVAL, "Request flags invalid")
    if name == REPLACE_BODY and not flags & PathFlag.XATTR:
        raise Refusal(Status.EINVAL, "Request missing mandatory flags")
    if len(path) > _LONGEST_PATH:
        raise Refusal(Status.EINVAL, "Request path length exceeds maximum")
    try:
        return SubdocOperation(name, PathFlag(flags), path.decode(), value)
    except UnicodeDecodeError:
        raise Refusal(Status.XATTR_EINVAL if flags & PathFlag.XATTR else Status.SUBDOC_PATH_EINVAL) from None


def _check_operation(connection: ServerConnection, operation: SubdocOperation, flags: DocFlag) -> None:
    rules = _RULES[operation.name]
    if flags & ~rules.doc_flags:
        raise Refusal(Status.EINVAL, "Request document flags invalid")
    if operation.on_whole_document and operation.path:
        raise Refusal(Status.EINVAL, "Request must not include path for wholedoc operations")
    _check_xattr(connection, operation)
    if not (operation.path or rules.may_lack_path):
        raise Refusal(Status.EINVAL, "Request must include path")
    if bool(operation.value) != rules.has_value:
        raise Refusal(Status.EINVAL, f"Request must {'' if rules.has_value else 'not '}include value")


def _check_xattr(connection: ServerConnection, operation: SubdocOperation) -> None:
    expands, binary = PathFlag.EXPAND_MACROS in operation.flags, PathFlag.BINARY_VALUE in operation.flags
    if not operation.on_xattrs:
        if expands or binary:
            name = "EXPAND_MACROS" if expands else "BINARY_VALUE"
            raise Refusal(Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, f"{name} flag requires XATTR flag to be set")
        return
    if expands and binary:
        context = "BINARY_VALUE can't be used together with EXPAND_MACROS"
        raise Refusal(Status.SUBDOC_XATTR_INVALID_FLAG_COMBO, context)
    if not connection.has(Feature.XATTR):
        raise Refusal(Status.NOT_SUPPORTED, "Connection not XATTR enabled")
    if not 1 <= len(operation.xattr.encode()) <= _LONGEST_XATTR_NAME:
        raise Refusal(Status.XATTR_EINVAL, "Request XATTR key invalid")
    if operation.virtual and operation.name in _MUTATIONS:
        raise Refusal(Status.SUBDOC_XATTR_CANT_MODIFY_VATTR)
    if expands and not _is_macro(operation.value, connection.bucket.release):
        raise Refusal(Status.SUBDOC_XATTR_UNKNOWN_MACRO)


def _is_macro(value: bytes, release: Release) -> bool:
    text = value.decode(errors="replace")
    virtual = text.startswith('"${$document') and text.endswith('}"') and release.number >= _VIRTUAL_MACROS
    return text in MACROS or virtual


def _check_order(before: list[SubdocOperation], operation: SubdocOperation) -> None:
    """Refuse operations on xattrs after those on the body, and any beside a removal of the document."""
    on_body = [one for one in before if not one.on_xattrs]
    if on_body and on_body[-1].name == DELETE_DOCUMENT:
        raise Refusal(Status.SUBDOC_INVALID_COMBO, "Request contains an invalid combination of commands")
    if on_body and operation.on_xattrs:
        raise Refusal(Status.SUBDOC_INVALID_XATTR_ORDER)
    if on_body and operation.name == DELETE_DOCUMENT:
        raise Refusal(Status.SUBDOC_INVALID_COMBO, "Request contains an invalid combination of commands")
