"""Both drafts of UPR: requests, responses and streams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.embedded.store import VbucketStore
from dcp.position import FailoverLog
from dcp.wire.dcp import StreamFlag
from dcp.wire.frame import Frame, decode, encode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Status, VbucketState
from dcp.wire.upr2 import UprVbucketState
from tests.embedded.raw_client import (
    NOW,
    LegacyClient,
    fill,
    keys,
    legacy_bucket,
    names,
    rows,
    stored_items,
    upr_stream_request,
)
from tests.strategies import CUTS, chunks

DRAFTS = ["upr1", "upr2"]
both = pytest.mark.parametrize("draft", DRAFTS)


def filled(draft: str, count: int = 10, **options: Any) -> LegacyClient:
    peer = LegacyClient(legacy_bucket(**options), draft)
    fill(peer.bucket, count)
    return peer


def request(peer: LegacyClient, *args: Any, **options: Any) -> list[Frame]:
    peer.send(upr_stream_request(peer, *args, **options))
    return peer.receive()


def outcome(frame: Frame) -> str:
    """Return the outcome of a stream request under names that both drafts share."""
    if frame.name != "stream_request":
        return frame.name
    accepted = {Status.SUCCESS: "stream_ok", Status.NOT_MY_VBUCKET: "not_my_vbucket", Status.ROLLBACK: "rollback"}
    return accepted.get(Status(frame.status), Status(frame.status).name)


def newest(vbucket: VbucketStore) -> int:
    return vbucket.log.newest.vbuuid


# Streams.


@both
def test_a_stream_is_announced_and_its_snapshots_are_closed(draft: str) -> None:
    peer = filled(draft)
    answer, *frames = request(peer, 1, group=b"group")
    assert outcome(answer) == "stream_ok"
    assert names(frames)[:2] == ["stream_start", "snapshot_start"]
    assert names(frames)[-1] == "snapshot_end"
    assert keys(frames) == [item.key for item in stored_items(peer.bucket, 1)]
    assert {(frame.opaque, frame.vbucket) for frame in frames} == {(11, 1)}
    assert {frame.magic for frame in frames} == {Magic.RESPONSE if draft == "upr1" else Magic.REQUEST}
    for n in range(8):
        peer.bucket.store(b"new-%d" % n, b"")
    frames = peer.receive()
    assert names(frames)[0] == "snapshot_start"
    assert names(frames)[-1] == "snapshot_end"
    assert set(keys(frames)) == {b"new-%d" % n for n in range(8) if peer.bucket.vbucket_of(b"new-%d" % n) == 1}


@both
@pytest.mark.parametrize("end", [1, 3, 10])
def test_a_stream_ends_with_the_snapshot_that_has_its_last_seqno(draft: str, end: int) -> None:
    peer = filled(draft, vbuckets=1)
    frames = request(peer, end=end)
    assert names(frames)[-2:] == ["snapshot_end", "stream_end_ok" if draft == "upr1" else "stream_end"]
    assert frames[-1].fields == ({} if draft == "upr1" else {"reason": 0})
    assert keys(frames) == [item.key for item in stored_items(peer.bucket)]
    peer.bucket.store(b"new", b"")
    assert peer.receive() == []


@both
def test_a_stream_ends_when_the_vbucket_changes_its_state(draft: str) -> None:
    peer = filled(draft)
    request(peer, 1)
    peer.bucket.active(1).state = VbucketState.DEAD
    (end,) = peer.receive()
    assert end.name == ("stream_end_state_changed" if draft == "upr1" else "stream_end")
    assert end.fields == ({} if draft == "upr1" else {"reason": 1})


COLUMNS = ("event", "seqno", "rev_seqno", "cas", "key", "value", "flags", "expiry")
CHANGES = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["store", "remove", "expire"])), max_size=30)


@both
@given(CHANGES, st.integers(0, 30))
def test_decoded_rows_are_the_stored_items(draft: str, changes: list[tuple[str, str]], start: int) -> None:
    peer = LegacyClient(legacy_bucket(vbuckets=1), draft)
    for n, (key, change) in enumerate(changes):
        if change == "store":
            peer.bucket.store(key.encode(), b"%d" % n * n, flags=n << 20, expiry=NOW + 1 + n)
        else:
            peer.bucket.remove(key.encode(), event="deletion" if change == "remove" else "expiration")
    vbucket = peer.bucket.active(0)
    start = min(start, vbucket.high_seqno)
    peer.send(upr_stream_request(peer, start=start, vbuuid=newest(vbucket)))
    expected = [
        {
            "event": item.event,
            "seqno": item.seqno,
            "rev_seqno": item.rev_seqno,
            "cas": item.cas,
            "key": item.key,
            "value": item.value,
            "flags": item.flags,
            "expiry": item.expiry,
        }
        for item in stored_items(peer.bucket)
        if item.seqno > start
    ]
    assert rows(peer.receive_bytes(), draft, *COLUMNS) == expected


@both
@given(cuts=CUTS)
def test_requests_may_arrive_in_any_pieces(draft: str, cuts: list[int]) -> None:
    outputs = []
    for cut in ([], cuts):
        peer = filled(draft)
        requests = [
            upr_stream_request(peer, 0),
            upr_stream_request(peer, 1, opaque=12),
            upr_stream_request(peer, 5, opaque=13),
        ]
        for piece in chunks(b"".join(encode(frame, draft) for frame in requests), cut):
            peer.connection.receive(piece, 0.0)
        outputs.append(peer.receive_bytes())
    assert outputs[0] == outputs[1]


# Responses.


@both
def test_a_vbucket_of_another_node_is_refused(draft: str) -> None:
    peer = filled(draft)
    peer.bucket.active(1).state = VbucketState.DEAD
    assert [outcome(frame) for frame in request(peer, 99)] == ["not_my_vbucket"]
    assert [outcome(frame) for frame in request(peer, 1)] == ["not_my_vbucket"]


@both
def test_the_failover_log_is_sent(draft: str) -> None:
    peer = filled(draft)
    vbucket = peer.bucket.active(1)
    vbucket.log = vbucket.log.begin(0xABCD, 3)
    name = "failover_log_request" if draft == "upr1" else "get_failover_log"
    peer.send(Frame(name, Magic.REQUEST, 5, vbucket=1), Frame(name, Magic.REQUEST, 6, vbucket=99))
    response, refused = peer.receive()
    assert (response.opaque, response.body(draft)) == (5, tuple(vbucket.log))
    assert response.body(draft)[0] == (0xABCD, 3)
    assert (refused.opaque, refused.value) == (6, b"")
    assert refused.name == "not_my_vbucket" or refused.status == Status.NOT_MY_VBUCKET


# One history up to seqno 4, then another one up to 10.
OLD, NEW, UNKNOWN = 0x111, 0x222, 0x333
RESUMES = {
    "from the beginning": (0, 0, "stream_ok", None),
    "of the present history": (7, NEW, "stream_ok", None),
    "at the very end": (10, NEW, "stream_ok", None),
    "of the old history, as far as it went": (4, OLD, "stream_ok", None),
    "of the old history, and further": (6, OLD, "rollback", 4),
    "further than we are": (12, NEW, "rollback", 10),
}


@both
@pytest.mark.parametrize(("start", "vbuuid", "expected", "seqno"), RESUMES.values(), ids=RESUMES)
def test_a_consumer_resumes_or_rolls_back(
    draft: str, start: int, vbuuid: int, expected: str, seqno: int | None
) -> None:
    peer = filled(draft, 8, vbuckets=1)
    vbucket = peer.bucket.active(0)
    assert vbucket.high_seqno == 10
    vbucket.log = FailoverLog.of([(NEW, 4), (OLD, 0)])
    high = {NEW: 4}.get(vbuuid, 0)
    answer, *frames = request(peer, start=start, vbuuid=vbuuid, high=high)
    assert outcome(answer) == expected
    assert answer.fields.get("rollback_seqno") == seqno
    if expected == "stream_ok":
        assert keys(frames) == [item.key for item in stored_items(peer.bucket) if item.seqno > start]
    else:
        assert frames == []
        assert outcome(request(peer, start=seqno or 0, vbuuid=vbuuid, high=high)[0]) == "stream_ok"


def test_the_second_draft_has_a_status_for_an_unknown_history() -> None:
    answers = [outcome(request(filled(draft), start=2, vbuuid=UNKNOWN)[0]) for draft in DRAFTS]
    assert answers == ["rollback", "KEY_ENOENT"]
    assert request(filled("upr1"), start=2, vbuuid=UNKNOWN)[0].fields == {"rollback_seqno": 0}
    # Even at the beginning, where there is nothing to roll back.
    answers = [outcome(request(filled(draft), vbuuid=UNKNOWN)[0]) for draft in DRAFTS]
    assert answers == ["stream_ok", "KEY_ENOENT"]


def test_one_vbucket_has_one_stream() -> None:
    second = filled("upr2")
    request(second, 1)
    assert [outcome(frame) for frame in request(second, 1, opaque=12)] == ["KEY_EEXISTS"]
    assert outcome(request(second, 0, end=1)[0]) == "stream_ok"
    # It has ended.
    assert outcome(request(second, 0)[0]) == "stream_ok"
    first = filled("upr1")
    request(first, 1)
    again = request(first, 1, opaque=12)
    assert {frame.opaque for frame in again} == {12}
    for n in range(8):
        first.bucket.store(b"%d" % n, b"")
    assert {frame.opaque for frame in first.receive()} == {12}


def test_a_stream_that_ends_before_its_start_is_refused_in_the_second_draft() -> None:
    peer = filled("upr2", vbuckets=1)
    vbuuid = newest(peer.bucket.active(0))
    assert [outcome(frame) for frame in request(peer, start=5, end=4, vbuuid=vbuuid)] == ["ERANGE"]
    ended = [outcome(frame) for frame in request(peer, start=5, end=5, vbuuid=vbuuid)]
    assert ended == ["stream_ok", "stream_start", "stream_end"]
    first = filled("upr1", vbuckets=1)
    frames = request(first, start=5, end=4, vbuuid=newest(first.bucket.active(0)))
    assert names(frames) == ["stream_ok", "stream_start", "stream_end_ok"]


def test_a_vbucket_is_handed_over_in_the_second_draft() -> None:
    peer = filled("upr2")
    _, *frames = request(peer, 1, flags=int(StreamFlag.TAKE_OVER))
    states = [frame.fields["state"] for frame in frames if frame.name == "set_vbucket_state"]
    assert states == [UprVbucketState.PENDING, UprVbucketState.ACTIVE]
    assert names(frames)[-2:] == ["set_vbucket_state", "stream_end"]
    assert keys(frames) == [item.key for item in stored_items(peer.bucket, 1)]
    assert peer.bucket.active(1).state is VbucketState.DEAD


@both
def test_a_malformed_request_is_refused(draft: str) -> None:
    peer = filled(draft)
    whole = encode(upr_stream_request(peer), draft)
    peer.connection.receive(whole[:4] + b"\x08" + whole[5:8] + (8).to_bytes(4, "big") + whole[12:32], 0.0)
    (answer,) = decode(peer.receive_bytes(), "dcp")
    assert (answer.opaque, answer.status) == (11, Status.EINVAL)
    assert outcome(request(peer)[0]) == "stream_ok"


@both
def test_tap_is_refused_on_a_upr_connection(draft: str) -> None:
    peer = filled(draft)
    peer.connect()
    assert decode(peer.receive_bytes(), "tap")[0].status == Status.UNKNOWN_COMMAND
    assert peer.connection.dialect == draft
