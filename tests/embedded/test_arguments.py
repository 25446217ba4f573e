"""Invalid arguments are refused with the name of the argument, before anything is started."""

from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.embedded.arguments import check_seconds
from dcp.embedded.cluster import _bracketed
from dcp.embedded.faults import FAULTS
from dcp.embedded.faults.fault import options_of, positive, positive_size

REFUSED: dict[str, tuple[Any, ...]] = {
    "nodes": ("3", 2.5, True, 0, 9, None),
    "vbuckets": ("x", 0, 32_769),
    "replicas": (None, -1, 4),
    "port": (-1, 65_536, "x", None),
    "server_version": (8.0, "8", "2.5", None),
    "bucket": ("", "a b", "a/b", 3, "x" * 101),
    "host": (5, "", "a b"),
    "username": ("", 3, "a\0b"),
    "password": (3, "a\0b"),
    "seed": ([], 1.5),
    "dialect": (3, "dcp2"),
    "users": ([3],),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_an_invalid_argument_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(dcp.LocalProtocolError, match=f"^{name}: expected .*, found"):
        Cluster(**{name: value})


def test_every_listener_needs_a_port() -> None:
    with pytest.raises(dcp.LocalProtocolError, match="port: expected 0 to 65529, found 65530"):
        Cluster(nodes=3, port=65_530)
    with pytest.raises(dcp.LocalProtocolError, match="port: expected 0 to 65523, found 65524"):
        Cluster(nodes=3, port=65_524, tls=True)


def test_a_node_has_one_copy_of_a_vbucket_at_most() -> None:
    with pytest.raises(
        dcp.UsageError, match=r"^replicas: expected one node more than replicas, .* found 2 with nodes=2"
    ):
        Cluster(nodes=2, replicas=2)


@pytest.mark.parametrize(
    "change",
    [
        lambda cluster: cluster.upsert("key", b"1"),
        lambda cluster: cluster.delete("key-0000000001"),
        lambda cluster: cluster.load(1),
        lambda cluster: cluster.failover(0),
        lambda cluster: cluster.recover(0),
        lambda cluster: cluster.rebalance_in(),
        lambda cluster: cluster.rebalance_out(0),
        lambda cluster: cluster.purge(),
        lambda cluster: cluster.create_scope("shop"),
        lambda cluster: cluster.fault("silent"),
    ],
)
def test_a_closed_cluster_can_be_read_but_not_changed(change: Callable[[Cluster], object]) -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        cluster.load(10)
    before = cluster.truth()
    with pytest.raises(dcp.LocalProtocolError, match="the cluster is closed"):
        change(cluster)
    assert cluster.truth() == before
    assert len(before) == 10


def test_a_fault_may_outlive_its_cluster() -> None:
    with Cluster(vbuckets=2) as cluster, cluster.fault("silent"):
        cluster.close()


@pytest.mark.parametrize("name", FAULTS)
def test_an_option_with_which_a_fault_never_acts_is_refused(name: str) -> None:
    with Cluster(vbuckets=2) as cluster:
        never: list[tuple[str, object]] = [("times", 0), ("vbuckets", [])]
        for each in options_of(FAULTS[name]):
            never += [(each.name, 0)] if each.metadata["parse"] in (positive, positive_size) else []
            never += [(each.name, None)] if "None" not in str(each.type) else []
            never += [(each.name, math.nan)]
        for option, value in never:
            with pytest.raises(dcp.LocalProtocolError, match=f"fault {name}: {option}: expected"):
                cluster.fault(name, **{option: value})


@pytest.mark.parametrize(("version", "option"), [("8.0", ""), ("4.6", "?sasl_mech_force=PLAIN")])
def test_the_url_has_what_the_cluster_was_given(version: str, option: str) -> None:
    with Cluster(vbuckets=1, username="a@b", password="p/w", bucket="b%", server_version=version) as cluster:
        assert (cluster.credentials.username, cluster.credentials.password) == ("a@b", "p/w")
        assert cluster.url == f"couchbase://a%40b:p%2Fw@{cluster.addresses[0]}/b%25{option}"


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf])
def test_what_is_no_number_of_seconds_is_refused(value: object) -> None:
    for seconds in (-1.5, 0, 3):
        check_seconds("lifetime", seconds)
    with pytest.raises(dcp.LocalProtocolError, match="lifetime: expected seconds, found"):
        check_seconds("lifetime", value)


def test_an_address_of_ipv6_has_brackets() -> None:
    assert (_bracketed("::1"), _bracketed("127.0.0.1")) == ("[::1]", "127.0.0.1")


def test_a_cut_without_options_is_immediate() -> None:
    with Cluster(vbuckets=2) as cluster, cluster.fault("cut") as fault:
        with pytest.raises(dcp.TransportError):
            dcp.connect(cluster.url)
        assert fault.hits == 1
        dcp.connect(cluster.url).close()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda cluster: cluster.upsert("key", 1), "value: expected text, bytes, or a dict or list, found a int"),
        (
            lambda cluster: cluster.upsert("key", None),
            "value: expected text, bytes, or a dict or list, found a NoneType",
        ),
        (lambda cluster: cluster.upsert("key", {"a": {1}}), "value: expected what JSON can have, found something else"),
        (lambda cluster: cluster.upsert("key", [math.nan]), "value: expected what JSON can have, found something else"),
        (lambda cluster: cluster.upsert(1, b""), "key: expected text or bytes, found a int"),
        (lambda cluster: cluster.upsert("key", b"", flags="x"), "flags: expected 0 to 4294967295, found 'x'"),
        (lambda cluster: cluster.upsert("key", b"", expiry=1.5), "expiry: expected 0 to 4294967295, found 1.5"),
        (
            lambda cluster: cluster.upsert("key", b"", collection=3),
            "collection: expected text such as scope.collection",
        ),
        (lambda cluster: cluster.get(None), "key: expected text or bytes, found a NoneType"),
        (lambda cluster: cluster.load("many"), "count: expected at least 0 documents, found 'many'"),
        (lambda cluster: cluster.failover("a"), "node: expected 0 to 1, found 'a'"),
        (lambda cluster: cluster.failover(2), "node: expected 0 to 1, found 2"),
        (lambda cluster: cluster.failover(True), "node: expected 0 to 1, found True"),
        (lambda cluster: cluster.failover(0, lose="all"), "lose: expected at least 0 writes, found 'all'"),
        (lambda cluster: cluster.crash(None), "node: expected 0 to 1, found None"),
        (lambda cluster: cluster.move("0", 1), "vbucket: expected 0 to 3, found '0'"),
        (lambda cluster: cluster.set_lag("1"), "lag: expected at least 0 writes, found '1'"),
        (lambda cluster: cluster.set_persistence(0, "no"), "at_once: expected True or False, found 'no'"),
        (lambda cluster: cluster.purge("now"), "before: expected at least 0 seconds, found 'now'"),
        (lambda cluster: cluster.upsert("\ud800", b""), "key: expected Unicode text, found half of a surrogate pair"),
        (lambda cluster: cluster.upsert("key", "\ud800"), "value: expected Unicode text, found half of a surrogate"),
        (
            lambda cluster: cluster.upsert("key", b"", xattrs={"a": 1}),
            "xattrs: expected a dict of JSON texts, dicts or lists by name",
        ),
        (
            lambda cluster: cluster.upsert("key", b"", xattrs="a"),
            "xattrs: expected a dict of JSON texts, dicts or lists by name",
        ),
        (lambda cluster: cluster.load(1, value_size="1k"), "value_size: expected at least 0 bytes, found '1k'"),
        (lambda cluster: cluster.load(1, prefix=3), "key: expected text or bytes, found a int"),
        (lambda cluster: cluster.load(1, prefix=241 * "x"), "key: expected 1 to 250 bytes, found 251"),
        (lambda cluster: cluster.load(1, value=b"1"), "value: expected a function of a number, found b'1'"),
        (lambda cluster: cluster.create_scope(3), "name: expected text, found 3"),
        (
            lambda cluster: cluster.create_collection("_default", "c", max_ttl=-1),
            "max_ttl: expected 0 to 2147483647, found -1",
        ),
        (lambda cluster: cluster.fault(["pause"]), "fault: expected one of pause, "),
        (lambda cluster: cluster.clear_fault("1"), "number: expected that of an active fault, found '1'"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(wrong: Callable[[Cluster], object], reason: str) -> None:
    with Cluster(nodes=2, vbuckets=4) as cluster:
        with pytest.raises(dcp.UsageError, match=f"^{re.escape(reason)}"):
            wrong(cluster)
        assert not cluster.truth()
        assert len(cluster.addresses) == 2


def test_a_prefix_of_keys_may_have_any_characters() -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.load(1, prefix="50%-%d-")
        assert list(cluster.truth()) == [b"50%-%d-0000000000"]


def test_a_dict_or_list_is_stored_as_json() -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.upsert("object", {"a": [1, None, "ü"]})
        cluster.upsert("list", [1.5])
        assert json.loads(cluster.truth()[b"object"].value) == {"a": [1, None, "ü"]}
        assert cluster.get("list") == b"[1.5]"


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        *((text, 1) for text in (b'{"a": 1}', b"[]", b'"text"', b" 7 ", b"-1.5e3", b"true", b"null")),
        *((text, 0) for text in (b"{oops", b"[1,", b'"open', b"NaN", b"", b"text", b"{} {}", b"\xff")),
        *((text.encode("utf-16"), 0) for text in ("{}", "[1]")),
    ],
)
def test_documents_that_are_json_have_its_datatype(value: bytes, datatype: int) -> None:
    with Cluster(vbuckets=1) as cluster:
        cluster.upsert("key", value)
        item = cluster._bucket.get(b"key")
        assert item is not None
        assert item.datatype == datatype


def test_the_only_node_that_is_up_is_not_failed_over() -> None:
    with Cluster(nodes=2, vbuckets=4, replicas=1) as cluster:
        cluster.crash(1)
        with pytest.raises(
            dcp.UsageError, match=r"^node 0: the only node that is up cannot be failed over; crash\(\) stops it$"
        ):
            cluster.failover(0)
        cluster.failover(1)
        assert all(cluster.owner(f"key-{n}") == 0 for n in range(20))


@pytest.mark.parametrize("enabled", [False, True])
def test_loading_leaves_garbage_collection_as_it_was(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with Cluster() as cluster:
            cluster.load(1)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_nodes_take_ports_of_the_system_unless_one_is_asked_for() -> None:
    with Cluster(nodes=3) as cluster:
        ports = [int(address.rpartition(":")[2]) for address in cluster.addresses]
        assert min(ports) > 1023
        assert len(set(ports)) == 3
