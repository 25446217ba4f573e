"""Cluster maps: a recorded one, constructed ones, and garbage."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.cluster_map import ClusterMap, NodeAddress, format_vbuckets
from dcp.errors import RemoteProtocolError
from tests.conformance import HERE, tcp_streams

# Answer of a node of a real cluster; the second node is $HOST in it.
RECORDED = next(
    json.dumps(json.JSONDecoder().raw_decode(run[run.index(b'{"rev"') :].decode("latin-1"))[0])
    for runs in tcp_streams(HERE / "captures" / "couchbase-xattr.pcapng").values()
    for run in runs
    if b'{"rev"' in run
)


def built(**members: Any) -> dict[str, Any]:
    external = {"hostname": "db1.example.com", "ports": {"kv": 31210, "kvSSL": 31207}}
    return {
        "rev": 7,
        "revEpoch": 2,
        "name": "travel",
        "uuid": "8d35",
        "nodeLocator": "vbucket",
        "bucketCapabilities": ["collections", "dcp"],
        "collectionsManifestUid": "1c",
        "nodesExt": [
            {
                "hostname": "10.0.0.1",
                "services": {"kv": 11210, "kvSSL": 11207, "mgmt": 8091},
                "alternateAddresses": {"external": external},
                "serverGroup": "g1",
                "nodeUUID": "u1",
            },
            {"services": {"kvSSL": 11207}, "alternateAddresses": {"external": {"hostname": "db2.example.com"}}},
            {"hostname": "10.0.0.3", "services": {"kv": 11210}},
        ],
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": 1,
            "serverList": ["10.0.0.1:11210", "$HOST:11210"],
            "vBucketMap": [[0, 1], [1, -1], [-1, 0], [1, 0]],
            "vBucketMapForward": [[0, 1], [0, 1], [0, 1], [1, 0]],
        },
    } | members


def parse(tree: Any, host: str = "10.0.0.2", port: int | None = None, network: Any = "auto") -> ClusterMap:
    return ClusterMap.parse(json.dumps(tree), host, port, network)


def moved(chains: list[list[int]], servers: list[str], **members: Any) -> ClusterMap:
    vbuckets = {"serverList": servers, "vBucketMap": chains}
    return parse(built(vBucketServerMap=vbuckets, nodesExt=[], **members))


def test_a_recorded_map_says_who_owns_what() -> None:
    cluster = ClusterMap.parse(RECORDED, "db.example.com", 12000)
    assert (cluster.name, cluster.uuid) == ("default", "8d35aeacd70ca952cc700847f0702631")
    assert (cluster.version, cluster.num_vbuckets, cluster.num_replicas) == ((0, 2098), 1024, 1)
    first, second = cluster.nodes
    assert first.address == NodeAddress("192.168.4.17", 12000, None)
    assert second.address == NodeAddress("db.example.com", 12002, None)
    chains = json.loads(RECORDED)["vBucketServerMap"]["vBucketMap"]
    owners = Counter(cluster.owner(vbucket) for vbucket in range(1024))
    assert owners == {node: [chain[0] for chain in chains].count(index) for index, node in enumerate((first, second))}
    assert sorted([*cluster.vbuckets_of(first), *cluster.vbuckets_of(second)]) == list(range(1024))
    assert cluster.replicas(0) == (second,)


def test_the_nodes_of_a_bucket_are_those_of_its_list_with_both_ports() -> None:
    first, second = parse(built()).nodes
    assert (first.address, first.uuid, first.server_group) == (NodeAddress("10.0.0.1", 11210, 11207), "u1", "g1")
    assert second.address == NodeAddress("10.0.0.2", None, 11207)
    assert [str(node) for node in (first, second)] == ["10.0.0.1:11210", "10.0.0.2:11207"]


def test_a_host_is_the_seed_or_loses_its_brackets_among_the_nodes_of_the_cluster_too() -> None:
    tree = built()
    tree["nodesExt"][0]["hostname"], tree["nodesExt"][1]["hostname"] = "$HOST", "[fe80::2]"
    assert [node.address.host for node in parse(tree).nodes] == ["10.0.0.2", "fe80::2"]


def test_a_vbucket_may_have_no_owner() -> None:
    cluster = parse(built())
    first, second = cluster.nodes
    assert [cluster.owner(vbucket) for vbucket in range(-1, 5)] == [None, first, second, None, second, None]
    assert [cluster.replicas(vbucket) for vbucket in range(4)] == [(second,), (), (first,), (first,)]
    assert cluster.vbuckets_of(second) == (1, 3)
    assert cluster.forward[2] == (0, 1)
    assert (cluster.capabilities, cluster.manifest_uid) == (frozenset({"collections", "dcp"}), 0x1C)


@pytest.mark.parametrize(
    ("host", "port", "network", "first"),
    [
        ("10.0.0.1", None, "auto", "10.0.0.1"),
        ("10.0.0.1", 11207, "auto", "10.0.0.1"),
        ("db1.example.com", 31207, "auto", "db1.example.com"),
        ("db1.example.com", 31210, "auto", "db1.example.com"),
        ("db1.example.com", 9, "auto", "db1.example.com"),
        ("elsewhere", None, "auto", "db1.example.com"),
        ("10.0.0.1", None, "external", "db1.example.com"),
        ("db1.example.com", 31210, "default", "10.0.0.1"),
    ],
)
def test_the_network_is_the_one_on_which_the_seed_is_found(
    host: str, port: int | None, network: str, first: str
) -> None:
    # Every host is given here; a missing one would be the seed's.
    tree = built()
    tree["nodesExt"][1]["hostname"] = "10.0.0.2"
    assert parse(tree, host, port, network).nodes[0].address.host == first


def test_a_seed_that_both_networks_list_is_inside() -> None:
    tree = built()
    tree["nodesExt"][1]["alternateAddresses"]["external"]["hostname"] = "10.0.0.1"
    assert parse(tree, "10.0.0.1").network == "default"


def test_an_external_address_has_ports_of_its_own_or_those_of_its_node() -> None:
    first, second = parse(built(), network="external").nodes
    assert first.address == NodeAddress("db1.example.com", 31210, 31207)
    assert second.address == NodeAddress("db2.example.com", None, 11207)


def test_a_node_that_is_not_on_the_network_is_named() -> None:
    tree = built()
    del tree["nodesExt"][1]["alternateAddresses"]
    with pytest.raises(RemoteProtocolError, match=r"external address of every node, found none of 10\.0\.0\.2:11207"):
        parse(tree, network="external")


def test_an_address_of_ipv6_loses_its_brackets_and_gets_them_back() -> None:
    (node,) = moved([[0]], ["[::1]:11210"]).nodes
    assert node.address == NodeAddress("::1", 11210, None)
    assert str(node) == "[::1]:11210"


def test_the_epoch_counts_before_the_revision() -> None:
    versions = [{"revEpoch": 3, "rev": 1}, {"revEpoch": 2, "rev": 9}, {"revEpoch": 2, "rev": 8}, {"revEpoch": -1}]
    maps = [parse(built(**version)) for version in versions]
    assert all(newer.newer_than(older) for newer, older in pairwise(maps))
    assert not maps[0].newer_than(maps[0])
    tree = built()
    del tree["revEpoch"]
    assert maps[2].newer_than(parse(tree))


def test_the_order_of_the_list_of_servers_makes_no_other_bucket() -> None:
    ours, theirs = moved([[0], [1]], ["a:1", "b:1"]), moved([[1], [0]], ["b:1", "a:1"])
    assert not ours.is_of_another_bucket(theirs)
    assert [ours.owner(vbucket) for vbucket in (0, 1)] == [theirs.owner(vbucket) for vbucket in (0, 1)]


def test_another_uuid_is_another_bucket() -> None:
    older, newer = parse(built()), parse(built(uuid="9e46"))
    assert newer.is_of_another_bucket(older)
    assert not newer.is_of_another_bucket(parse(built(uuid=None)))


def test_another_number_of_vbuckets_is_another_bucket() -> None:
    older, newer = moved([[0], [0]], ["a:1"]), moved([[0]], ["a:1"])
    assert newer.is_of_another_bucket(older)
    assert older.is_of_another_bucket(newer)


def vbuckets(**members: Any) -> dict[str, Any]:
    return built(vBucketServerMap=built()["vBucketServerMap"] | members)


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        ([], "cluster map: expected an object, found a list"),
        (built(nodeLocator="ketama"), "cluster map.nodeLocator: expected 'vbucket', found 'ketama'"),
        (built(nodeLocator=None), "expected a member 'nodeLocator', found none"),
        (built(rev=None), "expected a member 'rev', found none"),
        (built(rev="x"), "cluster map.rev: expected a whole number"),
        (built(nodesExt=7), "cluster map.nodesExt: expected a list, found 7"),
        (built(nodesExt=[7]), "cluster map.nodesExt[0]: expected an object, found 7"),
        (built(nodesExt=[{"services": {"kv": 70000}}]), "cluster map.nodesExt[0].services.kv: expected a whole number"),
        (built(collectionsManifestUid="x"), "collectionsManifestUid: expected hexadecimal digits, found 'x'"),
        (built(collectionsManifestUid="-1"), "collectionsManifestUid: expected hexadecimal digits, found '-1'"),
        (built(collectionsManifestUid="1" * 17), "collectionsManifestUid: expected hexadecimal digits, found '11"),
        (vbuckets(serverList=None), "cluster map.vBucketServerMap: expected a member 'serverList', found none"),
        (vbuckets(serverList=["a", "b:1"]), "serverList[0]: expected a host and a port, found 'a'"),
        (vbuckets(serverList=[":1", "b:1"]), "serverList[0]: expected a host and a port, found ':1'"),
        (vbuckets(serverList=["a:0", "b:1"]), "serverList[0]: expected a host and a port"),
        (vbuckets(serverList=["a:000001123456", "b:1"]), "serverList[0]: expected a host and a port"),
        (vbuckets(vBucketMap=[]), "vBucketMap: expected 1 to 65536 vbuckets, found 0"),
        (vbuckets(vBucketMap=[[0], [2]]), "vBucketMap[1]: expected a list of indexes from -1 to 1, found a list"),
        (vbuckets(vBucketMap=[[0], []]), "vBucketMap[1]: expected a list of indexes"),
        (vbuckets(vBucketMap=[0]), "vBucketMap[0]: expected a list of indexes from -1 to 1, found 0"),
        (vbuckets(vBucketMapForward=[[True]]), "vBucketMapForward[0]: expected a list of indexes"),
    ],
)
def test_what_is_missing_is_said_with_its_place(tree: Any, problem: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        parse(tree)
    assert problem in str(caught.value)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
)


@given(st.data())
def test_garbage_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    tree = built()
    here: Any = tree
    while True:
        places = list(here) if isinstance(here, dict) else list(range(len(here)))
        place = data.draw(st.sampled_from(places))
        if not isinstance(here[place], dict | list) or not here[place] or data.draw(st.booleans()):
            break
        here = here[place]
    here[place] = data.draw(JUNK)
    try:
        cluster = parse(tree)
    except RemoteProtocolError as error:
        assert str(error).startswith("cluster map")
    else:
        assert all(vbucket < cluster.num_vbuckets for node in cluster.nodes for vbucket in cluster.vbuckets_of(node))


@given(st.binary(max_size=40))
def test_bytes_that_are_no_map_are_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^cluster map"):
        ClusterMap.parse(text, "localhost")


def test_a_text_names_the_first_vbuckets_and_counts_the_others() -> None:
    assert format_vbuckets([3, 1, 2]) == "1, 2, 3"
    assert format_vbuckets(range(10)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert format_vbuckets(range(1024)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 1014 more"


def test_a_seed_that_no_network_lists_is_inside_if_there_is_no_outside() -> None:
    tree = built()
    for node in tree["nodesExt"]:
        node.pop("alternateAddresses", None)
    cluster = parse(tree, "elsewhere", 11210)
    assert (cluster.network, cluster.nodes[0].address.host) == ("default", "10.0.0.1")
    assert parse(built(), "elsewhere", 11210).network == "external"
