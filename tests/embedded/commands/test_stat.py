"""Statistics, as tools read them."""

from __future__ import annotations

import pytest

from dcp.embedded.bucket import BucketStore
from dcp.wire.memcached import Status
from tests.embedded.raw_client import CommandClient, make_bucket


def stats(client: CommandClient, group: str) -> dict[str, str]:
    *found, last = client.request_all("stat", key=group.encode())
    assert (last.key, last.value, last.status) == (b"", b"", Status.SUCCESS)
    assert {answer.opaque for answer in found} <= {last.opaque}
    return {answer.key.decode(): answer.body() for answer in found}


def filled() -> BucketStore:
    bucket = make_bucket(vbuckets=3)
    for key in (b"a", b"b", b"c"):
        bucket.store(key, b"v", number=1)
    bucket.remove(b"b", number=1)
    return bucket


def test_the_seqnos_of_a_vbucket() -> None:
    bucket = filled()
    vbucket = bucket.active(1)
    vbucket.persisted_seqno, vbucket.purge_seqno = 3, 2
    assert stats(CommandClient(bucket), "vbucket-seqno 1") == {
        "vb_1:high_seqno": "4",
        "vb_1:abs_high_seqno": "4",
        "vb_1:last_persisted_seqno": "3",
        "vb_1:purge_seqno": "2",
        "vb_1:uuid": str(vbucket.log.newest.vbuuid),
        "vb_1:last_persisted_snap_start": "3",
        "vb_1:last_persisted_snap_end": "3",
        "vb_1:high_prepared_seqno": "0",
        "vb_1:high_completed_seqno": "0",
        "vb_1:max_visible_seqno": "4",
    }


@pytest.mark.parametrize(("group", "each"), [("vbucket-seqno", 10), ("vbucket-details", 5), ("failovers", 4)])
def test_without_a_number_the_group_has_all_vbuckets(group: str, each: int) -> None:
    found = stats(CommandClient(filled()), group)
    assert len(found) == 3 * each
    assert {name.partition(":")[0] for name in found} == {"vb_0", "vb_1", "vb_2"}


def test_the_details_of_a_vbucket() -> None:
    bucket = filled()
    # The event of a new collection is no document.
    bucket.change_manifest(*bucket.manifest.create_collection("_default", "fruit"))
    found = stats(CommandClient(bucket), "vbucket-details 1")
    assert found["vb_1"] == "active"
    assert (found["vb_1:num_items"], found["vb_1:high_seqno"]) == ("2", "5")
    assert stats(CommandClient(bucket), "")["curr_items"] == "2"


def test_the_histories_of_a_vbucket() -> None:
    bucket = filled()
    bucket.active(1).log = bucket.active(1).log.begin(77, 3)
    oldest = bucket.active(1).log.branches[-1].vbuuid
    assert stats(CommandClient(bucket), "failovers 1") == {
        "vb_1:num_entries": "2",
        "vb_1:num_erroneous_entries_erased": "0",
        "vb_1:0:id": "77",
        "vb_1:0:seq": "3",
        "vb_1:1:id": str(oldest),
        "vb_1:1:seq": "0",
    }


@pytest.mark.parametrize(
    ("group", "status"),
    [
        ("nothing", Status.KEY_ENOENT),
        ("dcp x", Status.KEY_ENOENT),
        ("failovers x", Status.EINVAL),
        ("failovers -1", Status.EINVAL),
        ("failovers " + 5000 * "9", Status.EINVAL),
        ("failovers 3", Status.NOT_MY_VBUCKET),
        ("failovers 65535", Status.NOT_MY_VBUCKET),
        ("failovers 065535", Status.EINVAL),
    ],
)
def test_an_unknown_group_is_refused(group: str, status: Status) -> None:
    assert CommandClient(filled()).status("stat", key=group.encode()) is status


def test_general_statistics_of_a_node() -> None:
    found = stats(CommandClient(filled()), "")
    assert (found["curr_items"], found["vb_active_num"], found["vb_replica_num"]) == ("2", "3", "0")
    assert (found["version"], found["ep_dcp_producer_count"], found["ep_bucket_type"]) == ("8.0.0", "0", "couchbase")


def test_writes_that_are_not_on_disk_are_queued() -> None:
    bucket = filled()
    assert stats(CommandClient(bucket), "")["ep_queue_size"] == "0"
    bucket.set_persistence(bucket.nodes[0], False)
    for number in (0, 1, 1):
        bucket.store(b"new", b"", number=number)
    found = stats(CommandClient(bucket), "")
    assert (found["ep_queue_size"], found["ep_flusher_todo"]) == ("3", "0")


STREAM = {
    "flags": 0,
    "start_seqno": 0,
    "end_seqno": 100,
    "vbuuid": 0,
    "snapshot_start": 0,
    "snapshot_end": 0,
}


def test_the_dcp_connections_of_a_node_and_their_streams() -> None:
    bucket = filled()
    consumer, tool = CommandClient(bucket), CommandClient(bucket)
    consumer.request("open", key=b"mine", fields={"flags": 1})
    consumer.request("control", key=b"connection_buffer_size", value=b"1000")
    consumer.request_all("stream_request", vbucket=1, opaque=3, fields=STREAM)
    found = stats(tool, "dcp")
    sent = int(found.pop("eq_dcpq:mine:unacked_bytes"))
    assert sent == consumer.connection.out.outstanding > 0
    assert found == {
        "eq_dcpq:mine:type": "producer",
        "eq_dcpq:mine:max_buffer_bytes": "1000",
        "eq_dcpq:mine:num_streams": "1",
        "eq_dcpq:mine:stream_1_opaque": "3",
        "eq_dcpq:mine:stream_1_start_seqno": "0",
        "eq_dcpq:mine:stream_1_end_seqno": "100",
        "eq_dcpq:mine:stream_1_last_read_seqno": "4",
        "ep_dcp_count": "1",
        "ep_dcp_producer_count": "1",
    }
    consumer.connection.closed()
    assert stats(tool, "dcp") == {"ep_dcp_count": "0", "ep_dcp_producer_count": "0"}


def test_a_name_belongs_to_the_newest_connection_of_a_node() -> None:
    bucket = make_bucket(nodes=2, vbuckets=4)
    first, elsewhere, other, second = (
        CommandClient(bucket),
        CommandClient(bucket, node=1),
        CommandClient(bucket),
        CommandClient(bucket),
    )
    for client, name in ((first, b"mine"), (elsewhere, b"mine"), (other, b"other"), (second, b"mine")):
        assert client.status("open", key=name, fields={"flags": 1}) is Status.SUCCESS
    assert [client.closed for client in (first, elsewhere, other, second)] == [True, False, False, False]
    first.connection.closed()
    assert bucket.nodes[0].consumers["mine"] is second.connection
