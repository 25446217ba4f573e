"""Durable writes: which are possible, what they wait for, and what DCP shows of them."""

from __future__ import annotations

from typing import Any

import pytest

from dcp.embedded import topology
from dcp.embedded.bucket import BucketStore
from dcp.wire.dcp import OpenFlag
from dcp.wire.frame import Frame
from dcp.wire.framing import FrameInfo, RequestInfo
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status
from tests.conformance import TRANSCRIPTS, transcript
from tests.embedded.commands.test_subdoc import single
from tests.embedded.raw_client import KEY, CommandClient, DcpClient, make_bucket, store, stored_item, summaries
from tests.embedded.recorded import frames_of

MAJORITY, PERSIST_ACTIVE, PERSIST_MAJORITY = b"\x01", b"\x02", b"\x03"
# Milliseconds.
TIMEOUT = b"\x03\xe8"


def durable(
    client: CommandClient, requirement: bytes = MAJORITY + TIMEOUT, name: str = "set", **parts: Any
) -> list[Frame]:
    """Send a durable write; return the responses so far."""
    info = FrameInfo(RequestInfo.DURABILITY, requirement)
    fields = {"flags": 0, "expiry": 0} if name == "set" else {}
    return client.request_all(name, key=KEY, magic=Magic.FRAMED_REQUEST, frame_info=(info,), fields=fields, **parts)


def client_of(bucket: BucketStore) -> CommandClient:
    client = CommandClient(bucket)
    client.hello()
    return client


def pair() -> CommandClient:
    """Client of the first of two nodes, which has a replica on the second."""
    return client_of(make_bucket(nodes=2, replicas=1))


@pytest.mark.parametrize(
    ("nodes", "replicas", "possible"),
    [(1, 0, True), (1, 1, False), (2, 1, True), (2, 2, True), (1, 2, False), (3, 2, True), (4, 3, False)],
)
def test_a_durable_write_needs_a_majority_of_the_copies(nodes: int, replicas: int, possible: bool) -> None:
    client = client_of(make_bucket(nodes=nodes, replicas=replicas))
    (answer,) = durable(client)
    assert answer.status == (Status.SUCCESS if possible else Status.DURABILITY_IMPOSSIBLE)
    assert client.bucket.active(0).high_seqno == (2 if possible else 0)


def test_after_a_failover_too_few_copies_are_left() -> None:
    client = pair()
    topology.failover(client.bucket, 1)
    (answer,) = durable(client)
    assert answer.status == Status.DURABILITY_IMPOSSIBLE
    assert store(client).status == Status.SUCCESS


@pytest.mark.parametrize("requirement", [b"\x00", b"\x04"])
def test_an_unknown_level_is_refused(requirement: bytes) -> None:
    assert durable(pair(), requirement)[0].status == Status.DURABILITY_INVALID_LEVEL


def test_a_malformed_requirement_is_refused() -> None:
    assert durable(pair(), b"\x01\x00")[0].status == Status.EINVAL


def test_a_client_without_extended_errors_is_disconnected() -> None:
    client = CommandClient(make_bucket(nodes=1, replicas=1))
    client.hello(Feature.COLLECTIONS)
    assert durable(client) == []
    assert client.closed


def test_a_durable_write_has_two_seqnos_of_which_a_consumer_sees_one() -> None:
    client = pair()
    store(client, value=b"1")
    consumer = DcpClient(client.bucket)
    consumer.stream()
    (answer,) = durable(client, value=b"2")
    # The token of releases up to 8.0 has the seqno of the prepare.
    assert answer.fields["seqno"] == 2
    assert (stored_item(client).seqno, stored_item(client).rev_seqno, stored_item(client).cas) == (3, 2, answer.cas)
    assert summaries(consumer.receive()) == [("marker", 2, 3, 5), ("mutation", 3)]
    # No checkpoint has a commit and another version of the document.
    store(client, value=b"3")
    assert summaries(consumer.receive()) == [("marker", 4, 4, 5), ("mutation", 4)]
    (answer,) = durable(client, name="delete")
    assert (stored_item(client).event, stored_item(client).seqno, answer.fields["seqno"]) == ("deletion", 6, 5)


@pytest.mark.parametrize("version", ["7.2.9", "8.0.1"])
def test_durable_writes_are_streamed_as_a_recorded_server_streams_them(version: str) -> None:
    (path,) = [path for path in TRANSCRIPTS if path.match(f"*/{version}/sync_writes_live.json")]
    sent = [one.frame for one in frames_of(transcript(path), "server")]
    recorded = {
        number: [frame for frame in sent if frame.vbucket == number and not frame.kind.answers] for number in (2, 3)
    }
    client = client_of(make_bucket(version, vbuckets=4))
    consumer = DcpClient(client.bucket, flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES)
    # A document is written, written again, and a third time without success.
    frames = consumer.stream(vbucket=2)
    for _ in range(2):
        durable(client, vbucket=2)
        frames += consumer.receive()
    client.bucket.set_persistence(client.bucket.nodes[0], False)
    assert durable(client, PERSIST_ACTIVE + TIMEOUT, vbucket=2) == []
    frames += consumer.receive()
    client.now = 1.0
    assert client.receive()[0].status == Status.SYNC_WRITE_AMBIGUOUS
    assert summaries(frames + consumer.receive()) == summaries(recorded[2])
    client.bucket.set_persistence(client.bucket.nodes[0], True)
    # Another one is written and deleted.
    frames = consumer.stream(vbucket=3)
    for name in ("set", "delete"):
        durable(client, name=name, vbucket=3)
        frames += consumer.receive()
    assert summaries(frames) == summaries(recorded[3])


def test_the_token_of_later_releases_has_the_seqno_of_the_commit() -> None:
    assert durable(client_of(make_bucket("8.5")))[0].fields["seqno"] == 2


def test_a_durable_write_waits_for_a_replica() -> None:
    client = pair()
    store(client, value=b"old")
    client.bucket.nodes[1].alive = False
    assert durable(client, value=b"new") == []
    consumer = DcpClient(client.bucket)
    # A prepare moves the seqno only.
    assert summaries(consumer.stream())[1:] == [("mutation", 1), ("seqno_advanced", 2)]
    assert client.request("get", key=KEY).value == b"old"
    for name in ("set", "delete", "touch", "get_locked"):
        parts: dict[str, Any] = {"set": {"flags": 0, "expiry": 0}, "touch": {"expiry": 9}}.get(name, {})
        assert client.status(name, key=KEY, fields=parts) is Status.SYNC_WRITE_IN_PROGRESS
    assert single(client, "dict_upsert", "n", b"1").status == Status.SYNC_WRITE_IN_PROGRESS
    client.bucket.nodes[1].alive = True
    (answer,) = client.receive()
    assert (answer.status, stored_item(client).value, stored_item(client).seqno) == (Status.SUCCESS, b"new", 3)
    assert client.connection.due() is None
    assert summaries(consumer.receive())[1:] == [("mutation", 3)]


def test_a_durable_write_that_waits_too_long_is_ambiguous() -> None:
    client = pair()
    store(client, value=b"old")
    client.bucket.set_replica_lag(1)
    assert durable(client, value=b"new") == []
    assert client.connection.due() == 1.0
    client.now = 1.0
    (answer,) = client.receive()
    assert answer.status == Status.SYNC_WRITE_AMBIGUOUS
    assert (stored_item(client).value, client.bucket.active(0).high_seqno) == (b"old", 3)
    assert store(client).status == Status.SUCCESS


def test_a_durable_write_without_a_timeout_of_its_own_waits_half_a_minute() -> None:
    client = pair()
    client.bucket.set_replica_lag(1)
    assert durable(client, MAJORITY) == []
    assert client.connection.due() == 30.0


def test_a_durable_write_is_ambiguous_if_its_node_is_failed_over() -> None:
    client = pair()
    client.bucket.set_replica_lag(1)
    assert durable(client) == []
    topology.failover(client.bucket, 0)
    (answer,) = client.receive()
    assert answer.status == Status.SYNC_WRITE_AMBIGUOUS


@pytest.mark.parametrize(
    ("requirement", "node", "waits"),
    [
        (MAJORITY, 0, False),
        (MAJORITY, 1, False),
        (PERSIST_ACTIVE, 0, True),
        (PERSIST_ACTIVE, 1, False),
        (PERSIST_MAJORITY, 0, True),
        (PERSIST_MAJORITY, 1, True),
    ],
)
def test_a_level_can_ask_for_persistence(requirement: bytes, node: int, waits: bool) -> None:
    client = pair()
    client.bucket.set_persistence(client.bucket.nodes[node], False)
    assert len(durable(client, requirement + TIMEOUT)) == (not waits)
    client.bucket.set_persistence(client.bucket.nodes[node], True)
    assert [answer.status for answer in client.receive()] == [Status.SUCCESS] * waits


def test_a_client_that_leaves_takes_its_durable_write_along() -> None:
    client = pair()
    client.bucket.nodes[1].alive = False
    assert durable(client) == []
    client.connection.closed()
    assert store(client_of(client.bucket)).status == Status.SUCCESS
