"""Parts of JSON documents by their paths: lookups, and edits that leave the rest of the text as it is.

Paths, operations and statuses are those of docs/SubDocument.md in kv_engine. Nothing here knows a connection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NoReturn

from dcp.embedded.document import is_json
from dcp.wire.memcached import Status

Path = list[str | int]

# Limits of servers.
_LONGEST_PATH, _DEEPEST = 1024, 32
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

_SPACE = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"-?[0-9][-+.0-9eE]*|true|false|null")
_INDEX = re.compile(r"\[(-1|0|[1-9][0-9]{0,9})\]")
_NAME = re.compile(r"`((?:[^`]|``)+)`|([^.\[\]`]+)")
_INTEGER = re.compile(r"-?[0-9]{1,20}")


class SubdocumentError(Exception):
    """An operation is not possible; `status` says why."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


@dataclass(slots=True)
class _JsonValue:
    """Value within a text, [start, end). `members` are those of an object by key; `items` those of an array."""

    start: int
    end: int = 0
    members: dict[str, tuple[int, _JsonValue]] | None = None
    items: list[_JsonValue] | None = None
    # Values of the container, in their order.
    children: list[_JsonValue] = field(default_factory=list)


def _parse(text: str) -> _JsonValue:
    """Return the value of a whole text, which must be JSON."""
    return _parse_value(text, _skip(text, 0), 0)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _parse_value(text: str, at: int, depth: int) -> _JsonValue:
    value = _JsonValue(at)
    if text[at] == '"':
        value.end = scanstring(text, at + 1)[1]
    elif text[at] not in "{[":
        match = _SCALAR.match(text, at)
        value.end = match.end() if match else at
    elif depth >= _DEEPEST:
        _fail(Status.SUBDOC_PATH_E2DEEP)
    else:
        _parse_container(text, value, depth)
    return value


def _parse_container(text: str, value: _JsonValue, depth: int) -> None:
    members: dict[str, tuple[int, _JsonValue]] | None = {} if text[value.start] == "{" else None
    at = _skip(text, value.start + 1)
    while text[at] not in "}]":
        key, begin = "", at
        if members is not None:
            key, at = scanstring(text, at + 1)
            at = _skip(text, _skip(text, at) + 1)
        child = _parse_value(text, at, depth + 1)
        value.children.append(child)
        if members is not None:
            # Of a key that stands twice, the first one counts.
            members.setdefault(key, (begin, child))
        at = _skip(text, child.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    value.end = at + 1
    value.members, value.items = members, value.children if members is None else None


def _fail(status: Status) -> NoReturn:
    raise SubdocumentError(status)


# Paths.


def parse_path(text: str) -> Path:
    """Return the names and indexes of a path; none for an empty one."""
    if len(text.encode()) > _LONGEST_PATH:
        _fail(Status.SUBDOC_PATH_E2BIG)
    parts: Path = []
    at, name_expected = 0, True
    while at < len(text):
        if (index := _INDEX.match(text, at)) is not None and (not name_expected or not parts):
            parts.append(int(index[1]))
            at = index.end()
        elif name_expected and (name := _NAME.match(text, at)) is not None:
            parts.append(_unescape(name[1].replace("``", "`") if name[1] else name[2]))
            at = name.end()
        else:
            _fail(Status.SUBDOC_PATH_EINVAL)
        name_expected = text[at : at + 1] == "."
        at += name_expected
    if parts and name_expected:
        _fail(Status.SUBDOC_PATH_EINVAL)
    if len(parts) > _DEEPEST:
        _fail(Status.SUBDOC_PATH_E2BIG)
    return parts


def _unescape(name: str) -> str:
    """Return a name whose characters are escaped as in JSON."""
    try:
        return str(json.loads(f'"{name}"'))
    except ValueError:
        _fail(Status.SUBDOC_PATH_EINVAL)


def _child(value: _JsonValue, part: str | int) -> _JsonValue | None:
    """Return the child that a part of a path names; None if it does not exist."""
    if isinstance(part, str):
        if value.members is None:
            _fail(Status.SUBDOC_PATH_MISMATCH)
        return value.members[part][1] if part in value.members else None
    if value.items is None:
        _fail(Status.SUBDOC_PATH_MISMATCH)
    return value.items[part] if -len(value.items) <= part < len(value.items) else None


def _find(text: str, path: Path) -> _JsonValue:
    value = _parse(text)
    for part in path:
        child = _child(value, part)
        if child is None:
            _fail(Status.SUBDOC_PATH_ENOENT)
        value = child
    return value


# Lookups.


def get(text: str, path: Path) -> str:
    """Return the value at a path, as it stands in the text."""
    value = _find(text, path)
    return text[value.start : value.end]


def count(text: str, path: Path) -> str:
    """Return the number of children of an object or array."""
    value = _find(text, path)
    if value.members is None and value.items is None:
        _fail(Status.SUBDOC_PATH_MISMATCH)
    return str(len(value.children))


# Edits. Each returns the new text; `create` adds missing objects on the way.

Edit = Callable[[str, Path, str, bool], str]


def dict_add(text: str, path: Path, new: str, create: bool) -> str:
    """Add a member to an object, which must not have it."""
    return _set_member(text, path, new, create, replace=False)


def dict_upsert(text: str, path: Path, new: str, create: bool) -> str:
    """Add a member to an object, or replace its value."""
    return _set_member(text, path, new, create, replace=True)


def _set_member(text: str, path: Path, new: str, create: bool, *, replace: bool) -> str:
    _check_value(new)
    if not path or not isinstance(path[-1], str):
        _fail(Status.SUBDOC_PATH_EINVAL)
    found = _lookup(text, path)
    if found is None:
        return _insert(text, path, new, create)
    if not replace:
        _fail(Status.SUBDOC_PATH_EEXISTS)
    return text[: found.start] + new + text[found.end :]


def replace(text: str, path: Path, new: str, create: bool) -> str:
    """Replace the value at a path."""
    _check_value(new)
    if not path:
        _fail(Status.SUBDOC_PATH_EINVAL)
    value = _find(text, path)
    return text[: value.start] + new + text[value.end :]


def delete(text: str, path: Path, new: str, create: bool) -> str:
    """Remove a member of an object, or an item of an array."""
    if not path:
        _fail(Status.SUBDOC_PATH_EINVAL)
    value = _find(text, path)
    container = _find(text, path[:-1])
    index = next(number for number, child in enumerate(container.children) if child.start == value.start)
    begin = container.members[str(path[-1])][0] if container.members is not None else value.start
    if index + 1 < len(container.children):
        # With the comma after it.
        end = _skip(text, text.index(",", value.end) + 1)
    else:
        end = value.end
        begin = container.children[index - 1].end if index else begin
    return text[:begin] + text[end:]


def array_push_last(text: str, path: Path, new: str, create: bool) -> str:
    """Append one or several values to an array."""
    return _push(text, path, new, create, lambda array: len(array))


def array_push_first(text: str, path: Path, new: str, create: bool) -> str:
    """Prepend one or several values to an array."""
    return _push(text, path, new, create, lambda array: 0)


def array_insert(text: str, path: Path, new: str, create: bool) -> str:
    """Insert one or several values before an item of an array."""
    _check_values(new)
    if not path or not isinstance(path[-1], int) or path[-1] < 0:
        _fail(Status.SUBDOC_PATH_EINVAL)
    index = path[-1]
    # The array must exist.
    _find(text, path[:-1])

    def place(array: list[_JsonValue]) -> int:
        return index if index <= len(array) else _fail(Status.SUBDOC_PATH_ENOENT)

    return _push(text, path[:-1], new, False, place)


def array_add_unique(text: str, path: Path, new: str, create: bool) -> str:
    """Append a scalar to an array of scalars that does not have it."""
    _check_value(new)
    if new.strip()[:1] in ("{", "["):
        _fail(Status.SUBDOC_VALUE_CANTINSERT)
    found = _lookup(text, path)
    for item in (found.items or ()) if found is not None else ():
        if text[item.start] in "{[":
            _fail(Status.SUBDOC_PATH_MISMATCH)
        if text[item.start : item.end] == new.strip():
            _fail(Status.SUBDOC_PATH_EEXISTS)
    return array_push_last(text, path, new, create)


def _push(text: str, path: Path, new: str, create: bool, place: Callable[[list[_JsonValue]], int]) -> str:
    _check_values(new)
    found = _lookup(text, path)
    if found is None:
        return _insert(text, path, f"[{new}]", create)
    if found.items is None:
        _fail(Status.SUBDOC_PATH_MISMATCH)
    index = place(found.items)
    if not found.items:
        return text[: found.start + 1] + new + text[found.start + 1 :]
    if index == len(found.items):
        end = found.items[-1].end
        return f"{text[:end]},{new}{text[end:]}"
    begin = found.items[index].start
    return f"{text[:begin]}{new},{text[begin:]}"


def counter(text: str, path: Path, new: str, create: bool) -> str:
    """Add a number to the one at a path, or to 0 if there is none."""
    if _INTEGER.fullmatch(new) is None or not _LEAST <= int(new) <= _MOST or not int(new):
        _fail(Status.SUBDOC_DELTA_EINVAL)
    if not path:
        _fail(Status.SUBDOC_PATH_EINVAL)
    found = _lookup(text, path)
    if found is None:
        return _insert(text, path, str(int(new)), create)
    old = text[found.start : found.end]
    if _INTEGER.fullmatch(old) is None:
        _fail(Status.SUBDOC_PATH_MISMATCH)
    if not _LEAST <= int(old) <= _MOST:
        _fail(Status.SUBDOC_NUM_ERANGE)
    if not _LEAST <= int(old) + int(new) <= _MOST:
        _fail(Status.SUBDOC_VALUE_CANTINSERT)
    return f"{text[: found.start]}{int(old) + int(new)}{text[found.end :]}"


def _check_values(new: str) -> None:
    """Refuse anything but one or several values, with commas between."""
    _check_value(f"[{new}]")
    if not new.strip():
        _fail(Status.SUBDOC_VALUE_CANTINSERT)


def _check_value(new: str) -> None:
    if not is_json(new.encode()):
        _fail(Status.SUBDOC_VALUE_CANTINSERT)


def _lookup(text: str, path: Path) -> _JsonValue | None:
    """Return the value at a path; None if it or something on the way does not exist."""
    try:
        return _find(text, path)
    except SubdocumentError as error:
        if error.status is Status.SUBDOC_PATH_ENOENT:
            return None
        raise


def _insert(text: str, path: Sequence[str | int], new: str, create: bool) -> str:
    """Add the value at a path that does not exist, within the nearest object on the way that does."""
    value, depth = _parse(text), 0
    while (child := _child(value, path[depth])) is not None:
        value, depth = child, depth + 1
    missing = path[depth:]
    # Items of arrays are never created on the way.
    if not all(isinstance(part, str) for part in missing) or (len(missing) > 1 and not create):
        _fail(Status.SUBDOC_PATH_ENOENT)
    for name in reversed(missing[1:]):
        new = f"{{{json.dumps(name, ensure_ascii=False)}:{new}}}"
    member = f"{json.dumps(missing[0], ensure_ascii=False)}:{new}"
    if not value.children:
        return text[: value.start + 1] + member + text[value.start + 1 :]
    end = value.children[-1].end
    return f"{text[:end]},{member}{text[end:]}"
