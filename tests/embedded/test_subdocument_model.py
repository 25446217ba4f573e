"""Edits of any JSON text at any path, compared with the same edits of Python's objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp.embedded import subdocument
from dcp.embedded.subdocument import Edit, Path, SubdocumentError
from dcp.wire.memcached import Status

NAMES = st.sampled_from(["a", "b", "c.d", "e[0]", "`", '"', "ü", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "}", '"', "],", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
SPACES = st.sampled_from([None, 0, 2, "\t"])


@st.composite
def places(draw: st.DrawFn) -> tuple[Any, Path]:
    """Draw a value and a path that mostly leads to something in it."""
    value = draw(VALUES)
    path: Path = []
    here = value
    while (isinstance(here, list | dict) and here and draw(st.integers(0, 3))) or (
        len(path) < 4 and draw(st.booleans())
    ):
        names = st.sampled_from(sorted(here)) if isinstance(here, dict) and here else NAMES
        indexes = st.integers(-1, len(here)) if isinstance(here, list) else st.integers(-1, 1)
        part: Any = draw(indexes if isinstance(here, list) or not draw(st.integers(0, 3)) else names)
        path.append(part)
        try:
            here = at(here, path[-1:])
        except Impossible:
            here = None
    return value, path


class Impossible(Exception):
    """The model refuses an edit."""


def at(value: Any, path: Sequence[Any]) -> Any:
    for part in path:
        if isinstance(part, str) != isinstance(value, dict) or not isinstance(value, list | dict):
            raise Impossible
        try:
            value = value[part]
        except LookupError:
            raise Impossible from None
    return value


def container(value: Any, path: Path, create: bool) -> Any:
    """Return the object or array that the last part of a path names a child of."""
    for depth, part in enumerate(path[:-1]):
        if create and isinstance(value, dict) and part not in value and isinstance(part, str):
            if not all(isinstance(each, str) for each in path[depth:]):
                raise Impossible
            value[part] = {}
        value = at(value, [part])
    if not path or not isinstance(value, dict if isinstance(path[-1], str) else list):
        raise Impossible
    return value


def set_member(value: Any, path: Path, new: Any, create: bool, *, adds: bool, replaces: bool) -> None:
    if not path or not isinstance(path[-1], str):
        raise Impossible
    place = container(value, path, create)
    if (path[-1] in place and not replaces) or (path[-1] not in place and not adds):
        raise Impossible
    place[path[-1]] = new


def model_replace(value: Any, path: Path, new: Any, create: bool) -> None:
    at(value, path)
    container(value, path, False)[path[-1]] = new


def model_delete(value: Any, path: Path, new: Any, create: bool) -> None:
    at(value, path)
    del container(value, path, False)[path[-1]]


def array(value: Any, path: Path, create: bool) -> list[Any]:
    try:
        found = at(value, path)
    except Impossible:
        if not path or not isinstance(path[-1], str):
            raise
        place = container(value, path, create)
        if path[-1] in place:
            raise
        found = place[path[-1]] = []
    if not isinstance(found, list):
        raise Impossible
    return found


def model_insert(value: Any, path: Path, new: Any, create: bool) -> None:
    if not path or not isinstance(path[-1], int) or path[-1] < 0:
        raise Impossible
    found = at(value, path[:-1])
    if not isinstance(found, list) or path[-1] > len(found):
        raise Impossible
    found.insert(path[-1], new)


def model_add_unique(value: Any, path: Path, new: Any, create: bool) -> None:
    found = array(value, path, create)
    texts = [json.dumps(each) for each in found]
    if isinstance(new, list | dict) or any(isinstance(each, list | dict) for each in found) or json.dumps(new) in texts:
        raise Impossible
    found.append(new)


def model_counter(value: Any, path: Path, new: Any, create: bool) -> None:
    if type(new) is not int or not new:
        raise Impossible
    try:
        old = at(value, path)
    except Impossible:
        set_member(value, path, new, create, adds=True, replaces=False)
        return
    if not path or type(old) is not int:
        raise Impossible
    container(value, path, False)[path[-1]] = old + new


MODELS: dict[Edit, Any] = {
    subdocument.dict_add: lambda *edit: set_member(*edit, adds=True, replaces=False),
    subdocument.dict_upsert: lambda *edit: set_member(*edit, adds=True, replaces=True),
    subdocument.replace: model_replace,
    subdocument.delete: model_delete,
    subdocument.array_push_last: lambda value, path, new, create: array(value, path, create).append(new),
    subdocument.array_push_first: lambda value, path, new, create: array(value, path, create).insert(0, new),
    subdocument.array_insert: model_insert,
    subdocument.array_add_unique: model_add_unique,
    subdocument.counter: model_counter,
}


@given(places(), SPACES)
def test_what_is_read_at_a_path_is_what_is_there(place: tuple[Any, Path], indent: Any) -> None:
    value, path = place
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        expected = at(value, path)
    except Impossible:
        for read in (subdocument.get, subdocument.count):
            try:
                read(text, path)
            except SubdocumentError as error:
                assert error.status in (Status.SUBDOC_PATH_ENOENT, Status.SUBDOC_PATH_MISMATCH)
            else:
                raise AssertionError(f"{path} found in {text}")
        return
    assert json.loads(subdocument.get(text, path)) == expected
    if isinstance(expected, list | dict):
        assert subdocument.count(text, path) == str(len(expected))


@pytest.mark.parametrize("edit", MODELS, ids=lambda edit: edit.__name__)
@settings(max_examples=200)
@given(place=places(), indent=SPACES, new=VALUES | st.integers(-3, 3), create=st.booleans())
def test_an_edit_does_what_it_does_to_an_object(
    edit: Edit, place: tuple[Any, Path], indent: Any, new: Any, create: bool
) -> None:
    value, path = place
    text, expected, possible = json.dumps(value, indent=indent, ensure_ascii=False), deepcopy(value), True
    try:
        MODELS[edit](expected, path, new, create)
    except Impossible:
        possible = False
    try:
        found = edit(text, path, json.dumps(new), create)
    except SubdocumentError as error:
        assert not possible, error.status
    else:
        assert possible
        assert json.loads(found) == expected
