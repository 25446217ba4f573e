"""Streams beyond what recordings cover: newer flags, markers and filters, and random histories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp import Frame
from dcp.embedded.bucket import BucketStore
from dcp.embedded.store import StoredItem, VbucketStore
from dcp.wire.dcp import OpenFlag, StreamEnd, StreamFlag
from dcp.wire.document import Datatype, join_xattrs
from dcp.wire.framing import UNCOUNTED_HEAD
from dcp.wire.memcached import Feature, Status, VbucketState
from tests.embedded.raw_client import ALL_FEATURES, DcpClient, filled_bucket, make_bucket, summaries

# Flags of markers: from disk and from memory, each with CHECKPOINT, and from disk with history.
DISK, MEMORY, HISTORY = 0x06, 0x05, 0x36


def put(vbucket: VbucketStore, key: bytes, collection: int = 0, event: str = "mutation") -> None:
    seqno = vbucket.high_seqno + 1
    vbucket.put(StoredItem(event, seqno, key, cas=seqno, collection_id=collection))


# Start and end.


def test_a_stream_continues_with_later_writes() -> None:
    bucket, vbucket = filled_bucket(2)
    consumer = DcpClient(bucket)
    assert summaries(consumer.stream()) == [("marker", 0, 2, MEMORY), ("mutation", 1), ("mutation", 2)]
    put(vbucket, b"a")
    put(vbucket, b"a")
    assert summaries(consumer.receive()) == [("marker", 4, 4, 0x01), ("mutation", 4)]


def test_from_latest_begins_with_the_next_write() -> None:
    bucket, vbucket = filled_bucket(3)
    consumer = DcpClient(bucket)
    assert consumer.stream(flags=StreamFlag.FROM_LATEST) == []
    put(vbucket, b"next")
    assert summaries(consumer.receive()) == [("marker", 3, 4, MEMORY), ("mutation", 4)]


def test_to_latest_ends_at_the_high_seqno_of_the_request() -> None:
    bucket, _ = filled_bucket(3)
    frames = DcpClient(bucket).stream(flags=StreamFlag.TO_LATEST)
    assert summaries(frames) == [("marker", 0, 3, MEMORY), *(("mutation", n) for n in (1, 2, 3)), ("end", StreamEnd.OK)]


def test_to_latest_from_the_high_seqno_ends_at_once() -> None:
    bucket, vbucket = filled_bucket(3)
    flags = StreamFlag.TO_LATEST
    assert summaries(DcpClient(bucket).stream(3, vbuuid=vbucket.log.newest.vbuuid, flags=flags)) == [
        ("end", StreamEnd.OK)
    ]


def test_disk_only_sends_persisted_items_in_one_disk_snapshot() -> None:
    bucket, vbucket = filled_bucket(4)
    vbucket.persisted_seqno = 3
    frames = DcpClient(bucket).stream(flags=StreamFlag.DISK_ONLY)
    assert summaries(frames) == [("marker", 0, 3, DISK), *(("mutation", n) for n in (1, 2, 3)), ("end", StreamEnd.OK)]


def test_an_end_inside_a_snapshot_is_rounded_up() -> None:
    bucket, _ = filled_bucket(4)
    assert summaries(DcpClient(bucket).stream(0, 2))[-2:] == [("mutation", 4), ("end", StreamEnd.OK)]


def test_a_resume_inside_a_snapshot_begins_at_its_start() -> None:
    bucket, vbucket = filled_bucket(4)
    frames = DcpClient(bucket).stream(3, vbuuid=vbucket.log.newest.vbuuid, window=(2, 4))
    assert summaries(frames) == [("marker", 2, 4, MEMORY), ("mutation", 4)]


def test_evicted_items_are_read_from_disk_and_others_from_memory() -> None:
    bucket, vbucket = filled_bucket(2)
    vbucket.evict_checkpoint()
    consumer = DcpClient(bucket)
    assert summaries(consumer.stream())[0] == ("marker", 0, 2, DISK)
    put(vbucket, b"a")
    assert summaries(consumer.receive())[0] == ("marker", 3, 3, MEMORY)


def test_a_checkpoint_that_was_read_from_disk_is_not_announced_again() -> None:
    bucket, vbucket = filled_bucket(2)
    vbucket.evict_checkpoint()
    put(vbucket, b"a")
    put(vbucket, b"b")
    consumer = DcpClient(bucket)
    assert summaries(consumer.stream())[0] == ("marker", 0, 4, DISK)
    put(vbucket, b"c")
    assert summaries(consumer.receive())[0] == ("marker", 5, 5, MEMORY)


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("received", [1, 2])
def test_a_purge_beyond_a_stream_ends_it_for_a_rollback(disk: bool, received: int) -> None:
    bucket, vbucket = filled_bucket(received)
    consumer = DcpClient(bucket)
    consumer.stream()
    put(vbucket, b"key1", event="deletion")
    put(vbucket, b"last")
    vbucket.purge()
    if disk:
        vbucket.evict_checkpoint()
    assert summaries(consumer.receive()) == [("end", StreamEnd.ROLLBACK)]


def test_a_purge_of_the_deletion_that_a_stream_sent_last_takes_nothing_from_it() -> None:
    bucket, vbucket = filled_bucket(1)
    consumer = DcpClient(bucket)
    put(vbucket, b"key1", event="deletion")
    consumer.stream()
    put(vbucket, b"last")
    vbucket.purge()
    assert vbucket.purge_seqno == 2
    assert summaries(consumer.receive())[-1] == ("mutation", 3)


def test_a_purge_before_the_first_item_of_a_stream_from_the_beginning_takes_nothing_from_it() -> None:
    bucket, vbucket = filled_bucket(0)
    consumer = DcpClient(bucket)
    consumer.stream()
    put(vbucket, b"key", event="deletion")
    put(vbucket, b"last")
    vbucket.purge()
    assert summaries(consumer.receive()) == [("marker", 0, 2, MEMORY), ("mutation", 2)]


@pytest.mark.parametrize("datatype", [Datatype.JSON, Datatype.JSON | Datatype.XATTR])
def test_a_deletion_has_neither_a_value_nor_its_datatype(datatype: Datatype) -> None:
    bucket = make_bucket()
    value = join_xattrs([(b"mine", b"1")], b"{}") if Datatype.XATTR in datatype else b"{}"
    bucket.store(b"key", value, datatype=int(datatype), number=0)
    item = bucket.remove(b"key", number=0)
    assert item is not None
    assert (item.value, item.datatype) == (b"", 0)


def test_undone_writes_end_the_streams_that_sent_them() -> None:
    bucket, vbucket = filled_bucket(3)
    consumer = DcpClient(bucket, controls={"connection_buffer_size": "100"})
    vbucket.undo_writes(1)
    consumer.stream()
    vbucket.undo_writes(1)
    consumer.acknowledge(1000)
    assert summaries(consumer.receive()) == [("end", StreamEnd.ROLLBACK)]


@pytest.mark.parametrize("state", [VbucketState.DEAD, VbucketState.REPLICA, VbucketState.PENDING])
def test_a_change_of_state_ends_the_stream(state: VbucketState) -> None:
    bucket, vbucket = filled_bucket(2)
    consumer = DcpClient(bucket)
    consumer.stream()
    put(vbucket, b"unsent")
    vbucket.state = state
    assert summaries(consumer.receive()) == [("end", StreamEnd.STATE_CHANGED)]
    assert consumer.receive() == []


def test_deletions_can_be_left_out_of_the_first_backfill_only() -> None:
    bucket, vbucket = filled_bucket(2)
    put(vbucket, b"key1", event="deletion")
    vbucket.evict_checkpoint()
    consumer = DcpClient(bucket_of(bucket, "8.5"), flags=OpenFlag.PRODUCER | OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL)
    assert summaries(consumer.stream()) == [("marker", 0, 3, DISK), ("mutation", 2), ("seqno_advanced", 3)]
    put(vbucket, b"key2", event="deletion")
    assert summaries(consumer.receive())[-1] == ("deletion", 4)


def bucket_of(bucket: BucketStore, version: str) -> BucketStore:
    bucket.release = type(bucket.release).of(version)
    return bucket


# Markers.


def test_a_marker_of_version_2_2_has_the_purge_seqno() -> None:
    bucket, vbucket = filled_bucket(2)
    put(vbucket, b"key1", event="deletion")
    put(vbucket, b"last")
    vbucket.purge()
    vbucket.evict_checkpoint()
    marker = DcpClient(bucket, controls={"max_marker_version": "2.2"}).stream()[0]
    assert (marker.fields["version"], marker.fields["purge_seqno"]) == (2, 3)
    assert (marker.fields["snapshot_end"], marker.fields["flags"]) == (4, DISK)


def test_a_backfill_of_collections_fails_for_a_replica_without_them() -> None:
    bucket, vbucket = filled_bucket(2)
    put(vbucket, b"key", collection=8)
    vbucket.evict_checkpoint()
    controls = {"enable_sync_writes": "true", "consumer_name": "replica"}
    features = [feature for feature in ALL_FEATURES if feature is not Feature.COLLECTIONS]
    older = DcpClient(bucket, features=features, controls=controls)
    assert summaries(older.stream()) == [("end", StreamEnd.BACKFILL_FAILED)]
    assert summaries(DcpClient(bucket, features=features).stream())[1:3] == [("mutation", 1), ("mutation", 2)]


def test_a_marker_for_sync_replication_has_the_visible_seqno() -> None:
    bucket, _ = filled_bucket(2)
    marker = DcpClient(bucket, controls={"enable_sync_writes": "true", "consumer_name": "replica"}).stream()[0]
    assert marker.fields == {
        "version": 0,
        "snapshot_start": 0,
        "snapshot_end": 2,
        "flags": MEMORY,
        "max_visible_seqno": 2,
        "high_completed_seqno": 0,
    }


def test_a_change_stream_has_every_version_in_one_snapshot() -> None:
    bucket = make_bucket(history=True)
    vbucket = bucket.active(0)
    for _ in range(3):
        put(vbucket, b"same")
    vbucket.evict_checkpoint()
    consumer = DcpClient(bucket, controls={"change_streams": "true"})
    versions = [("mutation", n) for n in (1, 2, 3)]
    assert summaries(consumer.stream()) == [("marker", 0, 3, HISTORY), *versions]
    assert summaries(DcpClient(bucket, name=b"other").stream()) == [("marker", 0, 3, DISK), ("mutation", 3)]


# Collections.


def with_collections(version: str = "8.0") -> tuple[BucketStore, VbucketStore, int, int, int]:
    """Create a bucket with scope s and its collections a and b, at seqnos 1 to 3; return their ids."""
    bucket = make_bucket(version)
    bucket.change_manifest(*bucket.manifest.create_scope("s"))
    for name in ("a", "b"):
        bucket.change_manifest(*bucket.manifest.create_collection("s", name))
    scope = bucket.manifest.scope("s")
    a, b = (collection.id for collection in scope.collections)
    return bucket, bucket.active(0), scope.id, a, b


def ids(*numbers: int) -> list[str]:
    return [f"{number:x}" for number in numbers]


def test_a_filter_advances_over_items_that_it_leaves_out() -> None:
    bucket, vbucket, _, a, b = with_collections()
    put(vbucket, b"x", a)
    put(vbucket, b"x", b)
    consumer = DcpClient(bucket)
    shown = summaries(consumer.stream(chosen={"collections": ids(a)}))
    assert shown == [("marker", 0, 5, MEMORY), ("system_event", 2), ("mutation", 4), ("seqno_advanced", 5)]
    put(vbucket, b"y", b)
    assert summaries(consumer.receive()) == [("marker", 6, 6, 0x01), ("seqno_advanced", 6)]


def test_a_stream_ends_with_the_drop_of_its_last_collection() -> None:
    bucket, _, _, a, b = with_collections()
    consumer = DcpClient(bucket)
    consumer.stream(chosen={"collections": ids(a, b)})
    bucket.change_manifest(*bucket.manifest.drop_collection("s", "a"))
    assert summaries(consumer.receive()) == [("marker", 4, 4, 0x01), ("system_event", 4)]
    bucket.change_manifest(*bucket.manifest.drop_collection("s", "b"))
    assert summaries(consumer.receive())[1:] == [("system_event", 5), ("end", StreamEnd.FILTER_EMPTY)]


def test_a_scope_stream_gets_new_collections_and_ends_with_the_drop_of_the_scope() -> None:
    bucket, vbucket, scope, _, _ = with_collections()
    consumer = DcpClient(bucket)
    events = [("system_event", n) for n in (1, 2, 3)]
    assert summaries(consumer.stream(chosen={"scope": f"{scope:x}"})) == [("marker", 0, 3, MEMORY), *events]
    bucket.change_manifest(*bucket.manifest.create_collection("s", "c"))
    bucket.change_manifest(*bucket.manifest.create_collection("_default", "elsewhere"))
    c = bucket.manifest.collection("s", "c").id
    put(vbucket, b"x", c)
    put(vbucket, b"x", bucket.manifest.collection("_default", "elsewhere").id)
    shown = summaries(consumer.receive())
    assert shown == [("marker", 4, 7, 0x01), ("system_event", 4), ("mutation", 6), ("seqno_advanced", 7)]
    bucket.change_manifest(*bucket.manifest.drop_scope("s"))
    shown = summaries(consumer.receive())
    assert shown[1:] == [("system_event", n) for n in (8, 9, 10, 11)] + [("end", StreamEnd.FILTER_EMPTY)]


def test_the_stream_of_a_scope_without_collections_waits_for_the_first_one() -> None:
    bucket = make_bucket()
    bucket.change_manifest(*bucket.manifest.create_scope("s"))
    scope = bucket.manifest.scope("s").id
    consumer = DcpClient(bucket)
    assert summaries(consumer.stream(chosen={"scope": f"{scope:x}"})) == [("marker", 0, 1, MEMORY), ("system_event", 1)]
    bucket.change_manifest(*bucket.manifest.create_collection("s", "a"))
    put(bucket.active(0), b"x", bucket.manifest.collection("s", "a").id)
    shown = summaries(consumer.receive())
    assert shown == [("marker", 2, 3, 0x01), ("system_event", 2), ("mutation", 3)]


def test_a_client_without_collections_gets_documents_of_the_default_one_only() -> None:
    bucket, vbucket, _, a, _ = with_collections()
    consumer = DcpClient(bucket, features=())
    assert consumer.stream() == []
    put(vbucket, b"x", a)
    put(vbucket, b"y")
    put(vbucket, b"z", a)
    assert summaries(consumer.receive()) == [("marker", 0, 5, MEMORY), ("mutation", 5)]
    bucket.change_manifest(*bucket.manifest.drop_collection("_default", "_default"))
    assert summaries(consumer.receive()) == [("end", StreamEnd.OK)]


def out_of_order(control: str, last: int) -> list[Any]:
    bucket, vbucket, _, a, b = with_collections()
    for key, collection in ((b"z", a), (b"y", a), (b"x", last or b)):
        put(vbucket, key, collection)
    vbucket.evict_checkpoint()
    consumer = DcpClient(bucket, controls={"enable_out_of_order_snapshots": control})
    return summaries(consumer.stream(chosen={"collections": ids(a)}))


def test_a_collection_from_disk_may_be_sent_out_of_order() -> None:
    shown = out_of_order("true", 0)
    assert shown == [("oso", 1), ("system_event", 2), ("mutation", 5), ("mutation", 4), ("oso", 2)]


def test_an_out_of_order_snapshot_can_have_its_end_seqno() -> None:
    shown = out_of_order("true_with_seqno_advanced", 0)
    assert shown[-2:] == [("seqno_advanced", 6), ("oso", 2)]


def test_an_out_of_order_snapshot_without_items_has_its_end_seqno() -> None:
    bucket = make_bucket()
    bucket.change_manifest(*bucket.manifest.create_scope("s"))
    bucket.evict_checkpoints()
    consumer = DcpClient(bucket, controls={"enable_out_of_order_snapshots": "true_with_seqno_advanced"})
    shown = summaries(consumer.stream(chosen={"collections": ids(0)}))
    assert shown == [("oso", 1), ("seqno_advanced", 1), ("oso", 2)]


def test_a_consumer_that_resumes_gets_its_collection_in_order() -> None:
    bucket, vbucket, _, a, _ = with_collections()
    for key in (b"z", b"y", b"x"):
        put(vbucket, key, a)
    vbucket.evict_checkpoint()
    consumer = DcpClient(bucket, controls={"enable_out_of_order_snapshots": "true"})
    shown = summaries(consumer.stream(4, vbuuid=vbucket.log.newest.vbuuid, chosen={"collections": ids(a)}))
    assert shown == [("marker", 4, 6, DISK), ("mutation", 5), ("mutation", 6)]


@pytest.mark.parametrize("features", [frozenset[Feature](), ALL_FEATURES], ids=["older", "newer"])
def test_a_stream_that_misses_purged_deletions_ends_with_a_rollback(features: frozenset[Feature]) -> None:
    bucket, vbucket = filled_bucket(2)
    consumer = DcpClient(bucket, features=features)
    consumer.stream()
    bucket.remove(b"key1", number=0)
    bucket.store(b"later", b"", number=0)
    assert vbucket.purge() == 1
    assert summaries(consumer.receive()) == [("end", StreamEnd.ROLLBACK)]


def test_a_later_snapshot_from_disk_begins_where_the_consumer_is() -> None:
    bucket, vbucket = filled_bucket(2)
    consumer = DcpClient(bucket)
    consumer.stream()
    put(vbucket, b"a")
    put(vbucket, b"a")
    vbucket.evict_checkpoint()
    assert summaries(consumer.receive()) == [("marker", 2, 4, DISK), ("mutation", 4)]


@pytest.mark.parametrize(("version", "start"), [("7.1", 0), ("7.2", 4)])
def test_ordinary_snapshots_follow_an_out_of_order_one(version: str, start: int) -> None:
    """Since 7.2 the first of them begins at its end."""
    bucket, vbucket, _, a, _ = with_collections(version)
    put(vbucket, b"x", a)
    vbucket.evict_checkpoint()
    consumer = DcpClient(bucket, controls={"enable_out_of_order_snapshots": "true"})
    consumer.stream(chosen={"collections": ids(a)})
    put(vbucket, b"w", a)
    marker, change = consumer.receive()
    assert (marker.name, change.name) == ("snapshot_marker", "mutation")
    assert marker.fields["snapshot_start"] == start


@pytest.mark.parametrize("several", ["all", "a scope", "two collections"])
def test_several_collections_from_disk_are_sent_in_order(several: str) -> None:
    bucket, vbucket, scope, a, b = with_collections()
    for key, collection in ((b"z", a), (b"y", b), (b"x", a)):
        put(vbucket, key, collection)
    vbucket.evict_checkpoint()
    consumer = DcpClient(bucket, controls={"enable_out_of_order_snapshots": "true"})
    chosen = {"all": None, "a scope": {"scope": f"{scope:x}"}, "two collections": {"collections": ids(a, b)}}[several]
    shown = [frame.fields["seqno"] for frame in consumer.stream(chosen=chosen) if "seqno" in frame.fields]
    assert shown[-3:] == [4, 5, 6]
    assert shown == sorted(shown)


# Stream ids.


def test_streams_with_ids_share_a_vbucket_and_end_separately() -> None:
    bucket, vbucket = filled_bucket(1)
    consumer = DcpClient(
        bucket, controls={"enable_stream_id": "true", "send_stream_end_on_client_close_stream": "true"}
    )
    for sid in (1, 2):
        assert {frame.stream_id for frame in consumer.stream(chosen={"sid": sid})} == {sid}
    assert consumer.refused_stream(chosen={"sid": 2}).status == Status.KEY_EEXISTS
    assert (
        consumer.refused_stream().status
        == consumer.refused_stream(chosen={"sid": 0}).status
        == Status.DCP_STREAM_ID_INVALID
    )
    assert consumer.close_stream().status == consumer.close_stream(sid=3).status == Status.DCP_STREAM_ID_INVALID
    assert consumer.close_stream(sid=1).status == Status.SUCCESS
    put(vbucket, b"x")
    assert {frame.stream_id for frame in consumer.receive()} == {2}


@pytest.mark.parametrize(("flags", "extras", "counted"), [(0x01, 18, 3), (0x21, 21, 0)])
def test_only_deletions_with_times_do_not_count_their_stream_id(flags: int, extras: int, counted: int) -> None:
    bucket, vbucket = filled_bucket(1)
    put(vbucket, b"key1", event="deletion")
    consumer = DcpClient(bucket, flags=OpenFlag(flags), controls={"enable_stream_id": "true"})
    frames = consumer.stream(chosen={"sid": 5})
    assert summaries(frames)[-1] == ("deletion", 2)
    assert frames[-1].stream_id == 5
    # The last frame: header, 3 bytes of framing extras, extras, key.
    raw = consumer.received[-(24 + 3 + extras + len(b"\0key1")) :]
    assert (raw[0], raw[1], raw[2], raw[4], raw[24]) == (0x08, 0x58, counted, extras, UNCOUNTED_HEAD)


# Random histories.

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("mutation"), KEYS, st.integers(0, 2)),
        st.tuples(st.just("deletion"), KEYS, st.integers(0, 2)),
        st.tuples(st.just("hear")),
        st.tuples(st.just("disk")),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from([None, (0,), (1,), (0, 2)]), st.booleans(), st.sampled_from(["6.6", "7.0", "8.0"]))
def test_a_consumer_ends_up_with_all_items_whenever_it_receives(
    steps: list[Any], chosen: tuple[int, ...] | None, collections: bool, version: str
) -> None:
    bucket = make_bucket(version)
    bucket.change_manifest(*bucket.manifest.create_collection("_default", "one"))
    bucket.change_manifest(*bucket.manifest.create_collection("_default", "two"))
    numbers = [0, *(bucket.manifest.collection("_default", name).id for name in ("one", "two"))]
    vbucket = bucket.active(0)
    features = {Feature.COLLECTIONS} if collections else set()
    consumer = DcpClient(bucket, features=features)
    wanted = {numbers[n] for n in chosen} if chosen and collections else None
    frames = consumer.stream(chosen={"collections": ids(*wanted)} if wanted else None)
    for step in [*steps, ("hear",)]:
        if step[0] == "hear":
            frames += consumer.receive()
        elif step[0] == "disk":
            vbucket.evict_checkpoint()
        else:
            put(vbucket, step[1], numbers[step[2]], step[0])
    wanted = wanted or (set(numbers) if collections else {0})
    # Servers before 7.0 do not send SEQNO_ADVANCED for the filtered end of a snapshot.
    check_snapshots(frames, complete=version != "6.6")
    changes = [frame for frame in frames if frame.name in ("mutation", "deletion")]
    received = {frame.key: (frame.name, frame.fields["seqno"], frame.cas) for frame in changes}
    stored = [item for item in vbucket if isinstance(item, StoredItem) and item.collection_id in wanted]
    assert sorted(received.values(), key=lambda one: one[1]) == [(item.event, item.seqno, item.cas) for item in stored]


def check_snapshots(frames: list[Frame], complete: bool) -> None:
    """Check that seqnos rise within markers, that markers follow each other, and that none has a key twice."""
    last, start, end = 0, 0, 0
    keys: set[bytes] = set()
    for frame in frames:
        if frame.name == "snapshot_marker":
            assert last == end or not complete
            start, end = int(frame.fields["snapshot_start"]), int(frame.fields["snapshot_end"])
            assert start <= end > last
            keys = set()
            continue
        seqno = int(frame.fields["seqno"])
        assert max(last, start - 1) < seqno <= end
        last = seqno
        if frame.name != "system_event" and frame.key:
            assert frame.key not in keys
            keys.add(frame.key)
