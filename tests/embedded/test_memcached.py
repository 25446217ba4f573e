"""Document commands beside memcached, whose responses were recorded."""

from __future__ import annotations

import pytest

import dcp
from dcp.wire.memcached import Status
from tests.embedded.memcached import COMMANDS, recorded, responses
from tests.embedded.raw_client import CommandClient, make_bucket

# memcached returns the flags after a touch, and its own version.
DIFFERENT = ("touch", "version")


def embedded_responses() -> list[list[dcp.Frame]]:
    client = CommandClient(make_bucket(vbuckets=1))

    def exchange(data: bytes) -> bytes:
        client.connection.receive(data, client.now)
        return b"".join(map(bytes, client.connection.send(client.now)))

    return list(responses(exchange))


def comparable(frame: dcp.Frame) -> tuple[object, ...]:
    """Return the parts of a response in which both servers have to agree: errors have texts of their own."""
    if frame.status:
        return frame.name, frame.status, frame.key
    return frame.name, frame.status, dict(frame.fields), frame.key, frame.value


SIDE_BY_SIDE = list(zip(COMMANDS, recorded(), embedded_responses(), strict=True))


@pytest.mark.parametrize(
    ("command", "expected", "found"), SIDE_BY_SIDE, ids=[f"{n}-{q[0]}" for n, q in enumerate(COMMANDS)]
)
def test_both_servers_respond_alike(command: object, expected: list[dcp.Frame], found: list[dcp.Frame]) -> None:
    if any(frame.name in DIFFERENT for frame in expected):
        assert [frame.status for frame in found] == [frame.status for frame in expected]
    else:
        assert list(map(comparable, found)) == list(map(comparable, expected))


def test_the_commands_reach_many_outcomes() -> None:
    statuses = {frame.status for frames in recorded() for frame in frames}
    expected = {"SUCCESS", "KEY_ENOENT", "KEY_EEXISTS", "NOT_STORED", "DELTA_BADVAL"}
    assert statuses == {Status[name] for name in expected}
    assert sum(not frames for frames in recorded()) > 10
