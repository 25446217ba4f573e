"""Values of error responses, as in recordings of each release."""

from __future__ import annotations

import pytest

from dcp.embedded.refusals import error_value, malformed_context
from dcp.embedded.release import Release
from dcp.wire.dcp import DCP
from dcp.wire.frame import Frame, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status

JSON = b'{"error":{"context":"why"}}', 1
NOTHING = b"", 0


@pytest.mark.parametrize(
    ("version", "status", "said"),
    [
        ("3.1", Status.EINVAL, (b"Invalid arguments", 0)),
        ("3.1", Status.ERANGE, (b"Outside range", 0)),
        ("3.1", Status.NOT_SUPPORTED, (b"Not supported", 0)),
        ("3.1", Status.AUTH_ERROR, (b"Auth failure", 0)),
        ("3.1", Status.UNKNOWN_COMMAND, NOTHING),
        ("6.0", Status.EINVAL, NOTHING),
        ("6.0", Status.EACCESS, JSON),
        ("6.6", Status.EINVAL, JSON),
        ("7.0", Status.EACCESS, JSON),
    ],
)
def test_error_values_differ_by_release(version: str, status: Status, said: tuple[bytes, int]) -> None:
    assert error_value(status, "why", Release.of(version)) == said


def test_an_error_without_context_has_no_value() -> None:
    assert error_value(Status.ERANGE, "", Release.of("7.0")) == NOTHING


@pytest.mark.parametrize(
    ("key", "extras", "said"),
    [
        (3, 0, ""),
        (0, 0, "Request must include key"),
        (256, 0, ""),
        (3, 4, "Request must include extras of length 0"),
    ],
)
def test_a_malformed_request_is_told_what_it_lacks(key: int, extras: int, said: str) -> None:
    raw = bytearray(encode(Frame("get", Magic.REQUEST, key=b"key")))
    raw[2:5] = key.to_bytes(2, "big") + bytes([extras])
    assert malformed_context(bytes(raw), DCP) == said


@pytest.mark.parametrize(
    ("extras", "said"), [(0, ""), (4, ""), (8, ""), (5, "Request must include extras of length 0")]
)
def test_a_request_may_have_the_extras_of_any_of_its_forms(extras: int, said: str) -> None:
    raw = bytearray(encode(Frame("get_all_vb_seqnos", Magic.REQUEST)))
    raw[4] = extras
    assert malformed_context(bytes(raw), DCP) == said
