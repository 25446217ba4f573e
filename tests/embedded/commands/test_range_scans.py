"""Range scans: what they contain, in which form, and how clients continue and cancel them.

The bytes of responses are those that docs/range_scans/range_scan_continue.md of kv_engine draws.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from typing import Any

import pytest

from dcp.embedded import topology
from dcp.embedded.bucket import BucketStore
from dcp.embedded.document import deflate
from dcp.wire.document import Datatype, join_xattrs
from dcp.wire.frame import Frame
from dcp.wire.memcached import Feature, Status
from tests.embedded.raw_client import NOW, Clock, CommandClient, make_bucket

MORE, COMPLETE = Status.RANGE_SCAN_MORE, Status.RANGE_SCAN_COMPLETE


def base64(key: bytes) -> str:
    return b64encode(key).decode()


def between(first: bytes, last: bytes) -> dict[str, Any]:
    return {"range": {"start": base64(first), "end": base64(last)}}


EVERYTHING = between(b"", b"\xff")


def client_of(bucket: BucketStore, *features: Feature) -> CommandClient:
    client = CommandClient(bucket)
    client.hello(*features)
    return client


def filled(*keys: bytes, version: str = "8.0") -> CommandClient:
    """Client of a vbucket with these documents."""
    bucket = make_bucket(version)
    for key in keys:
        bucket.store(key, b"value" + key[3:], number=0)
    return client_of(bucket)


def asked(client: CommandClient, options: dict[str, Any], **more: Any) -> Frame:
    value = json.dumps({"key_only": True, **options, **more}).encode()
    return client.request("range_scan_create", value=value, datatype=int(Datatype.JSON))


def created(client: CommandClient, options: dict[str, Any], **more: Any) -> dict[str, int]:
    """Create a scan; return the fields with its uuid."""
    answer = asked(client, options, **more)
    assert answer.status == Status.SUCCESS, answer
    high, low = struct.unpack(">QQ", answer.value)
    return {"scan_id_high": high, "scan_id_low": low}


def continued(client: CommandClient, scan: dict[str, int], items: int = 0, size: int = 0) -> list[Frame]:
    limits = {"item_limit": items, "time_limit": 0, "byte_limit": size}
    return client.request_all("range_scan_continue", fields={**scan, **limits})


def keys_of(frames: list[Frame]) -> list[bytes]:
    """Return the keys in the responses of a scan of keys, all shorter than 128 bytes."""
    found, data = [], b"".join(frame.value for frame in frames)
    while data:
        found.append(data[1 : 1 + data[0]])
        data = data[1 + data[0] :]
    return found


def scanned(client: CommandClient, options: dict[str, Any]) -> list[bytes]:
    return keys_of(continued(client, created(client, options)))


def test_keys_have_the_drawn_form() -> None:
    long = b"key" + b"2" * 124 + b"3"
    client = filled(long, b"key11", b"key0")
    (answer,) = continued(client, created(client, EVERYTHING))
    drawn = b"\x04key0" + b"\x05key11" + b"\x80\x01" + long
    assert (answer.status, answer.fields["flags"], answer.value) == (COMPLETE, 0, drawn)
    assert len(answer.value) == 4 + 1 + 5 + 1 + 128 + 2


def test_documents_have_the_drawn_form() -> None:
    client = filled()
    item = client.bucket.store(b"key0", b"value0", flags=0x01020304, expiry=NOW + 5, number=0)
    (answer,) = continued(client, created(client, EVERYTHING, key_only=False))
    drawn = struct.pack(">IIQQB", 0x01020304, NOW + 5, 1, item.cas, 0) + b"\x04key0\x06value0"
    assert (answer.fields["flags"], answer.value) == (1, drawn)


def test_a_range_has_the_keys_between_its_ends() -> None:
    client = filled(b"a", b"b", b"ba", b"c", b"d")
    assert scanned(client, between(b"b", b"c")) == [b"b", b"ba", b"c"]
    b, c = base64(b"b"), base64(b"c")
    assert scanned(client, {"range": {"excl_start": b, "excl_end": c}}) == [b"ba"]
    assert scanned(client, {"range": {"excl_start": b, "end": c}}) == [b"ba", b"c"]
    assert scanned(client, {"range": {"start": b, "excl_end": c}}) == [b"b", b"ba"]
    assert scanned(client, {}) == [b"a", b"b", b"ba", b"c", b"d"]
    assert asked(client, between(b"x", b"y")).status == Status.KEY_ENOENT


def test_the_id_of_a_collection_is_hexadecimal() -> None:
    client = filled(b"k")
    bucket = client.bucket
    # Ids begin with 8.
    for number in range(9):
        bucket.change_manifest(*bucket.manifest.create_collection("_default", f"c{number}"))
    bucket.store(b"apple", b"1", collection_id=16, number=0)
    assert scanned(client, {**EVERYTHING, "collection": "10"}) == [b"apple"]


def test_a_scan_has_neither_tombstones_nor_other_collections() -> None:
    client = filled(b"gone", b"here")
    bucket = client.bucket
    bucket.remove(b"gone", number=0)
    bucket.change_manifest(*bucket.manifest.create_collection("_default", "fruit"))
    bucket.store(b"apple", b"1", collection_id=8, number=0)
    assert scanned(client, EVERYTHING) == [b"here"]
    assert scanned(client, {**EVERYTHING, "collection": "8"}) == [b"apple"]
    assert asked(client, EVERYTHING, collection="9").status == Status.UNKNOWN_COLLECTION


def test_a_scan_shows_the_moment_of_its_creation() -> None:
    client = filled(b"a", b"b")
    scan = created(client, EVERYTHING, key_only=False)
    client.bucket.store(b"a", b"new", number=0)
    client.bucket.store(b"c", b"new", number=0)
    (answer,) = continued(client, scan)
    assert (b"new" in answer.value, b"value" in answer.value) == (False, True)


def test_a_scan_shows_what_is_persisted() -> None:
    client = filled(b"a", b"b")
    client.bucket.set_persistence(client.bucket.nodes[0], False)
    client.bucket.store(b"a", b"new", number=0)
    client.bucket.remove(b"b", number=0)
    client.bucket.store(b"c", b"new", number=0)
    (answer,) = continued(client, created(client, EVERYTHING, key_only=False))
    assert (b"new" in answer.value, answer.value.count(b"value")) == (False, 2)


def test_limits_end_a_response() -> None:
    client = filled(b"aa", b"bb", b"cc", b"dd")
    scan = created(client, EVERYTHING)
    found = [continued(client, scan, items=1), continued(client, scan, size=1)]
    found += [continued(client, scan, size=4), continued(client, scan)]
    assert [[frame.status for frame in frames] for frames in found] == [[MORE], [MORE], [MORE], [COMPLETE]]
    assert [keys_of(frames) for frames in found] == [[b"aa"], [b"bb"], [b"cc", b"dd"], []]
    assert continued(client, scan)[0].status == Status.KEY_ENOENT


def test_a_long_scan_comes_in_several_responses() -> None:
    client = filled(*(b"%05d" % n for n in range(5000)))
    frames = continued(client, created(client, EVERYTHING))
    assert [frame.status for frame in frames] == [Status.SUCCESS] * 3 + [COMPLETE]
    assert len(frames[0].value) == 8196
    assert keys_of(frames) == [b"%05d" % n for n in range(5000)]


def test_a_response_is_sent_once_it_has_8_kib() -> None:
    client = filled(*(b"%07d" % n for n in range(1025)))
    assert [len(frame.value) for frame in continued(client, created(client, EVERYTHING))] == [8192, 8]


def test_a_sample_is_repeated_by_its_seed() -> None:
    keys = [b"%03d" % n for n in range(400)]
    client = filled(*keys)
    first, again, other = (scanned(client, {"sampling": {"samples": 100, "seed": seed}}) for seed in (1, 1, 2))
    assert first == again != other
    default, zero = (scanned(client, {"sampling": {"samples": 100, **seed}}) for seed in ({}, {"seed": 0}))
    assert default == zero != first
    assert first == sorted(first)
    assert 50 < len(first) < 150
    assert scanned(client, {"sampling": {"samples": 400}}) == keys
    assert asked(filled(), {"sampling": {"samples": 1}}).status == Status.KEY_ENOENT


@pytest.mark.parametrize("compressed", [False, True])
def test_xattrs_are_included_on_request(compressed: bool) -> None:
    bucket = make_bucket()
    value, datatype = join_xattrs([(b"x", b"1")], b"{}"), int(Datatype.JSON | Datatype.XATTR)
    if compressed:
        bucket.store(b"k", deflate(value), datatype=datatype | Datatype.SNAPPY, number=0)
    else:
        bucket.store(b"k", value, datatype=datatype, number=0)
    client = client_of(bucket)
    for included, expected in ((False, b"\x01\x01k\x02{}"), (True, b"\x05\x01k" + bytes([len(value)]) + value)):
        (answer,) = continued(client, created(client, EVERYTHING, key_only=False, include_xattrs=included))
        assert answer.value[24:] == expected
    assert asked(client, EVERYTHING, include_xattrs=True).status == Status.EINVAL
    without = client_of(bucket, Feature.XERROR, Feature.JSON)
    assert asked(without, EVERYTHING, include_xattrs=True).status == Status.NOT_SUPPORTED
    # Older releases ignore what they do not know.
    assert asked(filled(b"a", version="7.6"), EVERYTHING, include_xattrs=True).status == Status.SUCCESS


def test_a_snapshot_can_be_required() -> None:
    client = filled(b"a", b"b")
    vbuuid = client.bucket.active(0).log.newest.vbuuid

    def required(uuid: int = vbuuid, seqno: int = 2, **more: Any) -> int:
        snapshot = {"vb_uuid": str(uuid), "seqno": seqno, **more}
        return asked(client, EVERYTHING, snapshot_requirements=snapshot).status

    assert required() == required(seqno=0) == Status.SUCCESS
    assert required(vbuuid + 1) == Status.VBUUID_NOT_EQUAL
    assert required(seqno=3) == Status.ETMPFAIL
    client.bucket.store(b"a", b"again", number=0)
    assert required(seqno=1, seqno_exists=True) == Status.NOT_STORED
    assert required(seqno=3, seqno_exists=True) == Status.SUCCESS


@pytest.mark.parametrize("persisted", [True, False])
def test_a_scan_can_wait_for_persistence(persisted: bool) -> None:
    client = filled(b"a")
    node = client.bucket.nodes[0]
    client.bucket.set_persistence(node, False)
    client.bucket.store(b"b", b"", number=0)
    snapshot = {"vb_uuid": str(client.bucket.active(0).log.newest.vbuuid), "seqno": 2, "timeout_ms": 500}
    value = json.dumps({"key_only": True, **EVERYTHING, "snapshot_requirements": snapshot}).encode()
    assert client.request_all("range_scan_create", value=value, datatype=1) == []
    assert client.connection.due() == 0.5
    client.bucket.set_persistence(node, persisted)
    client.now = 0.5
    assert [answer.status for answer in client.receive()] == [Status.SUCCESS if persisted else Status.ETMPFAIL]


def test_a_scan_ends_when_it_is_cancelled() -> None:
    client = filled(b"a")
    scan = created(client, EVERYTHING)
    other = client_of(client.bucket)
    assert other.status("range_scan_cancel", fields=scan) is Status.SUCCESS
    assert client.status("range_scan_cancel", fields=scan) is Status.KEY_ENOENT
    assert continued(client, scan)[0].status == Status.KEY_ENOENT


def test_a_scan_ends_after_three_minutes() -> None:
    client = filled(b"a")
    scan = created(client, EVERYTHING)
    client.now = 180.0
    assert continued(client, scan)[0].status == Status.KEY_ENOENT
    created(client, EVERYTHING)
    assert len(client.bucket.range_scans) == 1


def test_a_scan_ends_with_its_collection() -> None:
    client = filled(b"a")
    scan = created(client, EVERYTHING)
    client.bucket.change_manifest(*client.bucket.manifest.drop_collection("_default", "_default"))
    assert continued(client, scan)[0].status == Status.UNKNOWN_COLLECTION
    assert not client.bucket.range_scans


def test_a_scan_ends_with_the_active_copy() -> None:
    bucket = make_bucket(nodes=2, replicas=1)
    bucket.store(b"a", b"", number=0)
    client = client_of(bucket)
    scan = created(client, EVERYTHING)
    topology.promote(bucket, 0, 1)
    assert continued(client, scan)[0].status == Status.NOT_MY_VBUCKET
    assert asked(client, EVERYTHING).status == Status.NOT_MY_VBUCKET


@pytest.mark.parametrize(
    "options",
    [
        {**EVERYTHING, "sampling": {"samples": 1}},
        {"range": {"start": "", "excl_start": "", "end": ""}},
        {"range": {"start": ""}},
        {"range": {"start": "*", "end": ""}},
        between(b"", b"x" * 251),
        {"range": []},
        {"sampling": {}},
        {"sampling": {"samples": -1}},
        {"sampling": {"samples": True}},
        {"collection": 8},
        {"collection": "fruit"},
        {"name": "x" * 51},
        {"key_only": 1},
        {"snapshot_requirements": {"seqno": 1}},
        {"snapshot_requirements": {"seqno": 1, "vb_uuid": "0x1"}},
        {"snapshot_requirements": {"seqno": 1, "vb_uuid": "1" * 21}},
    ],
)
def test_a_malformed_request_is_refused(options: dict[str, Any]) -> None:
    assert asked(filled(b"a"), options).status == Status.EINVAL


def test_the_longest_parts_of_a_request_are_accepted() -> None:
    client = filled(b"a")
    assert asked(client, between(b"", b"x" * 250), name="x" * 50).status == Status.SUCCESS
    snapshot = {"seqno": 1, "vb_uuid": str((1 << 64) - 1)}
    assert asked(client, EVERYTHING, snapshot_requirements=snapshot).status == Status.VBUUID_NOT_EQUAL


@pytest.mark.parametrize(("value", "datatype"), [(b"{", 1), (b"[]", 1), (b"{}", 0)])
def test_a_request_has_to_be_json(value: bytes, datatype: int) -> None:
    assert filled(b"a").status("range_scan_create", value=value, datatype=datatype) is Status.EINVAL


def test_older_releases_have_no_scans() -> None:
    older = filled(b"a", version="7.2")
    scan = {"scan_id_high": 0, "scan_id_low": 1}
    assert asked(older, EVERYTHING).status == Status.UNKNOWN_COMMAND
    assert [frame.status for frame in continued(older, scan)] == [Status.UNKNOWN_COMMAND]
    assert older.status("range_scan_cancel", fields=scan) is Status.UNKNOWN_COMMAND
    assert scanned(filled(b"a", version="7.6"), EVERYTHING) == [b"a"]


def test_an_expired_document_that_nobody_has_read_is_still_on_disk() -> None:
    clock = Clock()
    bucket = make_bucket(clock=clock)
    bucket.store(b"k", b"", expiry=NOW + 1, number=0)
    clock.now += 2
    assert scanned(client_of(bucket), EVERYTHING) == [b"k"]


def test_a_bucket_has_a_limit_of_scans() -> None:
    client = filled(b"a")
    scans = [created(client, EVERYTHING) for _ in range(3276)]
    assert asked(client, EVERYTHING).status == Status.EBUSY
    client.status("range_scan_cancel", fields=scans[0])
    created(client, EVERYTHING)
