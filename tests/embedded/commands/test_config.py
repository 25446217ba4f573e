"""The cluster map: its contents, and notifications of new ones."""

from __future__ import annotations

import pytest

import dcp
from dcp.embedded.bucket import NOBODY, BucketStore
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status
from tests.embedded.raw_client import ALICE, USUAL_FEATURES, CommandClient, make_bucket

NOTIFICATION, BRIEF = Feature.CLUSTERMAP_CHANGE_NOTIFICATION, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF
STORE = {"flags": 0, "expiry": 0}


def make_cluster(version: str = "8.0") -> BucketStore:
    bucket = make_bucket(version, nodes=3, vbuckets=4, replicas=1)
    for node in bucket.nodes:
        node.host, node.port, node.tls_port = "127.0.0.1", 11210 + node.number, 0
    return bucket


def test_the_map_has_nodes_and_owners() -> None:
    bucket = make_cluster()
    bucket.nodes[1].tls_port = 11207
    answer = CommandClient(bucket, node=1).request("get_cluster_config")
    assert answer.datatype == 1
    found = answer.body()
    assert found.pop("bucketCapabilities") == [
        "cbhello",
        "touch",
        "cccp",
        "nodesExt",
        "dcp",
        "xattr",
        "durableWrite",
        "tombstonedUserXAttrs",
        "collections",
        "preserveExpiry",
    ]
    assert found == {
        "rev": 1,
        "revEpoch": 1,
        "name": "default",
        "uuid": bucket.uuid,
        "nodeLocator": "vbucket",
        "bucketCapabilitiesVer": "",
        "collectionsManifestUid": "0",
        "nodes": [
            {"hostname": "$HOST:8091", "ports": {"direct": 11210}},
            {"hostname": "$HOST:8091", "ports": {"direct": 11211}, "thisNode": True},
            {"hostname": "$HOST:8091", "ports": {"direct": 11212}},
        ],
        "nodesExt": [
            {"services": {"kv": 11210}},
            {"services": {"kv": 11211, "kvSSL": 11207}, "thisNode": True},
            {"services": {"kv": 11212}},
        ],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 1,
            "serverList": ["$HOST:11210", "$HOST:11211", "$HOST:11212"],
            "vBucketMap": [[0, 1], [1, 2], [2, 0], [0, 1]],
        },
    }


def test_a_dead_node_is_not_in_the_map() -> None:
    bucket = make_cluster()
    bucket.nodes[1].alive = False
    bucket.owners[2] = [NOBODY]
    found = CommandClient(bucket).request("get_cluster_config").body()["vBucketServerMap"]
    assert found["serverList"] == ["$HOST:11210", "$HOST:11212"]
    assert found["vBucketMap"] == [[0, -1], [-1, 1], [-1, -1], [0, -1]]


def test_an_old_release_has_no_epoch_and_no_collections() -> None:
    found = CommandClient(make_cluster("6.0")).request("get_cluster_config").body()
    assert not {"revEpoch", "collectionsManifestUid"} & set(found)
    assert "collections" not in found["bucketCapabilities"]


def anonymous(version: str) -> CommandClient:
    client = CommandClient(make_cluster(version), users=[ALICE])
    client.hello()
    client.request("sasl_auth", key=b"PLAIN", value=b"\0alice\0s3cret")
    return client


def test_without_a_bucket_there_are_only_nodes() -> None:
    assert set(anonymous("8.0").request("get_cluster_config").body()) == {"rev", "revEpoch", "nodesExt"}
    assert anonymous("6.0").status("get_cluster_config") is Status.NO_BUCKET


@pytest.mark.parametrize(
    ("epoch", "revision", "newer"),
    [(1, 1, True), (1, 4, True), (1, 5, False), (1, 6, False), (2, 1, False), (-1, 5, True)],
)
def test_a_map_that_is_known_is_not_sent_again(epoch: int, revision: int, newer: bool) -> None:
    client = CommandClient(make_cluster())
    client.bucket.revision = 5
    answer = client.request("get_cluster_config", fields={"epoch": epoch, "revision": revision})
    assert (answer.status, bool(answer.value)) == (Status.SUCCESS, newer)


@pytest.mark.parametrize(("epoch", "revision"), [(1, 0), (0, 1), (-2, 1), (1, -1)])
def test_a_known_map_has_an_epoch_and_a_revision(epoch: int, revision: int) -> None:
    fields = {"epoch": epoch, "revision": revision}
    assert CommandClient(make_cluster()).status("get_cluster_config", fields=fields) is Status.EINVAL


def test_old_releases_refuse_known_revisions() -> None:
    fields = {"epoch": 1, "revision": 1}
    assert CommandClient(make_cluster("7.2")).status("get_cluster_config", fields=fields) is Status.EINVAL


def notified_client(version: str, *features: Feature) -> CommandClient:
    client = CommandClient(make_cluster(version))
    client.hello(*USUAL_FEATURES, Feature.DUPLEX, *features)
    return client


def test_a_new_map_is_pushed_whole() -> None:
    client = notified_client("8.0", NOTIFICATION)
    assert client.receive() == []
    client.bucket.owners[0] = [1, 2]
    client.bucket.new_map()
    (notification,) = client.receive()
    assert (notification.name, notification.magic, notification.key) == (
        "clustermap_change_notification",
        Magic.SERVER_REQUEST,
        b"default",
    )
    assert (notification.fields, notification.datatype) == ({"epoch": 1, "revision": 2}, 1)
    assert notification.body() == client.request("get_cluster_config").body()
    assert notification.body()["vBucketServerMap"]["vBucketMap"][0] == [1, 2]
    assert client.receive() == []


def test_before_epochs_notifications_have_a_revision_only() -> None:
    client = notified_client("7.0", NOTIFICATION)
    client.bucket.new_map()
    (notification,) = client.receive()
    assert notification.fields == {"revision": 2}


def test_brief_notifications_have_no_map() -> None:
    client = notified_client("8.0", BRIEF)
    client.bucket.new_map()
    client.bucket.new_map()
    (notification,) = client.receive()
    assert (notification.fields, notification.value, notification.datatype) == ({"epoch": 1, "revision": 3}, b"", 0)


def test_the_example_of_the_reference_is_what_is_sent() -> None:
    # The example of the protocol reference, with another name of the bucket.
    drawn = "82010007100000000000001700000000000000000000000000000000000000020000000000000" + "4a464656661756c74"
    client = notified_client("8.0", BRIEF)
    client.bucket.epoch, client.bucket.revision = 2, 0x4A4
    (notification,) = client.receive()
    assert dcp.encode(notification).hex() == drawn


def test_the_next_hello_ends_notifications() -> None:
    client = notified_client("8.0", NOTIFICATION)
    client.hello(*USUAL_FEATURES)
    client.bucket.new_map()
    assert client.receive() == []


def test_a_request_to_the_wrong_node_is_answered_with_the_map() -> None:
    client = CommandClient(make_cluster(), node=0)
    client.hello()
    for _ in range(2):
        answer = client.request("get", key=b"\0k", vbucket=1)
        assert (answer.status, answer.datatype) == (Status.NOT_MY_VBUCKET, 1)
        assert answer.body() == client.request("get_cluster_config").body()


def test_a_map_that_was_sent_is_not_repeated_with_deduplication() -> None:
    client = CommandClient(make_cluster())
    client.hello(*USUAL_FEATURES, Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP)
    answers = [client.request("set", key=b"\0k", vbucket=vbucket, fields=STORE) for vbucket in (1, 2, 9)]
    assert [answer.status for answer in answers] == 3 * [Status.NOT_MY_VBUCKET]
    assert [bool(answer.value) for answer in answers] == [True, False, False]
    client.bucket.new_map()
    assert client.request("get", key=b"\0k", vbucket=1).body()["rev"] == 2
    client.bucket.new_map()
    client.request("get_cluster_config")
    assert client.request("get", key=b"\0k", vbucket=1).value == b""


def test_a_pushed_map_counts_as_sent() -> None:
    client = notified_client("8.0", NOTIFICATION, Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP)
    client.bucket.new_map()
    client.receive()
    assert client.request("get", key=b"\0k", vbucket=1).value == b""


def test_a_map_with_a_brief_notification_does_not_count_as_sent() -> None:
    client = notified_client("8.0", BRIEF, Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP)
    client.bucket.new_map()
    client.receive()
    assert client.request("get", key=b"\0k", vbucket=1).body()["rev"] == 2
