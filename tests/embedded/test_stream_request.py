"""Checks of stream requests: their order, and the responses of real servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dcp.embedded.manifest import BucketManifest
from dcp.embedded.negotiated import Negotiated
from dcp.embedded.release import Release
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.embedded.stream_request import GrantedStream, RefusedStream, StreamRequest, decide
from dcp.errors import LocalProtocolError
from dcp.position import FailoverLog
from dcp.wire.dcp import ENDLESS, StreamFlag
from dcp.wire.dcp_body import StreamFilter
from dcp.wire.memcached import Status, VbucketState

UUID = 0xDD7A
PLAIN = Negotiated()
COLLECTIONS = Negotiated(collections=True, noop=True)


def make_vbucket(high: int = 12, collection_id: int = 0) -> VbucketStore:
    vbucket = VbucketStore(6, VbucketState.ACTIVE, FailoverLog.of([(UUID, 0)]))
    for seqno in range(1, high + 1):
        vbucket.put(StoredItem("mutation", seqno, b"rb::%02d" % seqno, collection_id=collection_id))
    return vbucket


def make_request(
    start: int = 0, end: int = ENDLESS, vbuuid: int = 0, window: tuple[int, int] | None = None, **more: Any
) -> StreamRequest:
    first, last = window or (start, start)
    return StreamRequest(more.pop("flags", StreamFlag(0)), start, end, vbuuid, first, last, **more)


# Requests of the recorded scenario stream_req_errors, to which five releases responded alike.
RECORDED = [
    (make_request(12, vbuuid=0xDEADBEEF), RefusedStream(Status.ROLLBACK, 0)),
    (make_request(5, vbuuid=0xDEADBEEF, window=(4, 6)), RefusedStream(Status.ROLLBACK, 0)),
    (make_request(112, vbuuid=UUID), RefusedStream(Status.ROLLBACK, 12)),
    (make_request(5, end=3, vbuuid=UUID), RefusedStream(Status.ERANGE)),
    (make_request(5, vbuuid=UUID, window=(7, 9)), RefusedStream(Status.ERANGE)),
    (make_request(9, vbuuid=UUID, window=(2, 5)), RefusedStream(Status.ERANGE)),
    (make_request(5, vbuuid=UUID, window=(9, 5)), RefusedStream(Status.ERANGE)),
    (make_request(0, vbuuid=0xDEADBEEF), GrantedStream(0, ENDLESS, 0, 0, frozenset({0}), None)),
]


@pytest.mark.parametrize(("stream_request", "answer"), RECORDED)
def test_requests_are_refused_as_servers_refuse_them(
    stream_request: StreamRequest, answer: GrantedStream | RefusedStream
) -> None:
    assert decide(stream_request, PLAIN, make_vbucket(), BucketManifest()) == answer


@pytest.mark.parametrize(
    ("window", "granted"), [((5, 12), (5, 12)), ((5, 13), (5, 5)), ((4, 12), (4, 12)), ((5, 5), (5, 5))]
)
def test_the_lost_end_of_a_snapshot_of_which_nothing_was_received_is_forgotten(
    window: tuple[int, int], granted: tuple[int, int]
) -> None:
    request = make_request(5, vbuuid=UUID, window=window)
    expected = GrantedStream(5, ENDLESS, *granted, frozenset({0}), None)
    assert decide(request, PLAIN, make_vbucket(), BucketManifest()) == expected


def test_a_consumer_that_knows_of_a_purge_resumes() -> None:
    vbucket = make_vbucket()
    vbucket.purge_seqno = 6
    knowing = make_request(5, vbuuid=UUID, filter=StreamFilter(purge_seqno=6), has_value=True)
    assert isinstance(decide(knowing, COLLECTIONS, vbucket, BucketManifest()), GrantedStream)
    other = make_request(5, vbuuid=UUID, filter=StreamFilter(purge_seqno=5), has_value=True)
    assert decide(other, COLLECTIONS, vbucket, BucketManifest()) == RefusedStream(Status.ROLLBACK, 0)


def test_checks_come_in_the_order_of_servers() -> None:
    """Begin with a request in which everything is wrong; each correction reveals the next check."""
    manifest, _ = BucketManifest().create_scope("s")
    request = make_request(5, end=3, vbuuid=1, flags=StreamFlag(0x8000), filter=StreamFilter(collections=(99,), sid=0))
    connection = Negotiated(collections=True)
    answers = [decide(request, connection, None, manifest)]
    request = replace(request, flags=StreamFlag(0))
    answers.append(decide(request, connection, None, manifest))
    answers.append(decide(request, connection, make_vbucket(), manifest))
    connection = replace(connection, noop=True)
    answers.append(decide(request, connection, make_vbucket(), manifest))
    request = replace(request, end=ENDLESS)
    answers.append(decide(request, connection, make_vbucket(), manifest))
    request = replace(request, filter=StreamFilter(collections=(0,), sid=0))
    answers.append(decide(request, connection, make_vbucket(), manifest))
    request = replace(request, filter=StreamFilter(collections=(0,)))
    answers.append(decide(request, connection, make_vbucket(), manifest, streaming=True))
    answers.append(decide(request, connection, make_vbucket(), manifest))
    assert [answer.status for answer in answers if isinstance(answer, RefusedStream)] == [
        Status.EINVAL,
        Status.NOT_MY_VBUCKET,
        Status.NOT_SUPPORTED,
        Status.ERANGE,
        Status.UNKNOWN_COLLECTION,
        Status.DCP_STREAM_ID_INVALID,
        Status.KEY_EEXISTS,
        Status.ROLLBACK,
    ]


@pytest.mark.parametrize("state", [VbucketState.REPLICA, VbucketState.PENDING, VbucketState.DEAD])
def test_the_state_of_a_vbucket_decides_whether_it_is_streamed(state: VbucketState) -> None:
    vbucket = make_vbucket()
    vbucket.state = state
    answers = [
        decide(make_request(flags=flags), PLAIN, vbucket, BucketManifest())
        for flags in (StreamFlag(0), StreamFlag.ACTIVE_VB_ONLY)
    ]
    refused = [isinstance(answer, RefusedStream) and answer.status is Status.NOT_MY_VBUCKET for answer in answers]
    assert refused == [state is not VbucketState.REPLICA, True]


def test_from_latest_starts_where_the_vbucket_is_and_still_checks_a_uuid() -> None:
    request = make_request(flags=StreamFlag.FROM_LATEST)
    assert decide(request, PLAIN, make_vbucket(), BucketManifest()) == GrantedStream(
        12, ENDLESS, 12, 12, frozenset({0}), None
    )
    assert decide(replace(request, vbuuid=9), PLAIN, make_vbucket(), BucketManifest()) == RefusedStream(
        Status.ROLLBACK, 0
    )


def test_to_latest_ends_at_the_highest_seqno_of_the_requested_collections() -> None:
    vbucket = make_vbucket(12)
    vbucket.put(StoredItem("mutation", 13, b"other", collection_id=8))
    manifest, _ = BucketManifest().create_collection("_default", "c")
    request = make_request(flags=StreamFlag.TO_LATEST, filter=StreamFilter(collections=(0,)), has_value=True)
    answer = decide(request, COLLECTIONS, vbucket, manifest)
    assert isinstance(answer, GrantedStream)
    assert (answer.end, answer.collections) == (12, frozenset({0}))
    whole = decide(make_request(flags=StreamFlag.TO_LATEST), COLLECTIONS, vbucket, manifest)
    assert isinstance(whole, GrantedStream)
    assert (whole.end, whole.collections) == (13, None)


def test_to_latest_ends_at_once_without_changes_of_the_requested_collections() -> None:
    manifest, _ = BucketManifest().create_collection("_default", "c")
    manifest, _ = manifest.create_scope("empty")
    for wanted in (StreamFilter(collections=(8,)), StreamFilter(scope=manifest.scope("empty").id)):
        request = make_request(flags=StreamFlag.TO_LATEST, filter=wanted, has_value=True)
        answer = decide(request, COLLECTIONS, make_vbucket(12), manifest)
        assert isinstance(answer, GrantedStream)
        assert answer.end == 0


@pytest.mark.parametrize("filtered", [True, False])
def test_purged_deletions_after_the_last_seqno_of_a_collection_are_of_others(filtered: bool) -> None:
    vbucket = make_vbucket(4)
    for seqno in range(5, 13):
        vbucket.put(StoredItem("mutation", seqno, b"other%d" % seqno, collection_id=8))
    vbucket.purge_seqno = 9
    more: dict[str, Any] = {"filter": StreamFilter(collections=(0,)), "has_value": True} if filtered else {}
    answer = decide(make_request(6, vbuuid=UUID, **more), COLLECTIONS, vbucket, BucketManifest())
    assert isinstance(answer, GrantedStream) is filtered
    assert filtered or answer == RefusedStream(Status.ROLLBACK, 0)


def test_disk_only_ends_at_what_is_persisted() -> None:
    vbucket = make_vbucket()
    vbucket.persisted_seqno = 7
    answer = decide(make_request(flags=StreamFlag.DISK_ONLY), PLAIN, vbucket, BucketManifest())
    assert isinstance(answer, GrantedStream)
    assert answer.end == 7
    assert decide(
        make_request(8, vbuuid=UUID, flags=StreamFlag.DISK_ONLY), PLAIN, vbucket, BucketManifest()
    ) == RefusedStream(Status.ERANGE)


def test_a_lost_snapshot_without_received_items_is_dropped() -> None:
    answer = decide(make_request(12, vbuuid=UUID, window=(12, 40)), PLAIN, make_vbucket(), BucketManifest())
    assert answer == GrantedStream(12, ENDLESS, 12, 12, frozenset({0}), None)


def test_a_scope_is_its_collections() -> None:
    manifest, _ = BucketManifest().create_scope("s")
    manifest, [change] = manifest.create_collection("s", "c")
    request = make_request(filter=StreamFilter(scope=change.scope_id), has_value=True)
    answer = decide(request, COLLECTIONS, make_vbucket(), manifest)
    assert isinstance(answer, GrantedStream)
    assert change.collection_id is not None
    assert answer.collections == frozenset({change.collection_id})
    request = make_request(filter=StreamFilter(scope=99), has_value=True)
    assert decide(request, COLLECTIONS, make_vbucket(), manifest) == RefusedStream(Status.UNKNOWN_SCOPE)


def test_a_value_is_for_connections_with_collections_only() -> None:
    assert decide(make_request(has_value=True), PLAIN, make_vbucket(), BucketManifest()) == RefusedStream(Status.EINVAL)
    assert decide(
        make_request(filter=None, has_value=True), COLLECTIONS, make_vbucket(), BucketManifest()
    ) == RefusedStream(Status.EINVAL)


def test_a_dropped_default_collection_leaves_nothing_for_old_connections() -> None:
    manifest, _ = BucketManifest().drop_collection("_default", "_default")
    assert decide(make_request(), PLAIN, make_vbucket(), manifest) == RefusedStream(Status.EINVAL)


@pytest.mark.parametrize(("version", "flag"), [("7.1", StreamFlag.FROM_LATEST), ("5.0", StreamFlag.STRICT_VB_UUID)])
def test_a_flag_of_a_later_release_is_refused(version: str, flag: StreamFlag) -> None:
    answer = decide(make_request(flags=flag), Negotiated(Release.of(version)), make_vbucket(), BucketManifest())
    assert answer == RefusedStream(Status.EINVAL)


@pytest.mark.parametrize("version", ["2.5", "9.0", "seven", "7", ""])
def test_an_unknown_release_is_refused(version: str) -> None:
    with pytest.raises(LocalProtocolError, match="server_version: expected"):
        Release.of(version)
