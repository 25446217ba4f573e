"""All commands that write a document."""

from __future__ import annotations

from typing import Any

import pytest

from dcp.embedded.document import deflate
from dcp.wire.document import Datatype, join_xattrs, split_xattrs
from dcp.wire.framing import FrameInfo, RequestInfo
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status
from tests.embedded.raw_client import KEY, NOW, Clock, CommandClient, store, stored_item

DAY = 24 * 3600


def test_what_is_set_can_be_got(client: CommandClient) -> None:
    response = store(client, flags=5, value=b"text", vbucket=2)
    item = stored_item(client, vbucket=2)
    assert (response.status, response.cas) == (Status.SUCCESS, item.cas)
    assert response.fields == {"vbuuid": client.bucket.active(2).log.newest.vbuuid, "seqno": 1}
    got = client.request("get", key=KEY, vbucket=2)
    assert (got.value, got.fields, got.cas, got.datatype) == (b"text", {"flags": 5}, item.cas, 0)
    assert client.status("get", key=KEY, vbucket=1) is Status.KEY_ENOENT


def test_a_mutation_token_is_sent_if_negotiated(client: CommandClient) -> None:
    client.hello(Feature.XERROR)
    response = store(client, key=b"key")
    assert response.fields == {}


# Each with and without an existing document, and with its CAS, another one or none.
CONDITIONS = [
    ("set", False, "none", Status.SUCCESS),
    ("set", False, "wrong", Status.KEY_ENOENT),
    ("set", True, "none", Status.SUCCESS),
    ("set", True, "right", Status.SUCCESS),
    ("set", True, "wrong", Status.KEY_EEXISTS),
    ("add", False, "none", Status.SUCCESS),
    ("add", True, "none", Status.KEY_EEXISTS),
    ("add", False, "wrong", Status.EINVAL),
    ("replace", False, "none", Status.KEY_ENOENT),
    ("replace", True, "none", Status.SUCCESS),
    ("replace", True, "right", Status.SUCCESS),
    ("replace", True, "wrong", Status.KEY_EEXISTS),
    ("append", False, "none", Status.NOT_STORED),
    ("append", True, "right", Status.SUCCESS),
    ("append", True, "wrong", Status.KEY_EEXISTS),
    ("prepend", False, "none", Status.NOT_STORED),
    ("prepend", True, "none", Status.SUCCESS),
    ("delete", False, "none", Status.KEY_ENOENT),
    ("delete", True, "none", Status.SUCCESS),
    ("delete", True, "right", Status.SUCCESS),
    ("delete", True, "wrong", Status.KEY_EEXISTS),
]


@pytest.mark.parametrize("quiet", ["", "q"])
@pytest.mark.parametrize(("name", "there", "cas", "status"), CONDITIONS)
def test_a_write_depends_on_its_conditions(
    client: CommandClient, name: str, there: bool, cas: str, status: Status, quiet: str
) -> None:
    seqno = 0
    if there:
        store(client, value=b"old")
        seqno = 1
    current = stored_item(client).cas if there else 0
    parts: dict[str, Any] = {"cas": {"none": 0, "right": current, "wrong": 1}[cas], "key": KEY}
    if name in ("set", "add", "replace"):
        parts["fields"] = {"flags": 0, "expiry": 0}
    if name != "delete":
        parts["value"] = b"new"
    answers = client.request_all(name + quiet, **parts)
    assert [answer.status for answer in answers] == ([] if quiet and status is Status.SUCCESS else [status])
    assert client.bucket.active(0).high_seqno == seqno + (status is Status.SUCCESS)


def test_append_and_prepend_keep_the_old_value(client: CommandClient) -> None:
    store(client, value=b"b", flags=9, expiry=NOW + 5)
    client.request("append", key=KEY, value=b"c")
    client.request("prepend", key=KEY, value=b"a")
    item = stored_item(client)
    assert (item.value, item.flags, item.expiry, item.rev_seqno) == (b"abc", 9, NOW + 5, 3)


def clock(client: CommandClient) -> Clock:
    found = client.bucket.clock
    assert isinstance(found, Clock)
    return found


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(0, 0), (1, NOW + 1), (30 * DAY, NOW + 30 * DAY), (30 * DAY + 1, 30 * DAY + 1), (NOW + 9, NOW + 9)],
)
def test_up_to_30_days_an_expiry_counts_from_now(client: CommandClient, sent: int, kept: int) -> None:
    store(client, expiry=sent)
    assert stored_item(client).expiry == kept
    counter = {"delta": 1, "initial": 0, "expiry": sent}
    client.request("increment", key=KEY, vbucket=1, fields=counter)
    assert stored_item(client, vbucket=1).expiry == kept
    store(client, vbucket=2)
    client.request("touch", key=KEY, vbucket=2, fields={"expiry": sent})
    assert stored_item(client, vbucket=2).expiry == kept


@pytest.mark.parametrize("name", ["get", "replace", "delete", "touch", "append", "getk", "gat"])
def test_an_expired_document_is_gone_and_its_expiration_streamed(client: CommandClient, name: str) -> None:
    store(client, value=b"1", expiry=10)
    clock(client).now += 10
    fields = {"replace": {"flags": 0, "expiry": 0}, "touch": {"expiry": 1}, "gat": {"expiry": 1}}.get(name, {})
    assert client.status(name, key=KEY, fields=fields) in (Status.KEY_ENOENT, Status.NOT_STORED)
    item = stored_item(client)
    assert (item.event, item.seqno, item.value, item.delete_time) == ("expiration", 2, b"", NOW + 10)


def test_an_expired_document_can_be_added(client: CommandClient) -> None:
    store(client, expiry=10)
    clock(client).now += 11
    assert store(client, "add").status == Status.SUCCESS
    assert stored_item(client).seqno == 3


def test_the_collection_limits_the_expiry(client: CommandClient) -> None:
    client.bucket.change_manifest(*client.bucket.manifest.create_collection("_default", "short", 100))
    for sent, kept in ((0, 100), (50, 50), (200, 100)):
        store(client, key=b"\x08key", expiry=sent)
        assert stored_item(client, collection=8).expiry == NOW + kept


def test_touching_moves_the_expiry_and_nothing_else(client: CommandClient) -> None:
    store(client, value=b"[1]", flags=3)
    old = stored_item(client)
    touched = client.request("touch", key=KEY, fields={"expiry": 60})
    item = stored_item(client)
    assert touched.cas == item.cas > old.cas
    assert item == old._replace(seqno=2, rev_seqno=2, cas=item.cas, expiry=NOW + 60)
    got = client.request("gat", key=KEY, fields={"expiry": 90})
    assert (got.value, got.fields, stored_item(client).expiry) == (b"[1]", {"flags": 3}, NOW + 90)


def test_touching_without_a_change_writes_nothing(client: CommandClient) -> None:
    cas = store(client, expiry=NOW + 60).cas
    assert client.request("touch", key=KEY, fields={"expiry": 60}).cas == cas
    assert stored_item(client).seqno == 1


def framed(client: CommandClient, *infos: FrameInfo, expiry: int = 0) -> Any:
    return store(client, value=b"2", expiry=expiry, magic=Magic.FRAMED_REQUEST, frame_info=infos)


def test_an_expiry_is_kept_on_request(client: CommandClient) -> None:
    framed(client, FrameInfo(RequestInfo.PRESERVE_TTL), expiry=60)
    framed(client, FrameInfo(RequestInfo.PRESERVE_TTL), expiry=90)
    assert (stored_item(client).expiry, stored_item(client).value) == (NOW + 60, b"2")


def test_a_durable_write_is_a_write(client: CommandClient) -> None:
    assert framed(client, FrameInfo(RequestInfo.DURABILITY, b"\x01\x00\x64")).status == Status.SUCCESS
    assert framed(client, FrameInfo(RequestInfo.DURABILITY, b"\x04")).status == Status.DURABILITY_INVALID_LEVEL
    assert framed(client, FrameInfo(9)).status == Status.UNKNOWN_FRAME_INFO
    # The prepare has a seqno of its own, as has the commit.
    assert stored_item(client).seqno == 2


@pytest.mark.parametrize("compressed", [False, True])
def test_writes_keep_xattrs(client: CommandClient, compressed: bool) -> None:
    pairs = ((b"_sync", b'{"rev":1}'), (b"user", b"2"))
    value, datatype = join_xattrs(pairs, b"[1]"), Datatype.XATTR | Datatype.JSON
    if compressed:
        pytest.importorskip("cramjam", reason="values are compressed with cramjam")
        value, datatype = deflate(value), datatype | Datatype.SNAPPY
    client.bucket.store(b"key", value, datatype=datatype, number=0)
    got = client.request("get", key=KEY)
    assert (got.value, got.datatype) == (b"[1]", Datatype.JSON)
    store(client, value=b"text")
    assert split_xattrs(stored_item(client).value) == (pairs, b"text")
    client.request("delete", key=KEY)
    assert split_xattrs(stored_item(client).value) == (pairs[:1], b"")


@pytest.mark.parametrize(("collection", "longest"), [(b"\0", 250), (b"\x08", 246)])
def test_a_key_has_a_longest_size(client: CommandClient, collection: bytes, longest: int) -> None:
    client.bucket.change_manifest(*client.bucket.manifest.create_collection("_default", "fruit"))
    for length, status in ((0, Status.EINVAL), (1, Status.SUCCESS), (longest, Status.SUCCESS)):
        assert store(client, key=collection + b"k" * length).status == status
    assert store(client, key=collection + b"k" * (longest + 1)).status == Status.EINVAL


def test_a_document_has_a_largest_size(client: CommandClient) -> None:
    assert store(client, value=bytes(20 << 20)).status == Status.SUCCESS
    assert store(client, value=bytes((20 << 20) + 1)).status == Status.E2BIG
