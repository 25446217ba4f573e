"""Behaviour that was observed on servers built from source, version by version: the embedded cluster has it as well.

Each test names the releases it was seen in. Recordings of most of it are in tests/transcripts.
"""

from __future__ import annotations

import pytest

from dcp.embedded import Cluster, topology
from dcp.embedded.store import StoredItem
from dcp.wire.dcp import OpenFlag
from dcp.wire.frame import Frame, decode
from dcp.wire.layout import Magic
from dcp.wire.memcached import Feature, Status
from dcp.wire.tap import TapConnectFlag, TapOpaque
from tests.conformance import cut
from tests.embedded.raw_client import (
    NOW,
    Clock,
    CommandClient,
    DcpClient,
    LegacyClient,
    codes,
    filled_bucket,
    keys,
    legacy_bucket,
    make_bucket,
    summaries,
)

ITEM = StoredItem("mutation", 1, b"key", b"{}", 4, 0x18E9762DD1E00000, 6, NOW + 9, datatype=1)
BARE = {"seqno": 1, "rev_seqno": 1, "flags": 0, "expiry": 0, "lock_time": 0, "nru": 0}
REAL = BARE | {"rev_seqno": 4, "flags": 6, "expiry": NOW + 9}

# DCP.


@pytest.mark.parametrize(
    ("version", "flags", "disk", "bare"),
    [
        ("8.0", OpenFlag.NO_VALUE, True, True),
        ("7.6", OpenFlag.NO_VALUE, True, True),
        ("7.2", OpenFlag.NO_VALUE, True, False),
        ("8.0", OpenFlag.NO_VALUE, False, False),
        ("8.0", OpenFlag(0), True, False),
        ("8.0", OpenFlag.NO_VALUE | OpenFlag.INCLUDE_XATTRS, True, False),
        ("8.0", OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE, True, False),
    ],
)
def test_a_backfill_of_keys_alone_has_no_cas(version: str, flags: OpenFlag, disk: bool, bare: bool) -> None:
    # Seen in 8.0.1 (no_value_disk_cas_zero) and not in 7.2.9 (no_value_disk); kv_engine has it since 7.6.
    bucket = make_bucket(version)
    bucket.put(bucket.active(0), ITEM)
    bucket.put(bucket.active(0), ITEM._replace(event="deletion", seqno=2, key=b"gone", value=b"", datatype=0))
    if disk:
        bucket.evict_checkpoints()
    _, document, tombstone = DcpClient(bucket, flags=OpenFlag.PRODUCER | flags).stream()
    assert (document.cas, {**document.fields, "nru": 0}) == ((0, BARE) if bare else (ITEM.cas, REAL))
    assert (tombstone.cas, tombstone.fields["rev_seqno"]) == (ITEM.cas, ITEM.rev_seqno)


@pytest.mark.parametrize(("version", "in_markers"), [("7.2", False), ("7.6", False), ("8.0", True)])
def test_only_statistics_have_the_purge_seqno_before_8_0(version: str, in_markers: bool) -> None:
    # Seen in 7.2.9 and 8.0.1 (purge_rollback).
    bucket, vbucket = filled_bucket(4, version)
    bucket.remove(b"key2")
    vbucket.put(StoredItem("mutation", 6, b"last"))
    bucket.purge()
    vbucket.evict_checkpoint()
    consumer = DcpClient(bucket)
    version_2_2 = consumer.request("control", key=b"max_marker_version", value=b"2.2").status
    assert version_2_2 == (Status.SUCCESS if in_markers else Status.EINVAL)
    marker = consumer.stream()[0]
    assert marker.fields.get("purge_seqno") == (5 if in_markers else None)
    found = CommandClient(bucket).request_all("stat", key=b"vbucket-details 0")
    assert {frame.key: frame.value for frame in found}[b"vb_0:purge_seqno"] == b"5"


@pytest.mark.parametrize("version", ["7.2", "8.0"])
def test_an_end_seqno_inside_a_snapshot_is_rounded_up(version: str) -> None:
    # Seen in 7.2.9 and 8.0.1, and in all older ones but 3.0.0-beta1.
    bucket, vbucket = filled_bucket(5, version)
    assert summaries(DcpClient(bucket).stream(0, 3))[-2:] == [("mutation", 5), ("end", 0)]
    position = {"vbuuid": vbucket.log.newest.vbuuid}
    assert summaries(DcpClient(bucket).stream(1, 3, **position))[-2:] == [("mutation", 5), ("end", 0)]


@pytest.mark.parametrize("version", ["7.2", "8.0"])
def test_change_history_is_refused_unless_the_bucket_retains_it(version: str) -> None:
    # Seen in 7.2.9 and 8.0.1: buckets with the Couchstore engine refuse it.
    for history, status in ((False, Status.NOT_SUPPORTED), (True, Status.SUCCESS)):
        assert DcpClient(make_bucket(version, history=history)).control("change_streams", "true") == status


@pytest.mark.parametrize(("version", "start"), [("7.0", 0), ("7.2", 5), ("8.0", 5)])
def test_the_marker_after_an_out_of_order_snapshot_starts_at_its_end(version: str, start: int) -> None:
    # Seen in 7.0.5 (collections_disk_oso_default), and in 7.2.9 and 8.0.1 (oso_then_live).
    bucket, vbucket = filled_bucket(5, version)
    vbucket.evict_checkpoint()
    consumer = DcpClient(bucket, controls={"enable_out_of_order_snapshots": "true"})
    consumer.stream(chosen={"collections": ["0"]})
    vbucket.put(StoredItem("mutation", 6, b"live"))
    marker = consumer.receive()[0].fields
    assert (marker["snapshot_start"], marker["snapshot_end"]) == (start, 6)


@pytest.mark.parametrize(("version", "sorts"), [("7.0", False), ("7.2", True), ("8.0", True)])
def test_hello_lists_features_by_code(version: str, sorts: bool) -> None:
    # Seen in 7.2.9 and 8.0.1.
    asked = (Feature.XERROR, Feature.SNAPPY, Feature.XATTR, Feature.COLLECTIONS, Feature.JSON)
    granted = CommandClient(make_bucket(version)).hello(*asked)
    assert granted == (tuple(sorted(asked)) if sorts else asked)


# TAP.


def with_expired(*, keeps: bytes = b"kept") -> LegacyClient:
    """Return a client of a node with an expired document between two others, all on disk."""
    clock = Clock()
    bucket = legacy_bucket("3.1", vbuckets=1, clock=clock)
    bucket.store(b"a", keeps)
    bucket.store(b"e1", b"gone1", expiry=NOW + 5)
    bucket.store(b"z", keeps)
    bucket.evict_checkpoints()
    clock.now += 10
    return LegacyClient(bucket)


@pytest.mark.parametrize("flags", [TapConnectFlag(0), TapConnectFlag.SUPPORT_ACK])
def test_a_tap_backfill_deletes_an_expired_document_with_its_value(flags: TapConnectFlag) -> None:
    # The frame that 3.1.6 sent; its CAS, opaque and flags are those of the moment.
    seen = bytes.fromhex(
        "8042000208000000000000170000000518e975a9ae3b547b00080000ff00000000000000000000016531676f6e6531"
    )
    peer = with_expired()
    peer.connect(flags)
    data = peer.receive_bytes()
    if flags:
        for raw in cut(data):
            if raw[1] == 0x44:
                peer.send(Frame("tap_opaque", Magic.RESPONSE, int.from_bytes(raw[12:16], "big")))
        data += peer.receive_bytes()
    rows = [raw for raw in cut(data) if raw[1] in (0x41, 0x42)]
    assert [raw[-len(end) :] for raw, end in zip(rows, (b"akept", b"e1gone1", b"zkept"), strict=True)] == [
        *(b"akept", b"e1gone1", b"zkept")
    ]
    expired = bytearray(rows[1])
    item = peer.bucket.active(0).get(0, b"e1")
    assert item is not None
    assert (item.alive, int.from_bytes(expired[16:24], "big")) == (True, item.cas)
    expired[12:24] = seen[12:24]
    assert bytes(expired) == seen


def test_a_document_that_expires_while_tap_streams_it_has_no_value() -> None:
    # Seen in 3.1.6: only backfills send values of expired documents.
    peer = with_expired()
    peer.connect()
    peer.receive_bytes()
    assert peer.bucket.expire_due() == 1
    (deletion,) = decode(peer.receive_bytes(), "tap")
    assert (deletion.name, deletion.key, deletion.value) == ("deletion", b"e1", b"")


def test_what_is_not_persisted_follows_the_end_of_a_tap_backfill() -> None:
    # Seen in 3.1.6: the end of a backfill says that the disk was read, and no more.
    bucket = legacy_bucket("3.1", vbuckets=1)
    bucket.store(b"on disk", b"1")
    bucket.evict_checkpoints()
    bucket.set_persistence(bucket.nodes[0], at_once=False)
    bucket.store(b"in memory", b"2")
    peer = LegacyClient(bucket)
    peer.connect(TapConnectFlag.SUPPORT_ACK)
    frames = peer.follow()
    codes = [frame.fields.get("code", frame.key) for frame in frames]
    assert codes[-3:] == [b"on disk", TapOpaque.CLOSE_BACKFILL, b"in memory"]
    # A dump has nothing but the backfill.
    dump = LegacyClient(bucket)
    dump.connect(TapConnectFlag.DUMP)
    assert keys(dump.receive()) == [b"on disk"]


@pytest.mark.parametrize("persisted", [0, 1])
def test_a_node_knows_how_many_writes_are_not_persisted(persisted: int) -> None:
    bucket = legacy_bucket("3.1", vbuckets=2)
    bucket.set_persistence(bucket.nodes[0], at_once=bool(persisted))
    for n in range(6):
        bucket.store(b"%d" % n, b"")
    found = {frame.key: frame.value for frame in CommandClient(bucket).request_all("stat")}
    assert (found[b"ep_queue_size"], found[b"ep_flusher_todo"]) == (b"0" if persisted else b"6", b"0")


@pytest.mark.parametrize(("version", "announced"), [("3.1", False), ("4.6", True)])
def test_a_clean_restart_makes_tap_forget_a_vbucket_of_one_checkpoint(version: str, announced: bool) -> None:
    # Seen in 3.1.6: such a vbucket is never announced, even to a client that asks for it alone.
    bucket = legacy_bucket(version, vbuckets=2)
    for number in (0, 1):
        bucket.store(b"key", b"", number=number)
    bucket.active(1).evict_checkpoint()
    topology.restart(bucket, 0)
    everything, alone = LegacyClient(bucket), LegacyClient(bucket)
    everything.connect()
    alone.connect(vbuckets=(0,))
    first = [(0, TapOpaque.INITIAL_VBUCKET_STREAM)] if announced else []
    assert codes(everything.receive())[: 1 + announced] == [*first, (1, TapOpaque.INITIAL_VBUCKET_STREAM)]
    assert codes(alone.receive())[:1] == first
    bucket.store(b"later", b"", number=0)
    assert keys(alone.receive()) == ([b"later"] if announced else [])


def test_a_clean_restart_loses_nothing_and_keeps_the_histories() -> None:
    with Cluster(vbuckets=2, seed=1) as cluster:
        seqno = cluster.upsert("key", b"1")
        before = cluster.truth()
        address = cluster.addresses
        client = CommandClient(cluster._bucket)
        logs = [client.request("kv_get_failover_log", vbucket=number).value for number in (0, 1)]
        cluster.restart(0)
        assert (cluster.truth(), cluster.addresses) == (before, address)
        assert [client.request("kv_get_failover_log", vbucket=number).value for number in (0, 1)] == logs
        assert cluster.upsert("key", b"2") == seqno + 1
