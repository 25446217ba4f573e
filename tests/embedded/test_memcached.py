"""Commands of documents, side by side with memcached, whose answers were recorded."""

from __future__ import annotations

import pytest

import dcp
from dcp.wire.memcached import Status
from tests.embedded.memcached import QUESTIONS, answers, recorded
from tests.embedded.raw_client import CommandClient, make_bucket

# memcached tells the flags after a touch, and its own version.
OTHERWISE = ("touch", "version")


def ours() -> list[list[dcp.Frame]]:
    client = CommandClient(make_bucket(vbuckets=1))

    def ask(data: bytes) -> bytes:
        client.connection.receive(data, client.now)
        return b"".join(map(bytes, client.connection.send(client.now)))

    return list(answers(ask))


def told(frame: dcp.Frame) -> tuple[object, ...]:
    """What both have to say alike: of a failure only that it is one, since each has words of its own."""
    if frame.status:
        return frame.name, frame.status, frame.key
    return frame.name, frame.status, dict(frame.fields), frame.key, frame.value


SIDE_BY_SIDE = list(zip(QUESTIONS, recorded(), ours(), strict=True))


@pytest.mark.parametrize(
    ("question", "theirs", "our"), SIDE_BY_SIDE, ids=[f"{n}-{q[0]}" for n, q in enumerate(QUESTIONS)]
)
def test_both_answer_alike(question: object, theirs: list[dcp.Frame], our: list[dcp.Frame]) -> None:
    if any(frame.name in OTHERWISE for frame in theirs):
        assert [frame.status for frame in our] == [frame.status for frame in theirs]
    else:
        assert list(map(told, our)) == list(map(told, theirs))


def test_the_questions_reach_many_outcomes() -> None:
    statuses = {frame.status for said in recorded() for frame in said}
    expected = {"SUCCESS", "KEY_ENOENT", "KEY_EEXISTS", "NOT_STORED", "DELTA_BADVAL"}
    assert statuses == {Status[name] for name in expected}
    assert sum(not said for said in recorded()) > 10
