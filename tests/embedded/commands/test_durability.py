"""Durable writes: which are possible, what they wait for, and what DCP shows of them."""

from __future__ import annotations

from typing import Any

import pytest

from dcp.embedded import Cluster, topology
from dcp.embedded.bucket import BucketStore
from dcp.embedded.store import PreparedItem, StoredItem
from dcp.wire.dcp import DurabilityLevel, MarkerFlag, OpenFlag
from dcp.wire.document import Datatype, join_xattrs
from dcp.wire.frame import Frame, decode, encode
from dcp.wire.framing import FrameInfo, RequestInfo
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status
from tests.conformance import TRANSCRIPTS, transcript
from tests.embedded.commands.test_subdoc import single
from tests.embedded.consumer import Consumer, frames_named
from tests.embedded.raw_client import KEY, CommandClient, DcpClient, make_bucket, store, stored_item, summaries
from tests.embedded.recorded import frames_of
from tests.embedded.sockets import Client, plain_auth, request
from tests.waiting import until

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
    topology.crash(client.bucket, 1)
    assert durable(client, value=b"new") == []
    consumer = DcpClient(client.bucket)
    # A prepare moves the seqno only.
    assert summaries(consumer.stream())[1:] == [("mutation", 1), ("seqno_advanced", 2)]
    assert client.request("get", key=KEY).value == b"old"
    for name in ("set", "delete", "touch", "get_locked"):
        parts: dict[str, Any] = {"set": {"flags": 0, "expiry": 0}, "touch": {"expiry": 9}}.get(name, {})
        assert client.status(name, key=KEY, fields=parts) is Status.SYNC_WRITE_IN_PROGRESS
    assert single(client, "dict_upsert", "n", b"1").status == Status.SYNC_WRITE_IN_PROGRESS
    topology.recover(client.bucket, 1)
    (answer,) = client.receive()
    assert (answer.status, stored_item(client).value, stored_item(client).seqno) == (Status.SUCCESS, b"new", 3)
    assert client.bucket.durable_writes.due() is None
    assert summaries(consumer.receive())[1:] == [("mutation", 3)]


def test_a_durable_write_that_waits_too_long_is_ambiguous() -> None:
    client = pair()
    store(client, value=b"old")
    client.bucket.set_replica_lag(1)
    assert durable(client, value=b"new") == []
    assert client.bucket.durable_writes.due() == 1.0
    client.now = 1.0
    (answer,) = client.receive()
    assert answer.status == Status.SYNC_WRITE_AMBIGUOUS
    assert (stored_item(client).value, client.bucket.active(0).high_seqno) == (b"old", 3)
    assert store(client).status == Status.SUCCESS


def test_a_durable_write_without_a_timeout_of_its_own_waits_half_a_minute() -> None:
    client = pair()
    client.bucket.set_replica_lag(1)
    assert durable(client, MAJORITY) == []
    assert client.bucket.durable_writes.due() == 30.0


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


def test_a_durable_write_goes_on_without_the_client_that_asked_for_it() -> None:
    client = pair()
    topology.crash(client.bucket, 1)
    assert durable(client, value=b"new") == []
    client.connection.closed()
    other = client_of(client.bucket)
    assert other.status("set", key=KEY, fields={"flags": 0, "expiry": 0}) is Status.SYNC_WRITE_IN_PROGRESS
    topology.recover(client.bucket, 1)
    assert other.receive() == []
    assert other.request("get", key=KEY).value == b"new"


def test_a_durable_write_outlives_a_crash_of_its_node() -> None:
    client = pair()
    client.bucket.set_replica_lag(1)
    assert durable(client, value=b"new") == []
    topology.crash(client.bucket, 0)
    client.bucket.durable_writes.tick(100.0)
    topology.recover(client.bucket, 0)
    client.bucket.durable_writes.tick(100.0)
    assert stored_item(client).value == b"new"


def test_a_durable_write_without_its_client_times_out() -> None:
    client = pair()
    client.bucket.set_replica_lag(1)
    assert durable(client) == []
    client.connection.closed()
    other = client_of(client.bucket)
    other.now = 1.0
    assert other.receive() == []
    assert (other.status("get", key=KEY), client.bucket.active(0).high_seqno) == (Status.KEY_ENOENT, 2)


def test_durable_writes_of_a_vbucket_are_committed_in_order() -> None:
    client = client_of(make_bucket())
    client.bucket.set_persistence(client.bucket.nodes[0], False)
    assert durable(client, PERSIST_ACTIVE + TIMEOUT) == []
    info = FrameInfo(RequestInfo.DURABILITY, MAJORITY + TIMEOUT)
    second = client.request_all(
        "set",
        key=b"\0other",
        magic=Magic.FRAMED_REQUEST,
        frame_info=(info,),
        fields={"flags": 0, "expiry": 0},
        opaque=8,
    )
    assert second == []
    client.bucket.set_persistence(client.bucket.nodes[0], True)
    assert [(answer.opaque, answer.fields["seqno"]) for answer in client.receive()] == [(7, 1), (8, 2)]
    assert [item.seqno for item in client.bucket.active(0)] == [3, 4]


def test_a_replica_that_takes_over_completes_the_write() -> None:
    bucket = make_bucket(nodes=3, replicas=2)
    client = client_of(bucket)
    for node in bucket.nodes[1:]:
        bucket.set_persistence(node, False)
    assert durable(client, PERSIST_MAJORITY + TIMEOUT, value=b"new") == []
    topology.failover(bucket, 0)
    (answer,) = client.receive()
    assert answer.status == Status.SYNC_WRITE_AMBIGUOUS
    other = CommandClient(bucket, 1)
    other.hello()
    # Reading the old version could show a write that was seen already as if it were lost.
    assert other.status("get", key=KEY) is Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS
    # Nobody waits for it any more, so it has no timeout either.
    assert bucket.durable_writes.due() is None
    other.now = 100.0
    assert other.receive() == []
    for node in bucket.nodes[1:]:
        bucket.set_persistence(node, True)
    assert other.receive() == []
    assert other.request("get", key=KEY).value == b"new"


def test_a_durable_write_ends_with_its_collection() -> None:
    client = pair()
    manifest, steps = client.bucket.manifest.create_collection("_default", "fruit")
    client.bucket.change_manifest(manifest, steps)
    client.bucket.set_replica_lag(1)
    info = FrameInfo(RequestInfo.DURABILITY, MAJORITY + TIMEOUT)
    fields = {"flags": 0, "expiry": 0}
    assert not client.request_all("set", key=b"\x08k", magic=Magic.FRAMED_REQUEST, frame_info=(info,), fields=fields)
    client.bucket.change_manifest(*manifest.drop_collection("_default", "fruit"))
    assert [answer.status for answer in client.receive()] == [Status.SYNC_WRITE_AMBIGUOUS]
    assert client.bucket.durable_writes.due() is None


# Consumers with sync writes.


def replica(bucket: BucketStore, *, name: str = "replica", **controls: str) -> DcpClient:
    """Consumer that replicates, as nodes do; without a name one that only asks for sync writes."""
    named = {"consumer_name": name} if name else {}
    return DcpClient(bucket, controls={"enable_sync_writes": "true", **named, **controls})


def comparable(frame: Frame) -> tuple[Any, ...]:
    """Return a frame without values that differ for each server."""
    return frame.name, frame.key, frame.value, frame.datatype, {**frame.fields, "nru": 0}


@pytest.mark.parametrize("version", ["6.6.5", "7.0.5"])
def test_a_replica_gets_the_recorded_writes_as_a_recorded_server_sends_them(version: str) -> None:
    (path,) = [path for path in TRANSCRIPTS if path.match(f"*/{version}/sync_writes_enabled.json")]
    recording = transcript(path)
    recorded = [one.frame for one in frames_of(recording, "server")]
    requests = [frame for frame in decode(recording.connections[1].client) if frame.name == "set"]
    client = CommandClient(make_bucket(version[:3], vbuckets=64))
    client.hello(Feature.XERROR, Feature.SNAPPY, Feature.XATTR, Feature.JSON, Feature.MUTATION_SEQNO)
    *first, live = [frame for frame in requests if frame.vbucket == 12]
    for frame in first:
        client.send(frame)
    controls = {"enable_sync_writes": "true", "consumer_name": "replica1"}
    consumer = DcpClient(client.bucket, features=[Feature.SNAPPY], controls=controls)
    received = consumer.stream(vbucket=12)
    client.send(live)
    received += consumer.receive()
    sent = [frame for frame in recorded if not frame.kind.answers and frame.name != "dcp_noop"]
    assert [comparable(frame) for frame in received] == [comparable(frame) for frame in sent]
    assert {frame.name for frame in sent} == {"snapshot_marker", "prepare", "commit", "mutation"}


def test_a_replica_gets_an_abort() -> None:
    client = pair()
    consumer = replica(client.bucket)
    consumer.stream()
    client.bucket.set_replica_lag(1)
    assert durable(client) == []
    marker, prepare = consumer.receive()
    assert (marker.fields["snapshot_end"], marker.fields["max_visible_seqno"]) == (1, 0)
    assert (prepare.name, prepare.key, prepare.fields["seqno"], prepare.fields["deleted"]) == ("prepare", KEY, 1, 0)
    assert (prepare.fields["lock_time"], prepare.fields["nru"]) == (0, 0)
    client.now = 1.0
    client.receive()
    _, abort = consumer.receive()
    assert (abort.name, abort.key, abort.cas, abort.fields) == ("abort", KEY, 0, {"prepared_seqno": 1, "seqno": 2})


def test_a_prepare_has_what_its_consumer_gets_of_documents() -> None:
    bucket = make_bucket()
    value = join_xattrs([(b"x", b"1")], b"{}")
    document = StoredItem("mutation", 1, b"key", value, datatype=int(Datatype.JSON | Datatype.XATTR))
    bucket.active(0).put(PreparedItem(document, DurabilityLevel.MAJORITY))
    _, prepare = replica(bucket).stream()
    assert (prepare.name, prepare.value, prepare.datatype) == ("prepare", b"{}", Datatype.JSON)


def test_a_prepared_deletion_says_so() -> None:
    client = pair()
    store(client)
    consumer = replica(client.bucket)
    consumer.stream()
    durable(client, name="delete")
    _, prepare, commit = consumer.receive()
    assert (prepare.name, prepare.fields["deleted"], prepare.value) == ("prepare", 1, b"")
    assert (commit.name, commit.fields) == ("commit", {"prepared_seqno": 2, "seqno": 3})


def test_a_backfill_has_what_is_pending_and_versions_in_place_of_commits() -> None:
    client = pair()
    durable(client)
    client.bucket.set_replica_lag(1)
    info = FrameInfo(RequestInfo.DURABILITY, MAJORITY + TIMEOUT)
    for number, key in enumerate((b"\0aborted", b"\0pending")):
        client.now = 2.0 * number
        fields = {"flags": 0, "expiry": 0}
        # Each lets the replica have the one before.
        assert not client.request_all("set", key=key, magic=Magic.FRAMED_REQUEST, frame_info=(info,), fields=fields)
        client.now += 1.0 - number
        client.receive()
    client.bucket.evict_checkpoints()
    marker, *items = replica(client.bucket).stream()
    assert summaries(items) == [("mutation", 2), ("abort", 4), ("prepare", 5)]
    assert marker.fields == {
        "version": 0,
        "snapshot_start": 0,
        "snapshot_end": 5,
        "flags": MarkerFlag.DISK | MarkerFlag.CHECKPOINT,
        "max_visible_seqno": 2,
        "high_completed_seqno": 3,
    }
    marker = replica(client.bucket, max_marker_version="2.2").stream()[0]
    assert (marker.fields["version"], marker.fields["high_prepared_seqno"]) == (2, 5)
    marker = replica(client.bucket, name="", max_marker_version="2.2").stream()[0]
    names = ("max_visible_seqno", "high_completed_seqno", "high_prepared_seqno")
    assert [marker.fields[name] for name in names] == [0, 0, 0]
    # A consumer without sync writes sees nothing of it.
    assert summaries(DcpClient(client.bucket).stream())[1:] == [("mutation", 2), ("seqno_advanced", 5)]


def test_a_consumer_without_a_name_gets_markers_without_seqnos_of_sync_writes() -> None:
    client = pair()
    durable(client)
    marker, *items = replica(client.bucket, name="").stream()
    assert set(marker.fields) == {"snapshot_start", "snapshot_end", "flags"}
    assert summaries(items) == [("prepare", 1), ("commit", 2)]


def test_acknowledgements_of_a_replica_outside_the_map_change_nothing() -> None:
    client = pair()
    client.bucket.set_replica_lag(1)
    assert durable(client) == []
    consumer = replica(client.bucket)
    consumer.stream()
    acknowledgement = Frame("seqno_acknowledged", Magic.REQUEST, 7, fields={"prepared_seqno": 1})
    consumer.send(acknowledgement)
    assert consumer.receive() == client.receive() == []
    assert not consumer.closed
    elsewhere = replica(client.bucket, name="elsewhere")
    elsewhere.send(Frame("seqno_acknowledged", Magic.REQUEST, 7, vbucket=1, fields={"prepared_seqno": 1}))
    assert [frame.status for frame in elsewhere.receive()] == [Status.NOT_MY_VBUCKET]
    unnamed = replica(client.bucket, name="")
    unnamed.stream()
    unnamed.send(acknowledgement)
    assert [frame.status for frame in unnamed.receive()] == [Status.EINVAL]
    without_stream = replica(client.bucket)
    without_stream.send(acknowledgement)
    assert without_stream.closed


def test_a_lost_commit_takes_its_prepare_along() -> None:
    client = pair()
    durable(client, value=b"kept")
    durable(client, value=b"lost")
    topology.failover(client.bucket, 0, lose=1)
    assert (client.bucket.active(0).high_seqno, stored_item(client).value) == (2, b"kept")


def test_a_cluster_completes_and_aborts_durable_writes_of_clients_that_are_gone() -> None:
    with Cluster(nodes=2, replicas=1, vbuckets=1) as cluster, Consumer(cluster) as consumer:
        consumer.stream(0)
        user = cluster.credentials
        login = [plain_auth(user.username, user.password), request("select_bucket", key=b"default")]
        cluster.crash(1)
        for key, timeout in ((b"aborted", b"\x00\x01"), (b"committed", b"\xff\xff")):
            info = FrameInfo(RequestInfo.DURABILITY, MAJORITY + timeout)
            write = Frame("set", Magic.FRAMED_REQUEST, key=key, frame_info=(info,), fields={"flags": 0, "expiry": 0})
            with Client(cluster) as client:
                client.exchange(*login)
                client.socket.sendall(encode(write))
                # A request without durability shows that the node has read the write.
                client.exchange(request("set", key=b"plain-" + key, fields={"flags": 0, "expiry": 0}))
            if key == b"aborted":
                # The replica may not be back before the timeout has passed.
                until(lambda: cluster._bucket.durable_writes.due() is None)
        cluster.recover(1)
        changes = frames_named([frame for _ in range(3) for frame in consumer.until("mutation")], "mutation")
        assert [frame.key for frame in changes] == [b"plain-aborted", b"plain-committed", b"committed"]
        assert cluster.truth().keys() == {b"plain-aborted", b"plain-committed", b"committed"}
