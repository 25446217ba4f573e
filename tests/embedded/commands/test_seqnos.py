"""All commands that read seqnos."""

from __future__ import annotations

import pytest

import dcp
from dcp.embedded.bucket import BucketStore
from dcp.wire.document import split_collection
from dcp.wire.memcached import Feature, Status, VbucketState
from tests.embedded.raw_client import USUAL_FEATURES, CommandClient, make_bucket


def filled(version: str = "8.0") -> BucketStore:
    """Create two nodes and four vbuckets with replicas. In vbucket 0 a collection has the highest seqnos."""
    bucket = make_bucket(version, nodes=2, vbuckets=4, replicas=1)
    for number, count in enumerate((3, 5, 0, 1)):
        for n in range(count):
            bucket.store(b"k%d" % n, b"v", number=number)
    bucket.change_manifest(*bucket.manifest.create_collection("_default", "c"))
    bucket.store(b"x", b"v", collection_id=8, number=0)
    return bucket


def seqnos(client: CommandClient, **fields: int) -> dict[int, int]:
    return dict(client.request("get_all_vb_seqnos", fields=fields).body())


def test_seqnos_are_those_of_the_vbuckets_in_a_state() -> None:
    client = CommandClient(filled())
    client.hello()
    assert seqnos(client) == {0: 5, 1: 6, 2: 1, 3: 2}
    assert seqnos(client, state=VbucketState.ALIVE) == {0: 5, 1: 6, 2: 1, 3: 2}
    assert seqnos(client, state=VbucketState.ACTIVE) == {0: 5, 2: 1}
    assert seqnos(client, state=VbucketState.REPLICA) == {1: 6, 3: 2}
    client.bucket.nodes[0].vbuckets[3].state = VbucketState.DEAD
    assert seqnos(client) == {0: 5, 1: 6, 2: 1}
    assert seqnos(client, state=VbucketState.DEAD) == {3: 2}


def test_seqnos_of_a_collection_end_with_its_last_change() -> None:
    client = CommandClient(filled())
    client.hello()
    assert seqnos(client, state=VbucketState.ACTIVE, collection_id=8) == {0: 5, 2: 1}
    assert seqnos(client, state=VbucketState.ACTIVE, collection_id=0) == {0: 3, 2: 0}
    client.bucket.remove(b"k0", number=0)
    assert seqnos(client, state=VbucketState.ACTIVE, collection_id=0) == {0: 6, 2: 0}


@pytest.mark.parametrize("version", ["7.0", "8.0"])
def test_without_collections_there_is_only_the_default_one(version: str) -> None:
    client = CommandClient(filled(version))
    client.hello(Feature.XERROR)
    assert seqnos(client) == {0: 3, 1: 5, 2: 0, 3: 1}
    fields = {"state": 0, "collection_id": 0}
    assert client.status("get_all_vb_seqnos", fields=fields) is Status.EINVAL
    assert seqnos(CommandClient(filled("6.0"))) == {0: 5, 1: 6, 2: 1, 3: 2}


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"state": 5}, Status.EINVAL), ({"state": 0, "collection_id": 9}, Status.UNKNOWN_COLLECTION)],
)
def test_an_unknown_state_or_collection_is_refused(fields: dict[str, int], status: Status) -> None:
    client = CommandClient(filled())
    client.hello()
    assert client.status("get_all_vb_seqnos", fields=fields) is status


def test_a_vbucket_is_observed_on_its_branch() -> None:
    client = CommandClient(filled())
    vbucket = client.bucket.active(0)
    vbucket.persisted_seqno = 4
    answer = client.request("observe_seqno", fields={"vbuuid": vbucket.log.newest.vbuuid})
    assert list(answer.fields.values()) == [0, 0, vbucket.log.newest.vbuuid, 4, 5]


@pytest.mark.parametrize(("version", "status"), [("3.1", Status.UNKNOWN_COMMAND), ("4.0", Status.SUCCESS)])
def test_vbuckets_can_be_observed_since_4_0(version: str, status: Status) -> None:
    client = CommandClient(make_bucket(version))
    newest = client.bucket.active(0).log.newest.vbuuid
    assert client.status("observe_seqno", fields={"vbuuid": newest}) is status


def test_an_older_branch_has_an_end() -> None:
    client = CommandClient(filled())
    vbucket = client.bucket.active(0)
    old = vbucket.log.newest.vbuuid
    vbucket.log = vbucket.log.begin(0xBADCAFE, 4)
    answer = client.request("observe_seqno", fields={"vbuuid": old})
    assert list(answer.fields.values()) == [1, 0, 0xBADCAFE, 5, 5, old, 4]
    assert len(dcp.encode(answer)) == 24 + 43


def test_replicas_can_be_observed_and_unknown_branches_cannot() -> None:
    client = CommandClient(filled())
    client.hello()
    log = client.connection.node.vbuckets[1].log
    assert client.status("observe_seqno", vbucket=1, fields={"vbuuid": log.newest.vbuuid}) is Status.SUCCESS
    assert client.status("observe_seqno", vbucket=1, fields={"vbuuid": 1}) is Status.KEY_ENOENT
    assert client.status("observe_seqno", vbucket=4, fields={"vbuuid": 1}) is Status.NOT_MY_VBUCKET


def test_a_client_can_wait_until_a_seqno_is_on_disk() -> None:
    client = CommandClient(filled())
    vbucket = client.bucket.active(0)
    assert client.status("seqno_persistence", fields={"seqno": 5}) is Status.SUCCESS
    assert client.request_all("seqno_persistence", opaque=9, fields={"seqno": 6}) == []
    client.bucket.store(b"k", b"v", number=0)
    assert vbucket.persisted_seqno == 6
    (answer,) = client.receive()
    assert (answer.opaque, answer.status) == (9, Status.SUCCESS)
    assert client.receive() == []


def test_waiting_for_persistence_has_a_timeout() -> None:
    client = CommandClient(filled())
    assert client.request_all("seqno_persistence", fields={"seqno": 99}) == []
    assert client.connection.due() == 30.0
    client.now = 29.0
    assert client.receive() == []
    client.now = 30.0
    (answer,) = client.receive()
    assert answer.status == Status.ETMPFAIL
    assert client.connection.due() is None


def test_a_connection_waits_for_a_limited_number_of_seqnos() -> None:
    client = CommandClient(filled())
    for _ in range(1024):
        assert client.request_all("seqno_persistence", fields={"seqno": 99}) == []
    assert client.status("seqno_persistence", fields={"seqno": 99}) is Status.ETMPFAIL
    assert client.status("seqno_persistence", fields={"seqno": 5}) is Status.SUCCESS


def test_a_random_key_is_one_of_the_documents_that_are_there() -> None:
    client = CommandClient(make_bucket(vbuckets=2))
    client.hello()
    assert client.status("get_random_key") is Status.KEY_ENOENT
    for key in (b"a", b"b", b"gone"):
        client.bucket.store(key, b"[1]", flags=4, datatype=1)
    client.bucket.remove(b"gone")
    found = [client.request("get_random_key") for _ in range(100)]
    assert {split_collection(answer.key) for answer in found} == {(0, b"a"), (0, b"b")}
    assert {(answer.value, answer.datatype, answer.fields["flags"]) for answer in found} == {(b"[1]", 1, 4)}


def test_a_random_key_is_of_the_requested_collection() -> None:
    client = CommandClient(filled())
    client.hello(*USUAL_FEATURES)
    assert client.request("get_random_key", fields={"collection_id": 8}).key == b"\x08x"
    assert client.status("get_random_key", fields={"collection_id": 9}) is Status.UNKNOWN_COLLECTION
