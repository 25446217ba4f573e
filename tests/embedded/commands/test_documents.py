"""Keys, collections and vbuckets of requests, and the forms of values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.wire.document import Datatype, join_collection
from dcp.wire.memcached import Feature, Status
from tests.embedded.raw_client import KEY, USUAL_FEATURES, CommandClient, make_bucket, store, stored_item


def test_a_key_has_a_collection_prefix_only_if_negotiated(client: CommandClient) -> None:
    client.bucket.change_manifest(*client.bucket.manifest.create_collection("_default", "other"))
    for key, collection in ((b"\0key", 0), (b"\x08key", 8)):
        store(client, key=key, value=b"%d" % collection)
        assert stored_item(client, collection=collection).value == b"%d" % collection
    client.hello(Feature.XERROR)
    assert client.request("get", key=b"key").value == b"0"


@pytest.mark.parametrize(
    "key", [b"\0", b"\x80\x00key", b"\x80", b"\0" + bytes(251), b"\x08" + bytes(247), b"\xff\xff\xff\xff\xff\x01k"]
)
def test_an_invalid_key_is_refused(client: CommandClient, key: bytes) -> None:
    client.bucket.change_manifest(*client.bucket.manifest.create_collection("_default", "other"))
    assert store(client, key=key).status == Status.EINVAL


def test_an_unknown_collection_is_refused_with_the_manifest_uid(client: CommandClient) -> None:
    answer = client.request("get", key=join_collection(77, b"k"))
    assert (answer.status, answer.body()) == (Status.UNKNOWN_COLLECTION, {"manifest_uid": "0"})


@pytest.mark.parametrize(
    ("value", "json"),
    [(b'{"a":1}', True), (b"[", False), (b"12", True), (b"NaN", False), (b"", False), (b"\xff", False)],
)
def test_json_is_detected_whatever_the_client_says(client: CommandClient, value: bytes, json: bool) -> None:
    for said in (0, Datatype.JSON):
        store(client, value=value, datatype=said)
        assert client.request("get", key=KEY).datatype == (Datatype.JSON if json else 0)
    client.hello(*[feature for feature in USUAL_FEATURES if feature is not Feature.JSON])
    assert client.request("get", key=KEY).datatype == 0


def test_deeply_nested_json_does_not_crash(client: CommandClient) -> None:
    assert store(client, value=b"[" * 200_000).status == Status.SUCCESS


def test_compressed_values_are_kept_so_and_inflated_for_others(client: CommandClient) -> None:
    cramjam = pytest.importorskip("cramjam", reason="values are compressed with cramjam")
    text = b'{"a":"' + 500 * b"x" + b'"}'
    packed = bytes(cramjam.snappy.compress_raw(text))
    store(client, value=packed, datatype=Datatype.SNAPPY)
    assert stored_item(client).datatype == Datatype.SNAPPY | Datatype.JSON
    got = client.request("get", key=KEY)
    assert (got.value, got.datatype) == (packed, Datatype.SNAPPY | Datatype.JSON)
    client.hello(*[feature for feature in USUAL_FEATURES if feature is not Feature.SNAPPY])
    got = client.request("get", key=KEY)
    assert (got.value, got.datatype) == (text, Datatype.JSON)
    client.request("append", key=KEY, value=b" ")
    assert client.request("get", key=KEY).value == text + b" "


def test_values_that_would_be_too_large_are_not_inflated(client: CommandClient) -> None:
    cramjam = pytest.importorskip("cramjam", reason="values are compressed with cramjam")
    packed = bytes(cramjam.snappy.compress_raw(bytes((30 << 20) + 1)))
    assert store(client, value=packed, datatype=Datatype.SNAPPY).status == Status.EINVAL


# Snappy blocks: no valid length, a wrong length, a length of 4 GiB, and an empty one.
@pytest.mark.parametrize("value", [b"\xff" * 9, b"\x05\x00a", b"\xff\xff\xff\xff\x0f\x00a", b""])
def test_values_that_cannot_be_inflated_are_refused(client: CommandClient, value: bytes) -> None:
    assert store(client, value=value, datatype=Datatype.SNAPPY).status == Status.EINVAL


@given(st.binary(max_size=50))
def test_invalid_compressed_values_do_not_crash(value: bytes) -> None:
    client = CommandClient()
    client.hello()
    assert store(client, value=value, datatype=Datatype.SNAPPY).status in (Status.SUCCESS, Status.EINVAL)


@pytest.mark.parametrize("datatype", [Datatype.XATTR, Datatype.XATTR | Datatype.SNAPPY, 8])
def test_a_datatype_that_clients_may_not_send_is_refused(client: CommandClient, datatype: int) -> None:
    assert store(client, value=b"x", datatype=datatype).status == Status.EINVAL


def test_a_datatype_has_to_be_negotiated(client: CommandClient) -> None:
    client.hello(Feature.XERROR)
    assert store(client, key=b"k", value=b"\x01\x00a", datatype=Datatype.SNAPPY).status == Status.EINVAL


def test_a_copy_that_the_map_does_not_list_is_refused() -> None:
    bucket = make_bucket(nodes=2, vbuckets=4, replicas=1)
    client = CommandClient(bucket)
    client.hello()
    assert store(client).status == Status.SUCCESS
    bucket.owners[0] = [1, 0]
    assert store(client).status == Status.NOT_MY_VBUCKET
