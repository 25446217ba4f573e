"""Documents that a cluster refuses, and the documents that it returns."""

from __future__ import annotations

from typing import Any

import pytest

import dcp
from dcp.embedded import Cluster
from dcp.embedded.document import check_document, deflate, encode_xattrs, tombstone_of
from dcp.embedded.store import StoredItem
from dcp.wire.document import Datatype, join_xattrs

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"key": ""}, "key: expected 1 to 250 bytes, found 0"),
    ({"key": "x" * 300}, "key: expected 1 to 250 bytes, found 300"),
    ({"expiry": -1}, "expiry: expected 0 to 4294967295, found -1"),
    ({"flags": 1 << 40}, "flags: expected 0 to 4294967295, found 1099511627776"),
    ({"datatype": 300}, "datatype: expected 0 to 7, found 300"),
    ({"datatype": 4}, "value: expected bytes of datatype 4, found others: xattrs: length at byte 0"),
    ({"datatype": 2}, "value: expected bytes of datatype 2, found others: not a Snappy block"),
    ({"value": bytes(22 << 20)}, "value: expected at most 22020096 bytes, found 23068672"),
]


@pytest.mark.parametrize(("parts", "expected"), WRONG, ids=[expected[:24] for _, expected in WRONG])
def test_documents_that_no_server_stores_are_refused(parts: dict[str, Any], expected: str) -> None:
    with Cluster(vbuckets=2) as cluster, pytest.raises(dcp.LocalProtocolError, match=expected):
        cluster.upsert(**{"key": "k", "value": "v"} | parts)


def test_the_limits_of_a_document_belong_to_it() -> None:
    largest = 21 << 20
    check_document(b"x", bytes(largest), 0xFFFF_FFFF, 0xFFFF_FFFF, 0)
    check_document(bytes(250), deflate(bytes(largest)), 0, 0, Datatype.SNAPPY)
    with pytest.raises(dcp.LocalProtocolError, match="found 251"):
        check_document(bytes(251), b"", 0, 0, 0)
    with pytest.raises(dcp.LocalProtocolError, match=f"found {largest + 1}"):
        check_document(b"x", bytes(largest + 1), 0, 0, 0)
    with pytest.raises(dcp.LocalProtocolError, match=f"not a Snappy block of at most {largest} bytes"):
        check_document(b"x", deflate(bytes(largest + 1)), 0, 0, Datatype.SNAPPY)


def test_xattrs_are_json_texts_or_what_json_is_made_of() -> None:
    xattrs = {"text": '{"a": 1}', "dict": {"a": 1}, "list": ["ü"]}
    assert encode_xattrs(xattrs) == [(b"text", b'{"a": 1}'), (b"dict", b'{"a":1}'), (b"list", b'["\\u00fc"]')]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_tombstone_keeps_the_system_xattrs(compressed: bool) -> None:
    value = join_xattrs([(b"_sys", b"1"), (b"user", b"2")], b"{}")
    plain = StoredItem("mutation", 1, b"k", value, datatype=Datatype.XATTR | Datatype.JSON)
    item = plain._replace(value=deflate(value), datatype=plain.datatype | Datatype.SNAPPY) if compressed else plain
    assert tombstone_of(item) == {"value": join_xattrs([(b"_sys", b"1")]), "datatype": Datatype.XATTR}


def test_the_truth_is_what_a_consumer_sees() -> None:
    with Cluster(vbuckets=2) as cluster:
        cluster.upsert("k", '{"a":1}', xattrs={"_sys": "[1]"})
        assert cluster.truth()[b"k"].value == b'{"a":1}'


def test_a_cluster_may_be_closed_twice() -> None:
    cluster = Cluster(vbuckets=2)
    cluster.close()
    cluster.close()


def test_the_url_of_an_old_server_selects_its_mechanism() -> None:
    with Cluster(vbuckets=2, server_version="3.0") as cluster:
        cluster.load(10)
        with dcp.connect(cluster.url) as client:
            assert sum(map(len, client.stream(end="now"))) == 10


def test_a_slow_node_is_given_up_after_the_timeout() -> None:
    with (
        Cluster(vbuckets=2) as cluster,
        # Slow enough to exceed the timeout, but each single read gets a byte in time.
        cluster.fault("slow", rate=50),
        pytest.raises(dcp.TransportError, match=r"no answer within 0\.3 s"),
    ):
        dcp.connect(cluster.url, bootstrap_timeout=0.3)
