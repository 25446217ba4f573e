"""Errors keep their attributes across processes, and are listed in the tree of their module."""

from __future__ import annotations

import pickle

import pytest

import dcp
from dcp import errors

ALL = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.DcpError)]


def test_a_frame_error_is_the_same_after_a_pickle() -> None:
    error = dcp.FrameError("too long", 24, 0x57, 9)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.problem, copy.offset, copy.opcode, copy.vbucket) == ("too long", 24, 0x57, 9)
    assert str(copy) == str(error) == "frame at byte 24 (opcode 0x57, vbucket 9): too long"


def test_a_frame_error_says_nothing_of_what_the_header_does_not_have() -> None:
    assert str(dcp.FrameError("no magic", 0)) == "frame at byte 0: no magic"
    assert str(dcp.FrameError("bad", 0, 0x53)) == "frame at byte 0 (opcode 0x53): bad"


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_is_in_the_tree_of_its_module_and_knows_whether_to_retry(error: type[errors.DcpError]) -> None:
    assert error.__name__ in (errors.__doc__ or "")
    assert isinstance(error.retriable, bool)
