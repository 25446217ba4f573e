"""The cluster map: its contents, and notifications of new ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dcp
from dcp.embedded.bucket import NOBODY, BucketStore
from dcp.embedded.release import Release
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status
from tests.conformance import TRANSCRIPTS, cut, transcript
from tests.embedded.raw_client import ALICE, USUAL_FEATURES, CommandClient, make_bucket

NOTIFICATION, BRIEF = Feature.CLUSTERMAP_CHANGE_NOTIFICATION, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF
STORE = {"flags": 0, "expiry": 0}


def make_cluster(version: str = "8.0") -> BucketStore:
    bucket = make_bucket(version, nodes=3, vbuckets=4, replicas=1)
    for node in bucket.nodes:
        node.host, node.port, node.management_port = "127.0.0.1", 11210 + node.number, 8091 + node.number
    return bucket


def test_the_map_has_nodes_and_owners() -> None:
    bucket = make_cluster()
    bucket.nodes[1].tls_port, bucket.nodes[1].tls_management_port = 11207, 18091
    answer = CommandClient(bucket, node=1).request("get_cluster_config")
    assert answer.datatype == 1
    found = answer.body()
    assert "dcp" in found.pop("bucketCapabilities")
    uuids = [found.pop("clusterUUID"), *(node.pop("nodeUUID") for node in found["nodesExt"])]
    assert len(set(uuids)) == 4
    assert all(len(uuid) == 32 for uuid in uuids)
    named = {"hostname": "127.0.0.1", "serverGroup": "Group 1"}
    assert found == {
        "rev": 1,
        "revEpoch": 1,
        "name": "default",
        "uuid": bucket.uuid,
        "uri": f"/pools/default/buckets/default?bucket_uuid={bucket.uuid}",
        "streamingUri": f"/pools/default/bucketsStreaming/default?bucket_uuid={bucket.uuid}",
        "nodeLocator": "vbucket",
        "bucketType": "membase",
        "storageBackend": "couchstore",
        "numVBuckets": 4,
        "clusterCapabilitiesVer": [1, 0],
        "clusterCapabilities": {},
        "clusterName": "",
        "prod": "server",
        "prodName": "Couchbase Server",
        "bucketCapabilitiesVer": "",
        "collectionsManifestUid": "0",
        "nodes": [
            {"hostname": "127.0.0.1:8091", "ports": {"direct": 11210}},
            {"hostname": "127.0.0.1:8092", "ports": {"direct": 11211}, "thisNode": True},
            {"hostname": "127.0.0.1:8093", "ports": {"direct": 11212}},
        ],
        "nodesExt": [
            {"services": {"kv": 11210, "mgmt": 8091}, **named},
            {"services": {"kv": 11211, "kvSSL": 11207, "mgmt": 8092, "mgmtSSL": 18091}, **named, "thisNode": True},
            {"services": {"kv": 11212, "mgmt": 8093}, **named},
        ],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 1,
            "serverList": ["127.0.0.1:11210", "127.0.0.1:11211", "127.0.0.1:11212"],
            "vBucketMap": [[0, 1], [1, 2], [2, 0], [0, 1]],
        },
    }


BEFORE_6_5 = ["couchapi", "xattr", "dcp", "cbhello", "touch", "cccp", "xdcrCheckpointing", "nodesExt"]
SINCE_6_5 = ["dcp", "cbhello", "touch", "cccp", "xdcrCheckpointing", "nodesExt", "xattr"]
SINCE_7_0 = ["subdoc.ReplaceBodyWithXattr", "subdoc.DocumentMacroSupport"]
SINCE_7_1 = [*SINCE_7_0, "subdoc.ReviveDocument"]
SINCE_7_6 = ["preserveExpiry", "querySystemCollection", "mobileSystemCollection", "subdoc.ReplicaRead"]
SINCE_8_0 = [*SINCE_7_6, "subdoc.BinaryXattr", "subdoc.AccessDeleted", "rangeScan"]
PURGED = "dcp.IgnorePurgedTombstones"
# Of buckets with the Couchstore engine, by build_bucket_capabilities of ns_server: src/menelaus_web_buckets.erl in its
# tags 3.1.3-MP1, 5.0.1, 6.0.0-beta, 6.5.2 and 6.6.5, src/bucket_info_cache.erl in 7.0.5 and 7.1.2, and, for all later
# releases, apps/ns_server/src/bucket_info_cache.erl.
CAPABILITIES: dict[str, list[str]] = {
    "3.1": [name for name in BEFORE_6_5 if name not in ("dcp", "xattr")],
    "4.6": [name for name in BEFORE_6_5 if name != "xattr"],
    "6.0": BEFORE_6_5,
    "6.5": ["durableWrite", "couchapi", *SINCE_6_5],
    "6.6": ["durableWrite", "tombstonedUserXAttrs", "couchapi", *SINCE_6_5],
    "7.0": ["collections", "durableWrite", "tombstonedUserXAttrs", "couchapi", *SINCE_7_0, *SINCE_6_5],
    "7.1": ["collections", "durableWrite", "tombstonedUserXAttrs", "couchapi", *SINCE_7_1, *SINCE_6_5],
    "7.2": ["collections", "durableWrite", "tombstonedUserXAttrs", "couchapi", *SINCE_7_1, PURGED, *SINCE_6_5],
    "7.6": [
        *("collections", "durableWrite", "tombstonedUserXAttrs", "couchapi", *SINCE_7_1, PURGED),
        *(*SINCE_7_6, "rangeScan", *SINCE_6_5),
    ],
    "8.0": [
        *("collections", "durableWrite", "tombstonedUserXAttrs", "couchapi", *SINCE_7_1, PURGED),
        *(*SINCE_8_0, *SINCE_6_5),
    ],
}


def map_of(version: str, history: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = CommandClient(make_bucket(version, history=history)).request("get_cluster_config").body()
    return found


@pytest.mark.parametrize("version", CAPABILITIES)
def test_the_map_lists_the_capabilities_of_its_release(version: str) -> None:
    # Clients send optional flags only if their capability is listed.
    found = map_of(version)["bucketCapabilities"]
    # The order differs between releases, and no client depends on it.
    assert sorted(found) == sorted(CAPABILITIES[version])
    assert (PURGED in found) == (Release.of(version).number >= (7, 2))


@pytest.mark.parametrize(("version", "gained"), [("7.1", set()), ("7.2", {"nonDedupedHistory"})])
def test_a_bucket_that_retains_history_has_no_views(version: str, gained: set[str]) -> None:
    # History is kept by Magma, which has no views.
    plain, magma = set(map_of(version)["bucketCapabilities"]), set(map_of(version, True)["bucketCapabilities"])
    assert (plain - magma, magma - plain) == ({"couchapi"}, gained)
    assert map_of(version, True)["storageBackend"] == "magma"


def responses_with_maps(path: Path) -> Iterator[dcp.Frame]:
    for raw in cut(transcript(path).main.server):
        if raw[0] == Magic.RESPONSE and raw[24:25] == b"{" and (raw[1] == 0xB5 or raw[7] == Status.NOT_MY_VBUCKET):
            yield dcp.decode(raw)[0]


MAPS = [path for path in TRANSCRIPTS if path.parent.name[:1] in "678" or path.stem == "not_my_vbucket_with_map"]
RECORDED = [path for path in MAPS if not path.stem.startswith("tap") and any(responses_with_maps(path))]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_map_has_what_recorded_ones_have(path: Path) -> None:
    # The recorder wrote these maps itself, with what its releases have in common.
    bucket = make_bucket(".".join(path.parent.name.split(".")[:2]), vbuckets=2)
    bucket.owners[1] = [NOBODY]
    del bucket.nodes[0].vbuckets[1]
    client = CommandClient(bucket)
    known = client.request("get_cluster_config")
    refused = client.request("get", vbucket=1, key=b"key")
    for recorded in responses_with_maps(path):
        ours = refused if recorded.status else known
        assert ours.datatype == recorded.datatype
        named = json.loads(recorded.value)
        mine = json.loads(ours.value)
        assert named.keys() <= mine.keys()
        assert set(named.get("bucketCapabilities", ())) <= set(mine["bucketCapabilities"])
        # A refusal has the whole map, as the command for it returns it.
        assert json.loads(known.value) == mine


def test_a_dead_node_is_not_in_the_map() -> None:
    bucket = make_cluster()
    bucket.nodes[1].alive = False
    bucket.owners[2] = [NOBODY]
    found = CommandClient(bucket).request("get_cluster_config").body()["vBucketServerMap"]
    assert found["serverList"] == ["127.0.0.1:11210", "127.0.0.1:11212"]
    assert found["vBucketMap"] == [[0, -1], [-1, 1], [-1, -1], [0, -1]]


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_clients_find_the_host_of_a_node_that_listens_on_all_addresses(host: str) -> None:
    bucket = make_cluster()
    for node in bucket.nodes:
        node.host = host
    found = CommandClient(bucket).request("get_cluster_config").body()
    assert [node["hostname"] for node in found["nodes"]] == ["$HOST:8091", "$HOST:8092", "$HOST:8093"]
    assert found["vBucketServerMap"]["serverList"] == ["$HOST:11210", "$HOST:11211", "$HOST:11212"]
    assert not any("hostname" in node for node in found["nodesExt"])


def test_an_address_of_ipv6_has_brackets_before_a_port() -> None:
    bucket = make_cluster()
    bucket.nodes[0].host = "::1"
    found = CommandClient(bucket).request("get_cluster_config").body()
    assert found["nodes"][0]["hostname"] == "[::1]:8091"
    assert found["vBucketServerMap"]["serverList"][0] == "[::1]:11210"
    assert found["nodesExt"][0]["hostname"] == "::1"


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
    named = {"clusterCapabilitiesVer", "clusterCapabilities", "clusterUUID", "clusterName", "prod", "prodName"}
    assert set(anonymous("8.0").request("get_cluster_config").body()) == {"rev", "revEpoch", "nodesExt"} | named
    assert anonymous("6.0").status("get_cluster_config") is Status.NO_BUCKET
    assert anonymous("6.5").status("get_cluster_config") is Status.SUCCESS


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
    assert CommandClient(make_cluster("7.6")).status("get_cluster_config", fields=fields) is Status.SUCCESS


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


@pytest.mark.parametrize(("version", "epoch"), [("7.0", {}), ("7.1", {"epoch": 1})])
def test_before_epochs_notifications_have_a_revision_only(version: str, epoch: dict[str, int]) -> None:
    client = notified_client(version, NOTIFICATION)
    client.bucket.new_map()
    (notification,) = client.receive()
    assert notification.fields == {**epoch, "revision": 2}


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
    assert [(bool(answer.value), answer.datatype) for answer in answers] == [(True, 1), (False, 0), (False, 0)]
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
