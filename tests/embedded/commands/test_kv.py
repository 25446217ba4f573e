"""Documents: read, written, counted, touched, deleted, each as servers do it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp.embedded.store import Item
from dcp.wire.document import Datatype, join_collection, join_xattrs, split_xattrs
from dcp.wire.framing import FrameInfo, RequestInfo
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status
from tests.embedded.talk import NOW, USUAL, Client, Clock

KEY = b"\0key"
DAY = 24 * 3600


@pytest.fixture
def client() -> Client:
    made = Client()
    made.hello()
    return made


def store(client: Client, name: str = "set", *, key: bytes = KEY, flags: int = 0, expiry: int = 0, **more: Any) -> Any:
    return client.one(name, key=key, fields={"flags": flags, "expiry": expiry}, **more)


def stored(client: Client, key: bytes = b"key", vbucket: int = 0, collection: int = 0) -> Item:
    item = client.bucket.active(vbucket).get(collection, key)
    assert item is not None
    return item


def test_what_is_set_can_be_got(client: Client) -> None:
    told = store(client, flags=5, value=b"text", vbucket=2)
    item = stored(client, vbucket=2)
    assert (told.status, told.cas) == (Status.SUCCESS, item.cas)
    assert told.fields == {"vbuuid": client.bucket.active(2).log.newest.vbuuid, "seqno": 1}
    got = client.one("get", key=KEY, vbucket=2)
    assert (got.value, got.fields, got.cas, got.datatype) == (b"text", {"flags": 5}, item.cas, 0)
    assert client.status("get", key=KEY, vbucket=1) is Status.KEY_ENOENT


def test_a_token_is_for_those_who_agreed_on_it(client: Client) -> None:
    client.hello(Feature.XERROR)
    told = store(client, key=b"key")
    assert told.fields == {}


def test_a_key_has_the_collection_in_front_only_where_that_was_agreed(client: Client) -> None:
    client.bucket.change_manifest(*client.bucket.manifest.create_collection("_default", "other"))
    for key, collection in ((b"\0key", 0), (b"\x08key", 8)):
        store(client, key=key, value=b"%d" % collection)
        assert stored(client, collection=collection).value == b"%d" % collection
    client.hello(Feature.XERROR)
    assert client.one("get", key=b"key").value == b"0"


@pytest.mark.parametrize(
    "key", [b"\0", b"\x80\x00key", b"\x80", b"\0" + bytes(251), b"\x08" + bytes(247), b"\xff\xff\xff\xff\xff\x01k"]
)
def test_a_key_that_is_none_is_refused(client: Client, key: bytes) -> None:
    client.bucket.change_manifest(*client.bucket.manifest.create_collection("_default", "other"))
    assert store(client, key=key).status == Status.EINVAL


def test_an_unknown_collection_is_refused_with_the_manifest_that_says_so(client: Client) -> None:
    answer = client.one("get", key=join_collection(77, b"k"))
    assert (answer.status, answer.body()) == (Status.UNKNOWN_COLLECTION, {"manifest_uid": "0"})


# Each with the document there or not, and with the CAS of the document, another or none.
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
def test_a_write_happens_on_its_conditions(
    client: Client, name: str, there: bool, cas: str, status: Status, quiet: str
) -> None:
    seqno = 0
    if there:
        store(client, value=b"old")
        seqno = 1
    current = stored(client).cas if there else 0
    parts: dict[str, Any] = {"cas": {"none": 0, "right": current, "wrong": 1}[cas], "key": KEY}
    if name in ("set", "add", "replace"):
        parts["fields"] = {"flags": 0, "expiry": 0}
    if name != "delete":
        parts["value"] = b"new"
    answers = client.all(name + quiet, **parts)
    assert [answer.status for answer in answers] == ([] if quiet and status is Status.SUCCESS else [status])
    assert client.bucket.active(0).high_seqno == seqno + (status is Status.SUCCESS)


def test_joining_keeps_what_was_there(client: Client) -> None:
    store(client, value=b"b", flags=9, expiry=NOW + 5)
    client.one("append", key=KEY, value=b"c")
    client.one("prepend", key=KEY, value=b"a")
    item = stored(client)
    assert (item.value, item.flags, item.expiry, item.rev_seqno) == (b"abc", 9, NOW + 5, 3)


def count(client: Client, name: str, delta: int, initial: int = 0, expiry: int = 0, **more: Any) -> Any:
    return client.one(name, key=KEY, fields={"delta": delta, "initial": initial, "expiry": expiry}, **more)


def test_a_counter_is_made_counted_and_kept_as_text(client: Client) -> None:
    assert count(client, "increment", 5, initial=100).fields["number"] == 100
    assert count(client, "increment", 5, initial=100).fields["number"] == 105
    assert count(client, "decrement", 6).fields["number"] == 99
    assert (stored(client).value, stored(client).datatype) == (b"99", Datatype.JSON)


@given(number=st.integers(0, (1 << 64) - 1), delta=st.integers(0, (1 << 64) - 1))
def test_a_counter_goes_round_at_the_top_and_stops_at_the_bottom(number: int, delta: int) -> None:
    client = Client()
    client.hello()
    store(client, value=b"%d" % number)
    assert count(client, "increment", delta).fields["number"] == (number + delta) % (1 << 64)
    store(client, value=b"%d" % number)
    assert count(client, "decrement", delta).fields["number"] == max(0, number - delta)


def test_a_counter_is_not_made_if_the_client_does_not_want_it(client: Client) -> None:
    assert count(client, "increment", 1, expiry=0xFFFFFFFF).status == Status.KEY_ENOENT


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"18446744073709551616", b"\xb2", b"9" * 5000])
def test_only_a_number_of_64_bits_can_be_counted(client: Client, value: bytes) -> None:
    store(client, value=value)
    assert count(client, "increment", 1).status == Status.DELTA_BADVAL
    assert stored(client).value == value


# Expiry.


def clock(client: Client) -> Clock:
    found = client.bucket._clock
    assert isinstance(found, Clock)
    return found


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(0, 0), (1, NOW + 1), (30 * DAY, NOW + 30 * DAY), (30 * DAY + 1, 30 * DAY + 1), (NOW + 9, NOW + 9)],
)
def test_up_to_30_days_an_expiry_counts_from_now(client: Client, sent: int, kept: int) -> None:
    store(client, expiry=sent)
    assert stored(client).expiry == kept
    count(client, "increment", 1, expiry=sent, vbucket=1)
    assert stored(client, vbucket=1).expiry == kept
    store(client, vbucket=2)
    client.one("touch", key=KEY, vbucket=2, fields={"expiry": sent})
    assert stored(client, vbucket=2).expiry == kept


@pytest.mark.parametrize("name", ["get", "replace", "delete", "touch", "append", "getk", "gat"])
def test_what_has_expired_is_gone_and_everybody_is_told(client: Client, name: str) -> None:
    store(client, value=b"1", expiry=10)
    clock(client).now += 10
    fields = {"replace": {"flags": 0, "expiry": 0}, "touch": {"expiry": 1}, "gat": {"expiry": 1}}.get(name, {})
    assert client.status(name, key=KEY, fields=fields) in (Status.KEY_ENOENT, Status.NOT_STORED)
    item = stored(client)
    assert (item.event, item.seqno, item.value, item.delete_time) == ("expiration", 2, b"", NOW + 10)


def test_what_has_expired_can_be_added(client: Client) -> None:
    store(client, expiry=10)
    clock(client).now += 11
    assert store(client, "add").status == Status.SUCCESS
    assert stored(client).seqno == 3


def test_the_collection_limits_the_expiry(client: Client) -> None:
    client.bucket.change_manifest(*client.bucket.manifest.create_collection("_default", "short", 100))
    for sent, kept in ((0, 100), (50, 50), (200, 100)):
        store(client, key=b"\x08key", expiry=sent)
        assert stored(client, collection=8).expiry == NOW + kept


def test_touching_moves_the_expiry_and_nothing_else(client: Client) -> None:
    store(client, value=b"[1]", flags=3)
    old = stored(client)
    touched = client.one("touch", key=KEY, fields={"expiry": 60})
    item = stored(client)
    assert touched.cas == item.cas > old.cas
    assert item == old._replace(seqno=2, rev_seqno=2, cas=item.cas, expiry=NOW + 60)
    got = client.one("gat", key=KEY, fields={"expiry": 90})
    assert (got.value, got.fields, stored(client).expiry) == (b"[1]", {"flags": 3}, NOW + 90)


def test_touching_without_a_change_writes_nothing(client: Client) -> None:
    cas = store(client, expiry=NOW + 60).cas
    assert client.one("touch", key=KEY, fields={"expiry": 60}).cas == cas
    assert stored(client).seqno == 1


def framed(client: Client, *infos: FrameInfo, expiry: int = 0) -> Any:
    return store(client, value=b"2", expiry=expiry, magic=Magic.FRAMED_REQUEST, frame_info=infos)


def test_an_expiry_is_kept_on_request(client: Client) -> None:
    framed(client, FrameInfo(RequestInfo.PRESERVE_TTL), expiry=60)
    framed(client, FrameInfo(RequestInfo.PRESERVE_TTL), expiry=90)
    assert (stored(client).expiry, stored(client).value) == (NOW + 60, b"2")


def test_a_durable_write_is_a_write(client: Client) -> None:
    assert framed(client, FrameInfo(RequestInfo.DURABILITY, b"\x01\x00\x64")).status == Status.SUCCESS
    assert framed(client, FrameInfo(RequestInfo.DURABILITY, b"\x04")).status == Status.DURABILITY_INVALID_LEVEL
    assert framed(client, FrameInfo(9)).status == Status.UNKNOWN_FRAME_INFO
    assert stored(client).seqno == 1


# Quiet and other forms of reading.


def test_a_quiet_read_is_answered_only_when_it_hits(client: Client) -> None:
    for name in ("getq", "getkq"):
        assert client.all(name, key=KEY) == []
    assert client.all("gatq", key=KEY, fields={"expiry": 1}) == []
    store(client, value=b"1")
    assert client.one("getq", key=KEY).value == b"1"
    assert client.one("getkq", key=KEY).key == KEY
    assert client.one("gatq", key=KEY, fields={"expiry": 0}).value == b"1"
    assert client.status("getq", key=KEY, vbucket=99) is Status.NOT_MY_VBUCKET


def test_a_key_is_told_on_request(client: Client) -> None:
    missed = client.one("getk", key=KEY)
    assert (missed.status, missed.key) == (Status.KEY_ENOENT, KEY)
    store(client, value=b"1")
    assert (client.one("getk", key=KEY).key, client.one("get", key=KEY).key) == (KEY, b"")


def test_metadata_are_those_of_the_document_or_of_its_tombstone(client: Client) -> None:
    assert client.status("get_meta", key=KEY) is Status.KEY_ENOENT
    told = store(client, value=b"[]", flags=7, expiry=60)
    meta = client.one("get_meta", key=KEY)
    assert meta.cas == told.cas
    assert meta.fields == {"deleted": 0, "flags": 7, "expiry": NOW + 60, "rev_seqno": 1}
    assert client.one("get_meta", key=KEY, fields={"version": 2}).fields["datatype"] == Datatype.JSON
    client.one("delete", key=KEY)
    assert client.one("get_meta", key=KEY).fields == {"deleted": 1, "flags": 0, "expiry": 0, "rev_seqno": 2}


# Values.


@pytest.mark.parametrize(
    ("value", "json"),
    [(b'{"a":1}', True), (b"[", False), (b"12", True), (b"NaN", False), (b"", False), (b"\xff", False)],
)
def test_servers_see_for_themselves_what_is_json(client: Client, value: bytes, json: bool) -> None:
    for said in (0, Datatype.JSON):
        store(client, value=value, datatype=said)
        assert client.one("get", key=KEY).datatype == (Datatype.JSON if json else 0)
    client.hello(*[feature for feature in USUAL if feature is not Feature.JSON])
    assert client.one("get", key=KEY).datatype == 0


def test_deep_json_is_no_trap(client: Client) -> None:
    assert store(client, value=b"[" * 200_000).status == Status.SUCCESS


def test_compressed_values_are_kept_so_and_inflated_for_others(client: Client) -> None:
    cramjam = pytest.importorskip("cramjam", reason="values are compressed with cramjam")
    text = b'{"a":"' + 500 * b"x" + b'"}'
    packed = bytes(cramjam.snappy.compress_raw(text))
    store(client, value=packed, datatype=Datatype.SNAPPY)
    assert stored(client).datatype == Datatype.SNAPPY | Datatype.JSON
    got = client.one("get", key=KEY)
    assert (got.value, got.datatype) == (packed, Datatype.SNAPPY | Datatype.JSON)
    client.hello(*[feature for feature in USUAL if feature is not Feature.SNAPPY])
    got = client.one("get", key=KEY)
    assert (got.value, got.datatype) == (text, Datatype.JSON)
    client.one("append", key=KEY, value=b" ")
    assert client.one("get", key=KEY).value == text + b" "


# A length that is none, one that is not kept, one of 4 GiB, and of nothing.
@pytest.mark.parametrize("value", [b"\xff" * 9, b"\x05\x00a", b"\xff\xff\xff\xff\x0f\x00a", b""])
def test_what_cannot_be_inflated_is_refused(client: Client, value: bytes) -> None:
    assert store(client, value=value, datatype=Datatype.SNAPPY).status == Status.EINVAL


@given(st.binary(max_size=50))
def test_no_value_that_claims_to_be_compressed_does_harm(value: bytes) -> None:
    client = Client()
    client.hello()
    assert store(client, value=value, datatype=Datatype.SNAPPY).status in (Status.SUCCESS, Status.EINVAL)


@pytest.mark.parametrize("datatype", [Datatype.XATTR, Datatype.XATTR | Datatype.SNAPPY, 8])
def test_a_datatype_that_no_client_may_send_is_refused(client: Client, datatype: int) -> None:
    assert store(client, value=b"x", datatype=datatype).status == Status.EINVAL


def test_a_datatype_has_to_be_agreed_on(client: Client) -> None:
    client.hello(Feature.XERROR)
    assert store(client, key=b"k", value=b"\x01\x00a", datatype=Datatype.SNAPPY).status == Status.EINVAL


def test_attributes_stay_where_they_are(client: Client) -> None:
    pairs = ((b"_sync", b'{"rev":1}'), (b"user", b"2"))
    client.bucket.store(b"key", join_xattrs(pairs, b"[1]"), datatype=Datatype.XATTR | Datatype.JSON, number=0)
    got = client.one("get", key=KEY)
    assert (got.value, got.datatype) == (b"[1]", Datatype.JSON)
    store(client, value=b"text")
    assert split_xattrs(stored(client).value) == (pairs, b"text")
    client.one("delete", key=KEY)
    assert split_xattrs(stored(client).value) == (pairs[:1], b"")


def test_a_document_has_a_largest_size(client: Client) -> None:
    assert store(client, value=bytes(20 << 20)).status == Status.SUCCESS
    assert store(client, value=bytes((20 << 20) + 1)).status == Status.E2BIG
